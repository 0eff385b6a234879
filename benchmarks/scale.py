"""Measures the single-process stages of an ingest of many images, without images: `python -m benchmarks.scale`.

Facts are generated: 5 % of the images are duplicates, 1 % are in groups of 2 to 500, and 1,000 classes have a long
tail. The facts are planned with stratified splits, summaries of the planned shards are generated and published, and the
index of an epoch is read. Near duplicates are searched as in the ingest. Each size runs in a separate process. Prints
seconds, the peak resident memory above that after the imports, and the maximum size of the temporary files; then the
seconds for ten times as many images, extrapolated linearly from the two largest sizes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas, shards
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import Plan, make_plan
from beam_jobs.stages import resume
from beam_jobs.stages.publish import RunProperties, publish, write_part
from beam_jobs.stages.summary import Summary
from beam_jobs.stages.write import SealedFile, ShardTask, Sidecar, shard_path, shard_tasks, sidecar_path
from benchmarks.plan import examined_table
from benchmarks.resident import peak_bytes
from trainer.input.index import load_index

_BUCKET = 8192  # images
_CLASSES = 1000
_COPIES, _GROUPED = 0.05, 0.01  # shares of the images
_LARGEST_GROUP = 500
_SPLITS = {"train": 0.95, "eval": 0.05}
_SIZES = (1_000_000, 10_000_000, 100_000_000)
_WATCH_S = 0.2


def main() -> None:
    """Measures each size and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=_SIZES)
    parser.add_argument("--memory-mb", type=int, default=1000, help="plan_memory_mb of the ingest")
    parser.add_argument("--near-duplicates", default=IngestOptions.near_duplicates, help="as in the ingest")
    parser.add_argument("--scratch", help="directory for temporary files, 750 bytes per image")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments.images[0], arguments.memory_mb, arguments.near_duplicates, arguments.scratch)
        return
    seconds: dict[int, dict[str, float]] = {}
    for images in arguments.images:
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scale", "--worker", "--images", str(images)]
            command += ["--memory-mb", str(arguments.memory_mb), "--scratch", scratch]
            command += ["--near-duplicates", arguments.near_duplicates]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
                for line in worker.stdout or ():
                    stage = json.loads(line)
                    seconds.setdefault(images, {})[stage["stage"]] = stage["seconds"]
                    print(
                        f"{images:>13,} images  {stage['stage']:<8} {stage['seconds']:8.1f} s  "
                        f"{stage['mb_above_start']:7,.0f} MB above the start  {stage['spilled_mb']:9,.0f} MB of files  "
                        f"{stage['detail']}",
                        flush=True,
                    )
            if worker.returncode:
                raise SystemExit(worker.returncode)
    _extrapolate(seconds)


def _extrapolate(seconds: dict[int, dict[str, float]]) -> None:
    *_, small, large = [0, *sorted(seconds)]
    for stage, measured in seconds[large].items() if small else ():
        slope = (measured - seconds[small][stage]) / (large - small)
        print(f"{10 * large:>13,} images  {stage:<8} {measured + 9 * large * slope:8.0f} s, extrapolated")


def measure(images: int, memory_mb: int, near_duplicates: str, scratch: str) -> None:
    """Measures all stages for a number of images, and prints a line of JSON for each."""
    facts, work, out = (os.path.join(scratch, name) for name in ("facts", "out/_work", "out"))
    paths = []
    for number, table in enumerate(made_facts(images)):
        paths.append(os.path.join(facts, f"{number:06}.parquet"))
        schemas.write_table(paths[-1], table, durable=False)
    spill = os.path.join(scratch, "spill")
    os.makedirs(spill)
    options = IngestOptions(
        source="photos",
        out=out,
        splits=_SPLITS,
        stratify=True,
        near_duplicates=near_duplicates,
        plan_memory_mb=memory_mb,
    ).resolve(images)
    stages = _Stages(spill)
    plan: Plan = stages.run("plan", lambda: make_plan(paths, options, os.path.join(work, "plan"), spill=spill))
    shutil.rmtree(facts)
    tasks = shard_tasks(plan, "")
    for task in tasks:
        _make_summary(task, out, work)
    rejects = schemas.REJECTS.empty_table()
    run_properties = RunProperties(images=images, label_kind="single", work=work)
    dataset = stages.run("publish", lambda: publish(options, plan, tasks, [rejects], run_properties))
    index = stages.run("index", lambda: load_index(out, manifest.load(out), "train"))
    if len(index.shard) != dataset.split("train").records:
        raise RuntimeError(f"the index has {len(index.shard)} records, the split {dataset.split('train').records}")


class _Stages:
    """Measures stages, whose temporary files are in one directory."""

    def __init__(self, spill: str) -> None:
        self._spill = Path(spill)
        self._start = psutil.Process().memory_info().rss
        self._spilled = 0

    def run(self, stage: str, work: Callable[[], object]) -> object:
        """Runs a stage, prints its figures, and returns its result."""
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak of the previous stage
        self._spilled = 0
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(ended,))
        watch.start()
        started = time.perf_counter()
        try:
            result = work()
        finally:
            seconds = time.perf_counter() - started
            ended.set()
            watch.join()
        detail = f"{sum(len(split.shards) for split in result.splits):,} shards" if isinstance(result, Plan) else ""
        figures = {"seconds": seconds, "mb_above_start": (peak_bytes() - self._start) / 1e6}
        print(json.dumps({"stage": stage, **figures, "spilled_mb": self._spilled / 1e6, "detail": detail}), flush=True)
        return result

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(_WATCH_S):
            self._spilled = max(self._spilled, sum(_bytes(path) for path in self._spill.rglob("*")))


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the stage has removed it
        return 0


def made_facts(images: int) -> Iterator[pa.Table]:
    """Yields `EXAMINED` rows, one table per bucket."""
    random = np.random.default_rng(0)
    tail = 1 / np.arange(1, _CLASSES + 1)
    names = pa.array([f"class-{number:03}" for number in range(_CLASSES)])
    group = 0
    for start in range(0, images, _BUCKET):
        count = min(_BUCKET, images - start)
        label = names.take(pa.array(random.choice(_CLASSES, count, p=tail / tail.sum())))
        keys = [f"{name}/{number:012}.jpg" for number, name in enumerate(label.to_pylist(), start)]
        contents = np.arange(start, start + count)
        copies = random.random(count) < _COPIES
        contents[copies] = random.integers(0, start + count, copies.sum())
        sha256 = [hashlib.sha256(content.to_bytes(8, "big")).hexdigest() for content in contents.tolist()]
        groups = [""] * count
        for position in np.flatnonzero(random.random(count) < _GROUPED).tolist():
            groups[position] = f"group-{group}"
            group += random.random() < 2 / _LARGEST_GROUP  # its mean is half of the largest size
        yield examined_table(random, keys, label, sha256, group=groups)


def _make_summary(task: ShardTask, out: str, work: str) -> None:
    """Writes the output of a worker for a shard: rows, summary, and a shard file of zeros."""
    size = 130_000 * task.rows.images
    path = shard_path(out, task)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.truncate(size)
    rows = task.rows.read()
    images = schemas.image_rows(rows, task.split, task.index, (np.arange(len(rows)) * 130_000).tolist())
    part = write_part(out, task.part_name, [images])
    sidecar = Sidecar(
        digest=task.digest,
        records=task.rows.images,
        shard=SealedFile(name=task.name, bytes=size, sha256=task.digest, crc32c=0),
        part=SealedFile(name=task.part_name, bytes=part.bytes, sha256=part.sha256, crc32c=0),
        order_hashes=(shards.order_hash(0, rows["key"][0].as_py()), shards.order_hash(0, rows["key"][-1].as_py())),
        summary=Summary.measure(rows, "single").to_json(),
    )
    storage.make_dirs(os.path.dirname(sidecar_path(work, task)))
    resume.write_checked(sidecar_path(work, task), asdict(sidecar))


if __name__ == "__main__":
    main()
