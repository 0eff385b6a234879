"""Measures the readers of an image table without images: `python -m benchmarks.readers [--images N]`.

Tables of generated rows are written to a temporary directory, with manifests and without shards. Each reader runs in a
separate process. Prints seconds, and the growth of the peak resident memory since the imports of the reader.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from beam_jobs.dataset import diff, lookup, manifest, schemas, shards
from beam_jobs.dataset.manifest import ChannelStatistics, ImageCounts, Manifest, Shard, SplitInfo
from beam_jobs.export import descriptions
from beam_jobs.stages.publish import write_part
from benchmarks.plan import made_facts
from benchmarks.resident import peak_bytes
from components.dataset_gate.checks import Baseline, check_dataset
from components.dataset_gate.drift_and_skew import open_dataset
from components.dataset_gate.limits import GateLimits
from components.dataset_report.histograms import distributions
from components.dataset_report.shown import open_images
from trainer.input.index import load_index

_SHARD_IMAGES = 2000
_RECORD_BYTES = 100_000
_EVAL_EVERY = 10  # every tenth bucket is in the second split


def main() -> None:
    """Writes two datasets of generated rows, runs every reader and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--readers", default=",".join(READERS), help=f"some of {','.join(READERS)}")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("datasets", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        start = peak_bytes()
        started = time.perf_counter()
        READERS[arguments.worker](*arguments.datasets)
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "mb_above_start": (peak_bytes() - start) / 1e6}))
        return
    with tempfile.TemporaryDirectory() as scratch:
        datasets = [os.path.join(scratch, name) for name in ("old", "new")]
        for changed, dataset in enumerate(datasets):
            write_rows(dataset, arguments.images, bool(changed))
        print(f"{arguments.images:,} images, {sum(part.bytes for part in manifest.load(datasets[0]).images):,} bytes")
        for name in arguments.readers.split(","):
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.readers", "--worker", name, *datasets]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(run.stdout.splitlines()[-1])
            print(f"{name:<12} {result['seconds']:7.1f} s   {result['mb_above_start']:7,.0f} MB above the start")


def write_rows(directory: str, images: int, changed: bool) -> None:
    """Writes an image table and its manifest; if `changed`, one image in a hundred has another label and content."""
    counts: Counter[str] = Counter()
    shard_rows: Counter[tuple[str, int]] = Counter()
    parts = []
    for bucket, facts in enumerate(made_facts(images)):
        split = "eval" if bucket % _EVAL_EVERY == _EVAL_EVERY - 1 else "train"
        numbers = np.arange(counts[split], counts[split] + len(facts))
        counts[split] += len(facts)
        indices = numbers // _SHARD_IMAGES
        shard_rows.update((split, index) for index in indices.tolist())
        rows = _image_rows(facts, split, indices, numbers % _SHARD_IMAGES, changed)
        parts.append(write_part(directory, f"part-{bucket:05d}.parquet", [rows]))
    splits = {
        split: SplitInfo(
            shards=tuple(
                Shard(
                    name=shards.shard_name(index, -(-count // _SHARD_IMAGES)),
                    records=shard_rows[split, index],
                    bytes=shard_rows[split, index] * _RECORD_BYTES,
                    sha256=f"{index + changed:064x}",
                )
                for index in range(-(-count // _SHARD_IMAGES))
            ),
            classes={"class-000": count},
        )
        for split, count in counts.items()
    }
    dataset = Manifest(
        source="made",
        options={},
        options_digest="",
        label_kind="single",
        labels=("class-000",),
        splits=splits,
        counts=ImageCounts(found=images, written=images),
        channels=ChannelStatistics(split="train", mean_rgb=(0.0,) * 3, std_rgb=(1.0,) * 3),
        producer={},
        images=tuple(parts),
        tables={},
    )
    manifest.write(dataset, directory)


def _image_rows(facts: pa.Table, split: str, shard: np.ndarray, position: np.ndarray, changed: bool) -> pa.Table:
    count = len(facts)
    columns = {name: facts[name] for name in facts.column_names if name in schemas.IMAGES.names}
    columns |= {name: pa.repeat("", count) for name in ("cluster", "near")}
    columns |= {
        "split": pa.repeat(split, count),
        "shard": pa.array(shard),
        "offset": pa.array(position * _RECORD_BYTES),
    }
    columns["label_index"] = pa.array(np.zeros(count, np.int64))
    columns["extra"] = pa.array([f'{{"camera": "c{number % 50}", "year": {number % 30}}}' for number in range(count)])
    if changed:
        other = np.arange(count) % 100 == 0
        for name in ("label", "sha256"):
            values = facts[name].to_pylist()
            columns[name] = pa.array(
                [f"other {value}" if differs else value for value, differs in zip(values, other, strict=True)]
            )
    return pa.table(columns).select(schemas.IMAGES.names).cast(schemas.IMAGES)


def _gate(dataset: str, baseline: str) -> None:
    with open_dataset(dataset) as new, open_dataset(baseline) as old:
        check_dataset(new, {}, GateLimits(), Baseline(old, "the old dataset"))


def _report(dataset: str, _: str) -> None:
    with open_images(dataset, manifest.load(dataset)) as images:
        distributions(images)


def _verify(dataset: str, _: str) -> None:
    with lookup.open_images(
        dataset, manifest.load(dataset), ("key", "split", "shard", "offset", "sha256", "extra", *lookup.LEAK_KINDS)
    ) as images:
        lookup.find_leaks(images, tuple(lookup.LEAK_KINDS))


def _export(dataset: str, _: str) -> None:
    loaded = manifest.load(dataset)
    with tempfile.TemporaryDirectory() as out:
        descriptions.write_dali_index(dataset, loaded, tuple(loaded.splits), out)


def _index(dataset: str, _: str) -> None:
    load_index(dataset, manifest.load(dataset), "train")


READERS: dict[str, Callable[[str, str], object]] = {
    "verify": _verify,
    "diff": diff.diff,
    "gate": _gate,
    "report": _report,
    "export": _export,
    "index": _index,
}

if __name__ == "__main__":
    main()
