"""Measures scan and plan without images: `python -m benchmarks.plan [--images N]`.

The scan writes references to a temporary directory, the plan reads files of random facts. The scan uses one thread, the
plan all cores. Prints seconds, images per second, and the growth of the peak resident memory since the start.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs.dataset import schemas, shards
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import make_plan
from beam_jobs.stages.scan import scan
from beam_jobs.types import ImageRef
from benchmarks.resident import peak_bytes

_CLASSES = 1000
_BUCKET = 2048


def main() -> None:
    """Measures the stages in sequence and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--near-distance", type=int, default=3, help="bits in which near duplicates may differ")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    arguments = parser.parse_args()
    options = IngestOptions(source="photos", out="dataset", near_duplicates="off")
    near = dataclasses.replace(options, near_duplicates="group", near_distance=arguments.near_distance)
    start = peak_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        refs = map(_reference, range(arguments.images))
        results = _show("scan", arguments.images, start, lambda: scan(refs, scratch, _BUCKET, options.shares, ""))
        paths = [os.path.join(scratch, f"facts-{number}.parquet") for number in range(-(-arguments.images // _BUCKET))]
        for path, table in zip(paths, made_facts(arguments.images), strict=True):
            schemas.write_table(path, table, durable=False)

        def plan(options: IngestOptions) -> None:
            make_plan(paths, options, scratch, spill=scratch)

        results |= _show("plan", arguments.images, start, lambda: plan(options))
        results |= _show("plan, near duplicates", arguments.images, start, lambda: plan(near))
        stratified = dataclasses.replace(options, stratify=True)
        results |= _show("plan, stratified", arguments.images, start, lambda: plan(stratified))
    if arguments.json:
        print(json.dumps(results))


def _show(name: str, images: int, start: int, work: Callable[[], object]) -> dict[str, dict]:
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    growth = (peak_bytes() - start) / 1e6
    print(f"{name:<24} {seconds:7.1f} s {images / seconds:12,.0f} images/s   {growth:7,.0f} MB above the start")
    return {name: {"images": images, "seconds": seconds, "mb_above_start": growth}}


def _key(number: int) -> str:
    return f"class-{number * 7919 % _CLASSES:03d}/image-{number:08d}.jpg"


def _reference(number: int) -> ImageRef:
    key = _key(number)
    return ImageRef(key=key, uri=key, label=key[:9], bytes=100_000, mtime_ns=1_700_000_000_000_000_000 + number)


def made_facts(images: int) -> Iterator[pa.Table]:
    """Yields `EXAMINED` rows, one table per bucket as in the ingest; one row in a hundred is a duplicate."""
    random = np.random.default_rng(0)
    for start in range(0, images, _BUCKET):
        count = min(_BUCKET, images - start)
        keys = [_key(number) for number in range(start, start + count)]
        contents = np.arange(start, start + count)
        contents[random.random(count) < 0.01] //= 2
        sha256 = [f"{content * 0x9E3779B97F4A7C15 % 2**64:064x}" for content in contents.tolist()]
        yield examined_table(random, keys, [key[:9] for key in keys], sha256)


def examined_table(
    random: np.random.Generator, keys: Sequence[str], labels: Any, sha256: Sequence[str], **columns: Any
) -> pa.Table:
    """Returns `EXAMINED` rows of generated images; columns without an argument are random, empty or constant."""
    count = len(keys)
    number = pa.array(random.integers(60_000, 200_000, count))
    moments = pa.ListArray.from_arrays(np.arange(0, 3 * count + 1, 3, np.int32), random.random(3 * count, np.float32))
    columns |= {"key": keys, "uri": keys, "label": labels, "extra": pa.repeat("{}", count)}
    columns |= {name: pa.repeat("jpeg", count) for name in ("format", "source_format")}
    columns |= {"sha256": sha256, "source_sha256": sha256, "mean_rgb": moments, "var_rgb": moments}
    columns |= {
        "dhash": pa.array(random.integers(-(2**63), 2**63, count)),
        "order_hash": pa.array(shards.hashes64(shards.ORDER, 0, keys)),
        "content_hash": pa.array(shards.hashes64(shards.SPLIT, 0, sha256)),
    }
    columns |= {name: pa.array([[]] * count) for name in ("annotated_labels", "object_labels")}
    empty = {pa.string(): pa.repeat("", count), pa.binary(): pa.repeat(b"", count)}
    defaults = {field.name: empty.get(field.type, number) for field in schemas.EXAMINED}
    return pa.table({**defaults, **columns}).cast(schemas.EXAMINED)


if __name__ == "__main__":
    main()
