"""Publish: check every shard, write the tables, and `dataset.json` last."""

from __future__ import annotations

import json
import os
from collections import Counter
from importlib import metadata
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import manifest, shards, storage, tables
from beam_jobs.errors import CorruptDataset
from beam_jobs.manifest import ImageCounts, Manifest, Shard, SplitInfo
from beam_jobs.options import IngestOptions
from beam_jobs.plan import Plan, SplitPlan, channel_statistics
from beam_jobs.types import Reject
from beam_jobs.write import ShardTask, Sidecar, load_sidecar, shard_path, sidecar_path

# What else decides the facts and the bytes of re-encoded images.
_PRODUCERS = ("feedline", "tensorflow", "pillow", "opencv-python-headless")
_NOT_OURS_TO_SAY = ("source", "out", "threads", "overwrite", "bucket_images")  # of one run, not of the dataset


def producer() -> dict[str, str]:
    """Returns package -> version of everything that shapes the output."""
    return {name: metadata.version(name) for name in _PRODUCERS}


def publish(
    options: IngestOptions, plan: Plan, tasks: list[ShardTask], rejects: pa.Table, found: int, work: str
) -> Manifest:
    """Turns written shards into a dataset. Idempotent: running it again writes the same files.

    Raises:
      CorruptDataset: a shard is not what its sidecar says.
    """
    sidecars = {(task.split, task.index): _checked(options.out, work, task) for task in tasks}
    _remove_strays(options.out, tasks)
    scratch = storage.join(work, "tmp")
    tables.write_table(storage.join(options.out, manifest.IMAGES_NAME), _images(plan, sidecars), scratch)
    tables.write_table(storage.join(options.out, manifest.REJECTS_NAME), rejects, scratch)
    result = Manifest(
        source=_source_name(options.source),
        options=_described(options),
        options_digest=options.digest(),
        labels=plan.labels,
        splits={split.name: _split_info(split, sidecars) for split in plan.splits},
        counts=_counts(plan, rejects, found),
        channels=channel_statistics(plan.splits[0].name, plan.splits[0].images),
        producer=producer(),
        tables={name: storage.digest(storage.join(options.out, name))[1] for name in manifest.TABLE_NAMES},
    )
    manifest.write(result, options.out, scratch)
    return result


def rejects_table(stored: pa.Table, rejects: tuple[Reject, ...]) -> pa.Table:
    """Joins rejects of all stages into one table, ordered by key."""
    rows = pa.Table.from_pylist([tables.reject_row(reject) for reject in rejects], tables.REJECTS)
    return pa.concat_tables([stored, rows]).sort_by([("key", "ascending"), ("uri", "ascending")])


def reason_counts(rejects: pa.Table) -> dict[str, int]:
    """Returns reason -> images, most frequent first."""
    return dict(Counter(rejects["reason"].to_pylist()).most_common())


def _source_name(source: str) -> str:
    """Returns the last part of a local source: where it lay is nobody's business, and no part of the dataset."""
    return source if storage.is_remote(source) else os.path.basename(os.path.abspath(source))


def _described(options: IngestOptions) -> dict[str, Any]:
    kept = {name: value for name, value in options.to_json().items() if name not in _NOT_OURS_TO_SAY}
    return json.loads(json.dumps(kept))  # lists for tuples, as they will be read back


def _checked(out: str, work: str, task: ShardTask) -> Sidecar:
    sidecar = load_sidecar(work, task)
    path = shard_path(out, task)
    if storage.digest(path)[1] != sidecar.sha256:
        storage.remove(sidecar_path(work, task))  # or the next run would take the shard for finished
        raise CorruptDataset(f"{path} is not what was written to it; check the disk, then run the ingest again")
    return sidecar


def _remove_strays(out: str, tasks: list[ShardTask]) -> None:
    # TFX reads `Split-NAME/*`, so a shard or a split of an abandoned plan would be read too.
    planned = {shard_path(out, task) for task in tasks}
    splits = {shards.split_dir(task.split) for task in tasks}
    for folder in storage.list_dirs(out):
        directory = storage.join(out, folder)
        if folder in splits:
            for name in storage.list_files(directory):
                if storage.join(directory, name) not in planned:
                    storage.remove(storage.join(directory, name))
        elif folder.startswith(shards.SPLIT_PREFIX):
            storage.remove_tree(directory)


def _images(plan: Plan, sidecars: dict[tuple[str, int], Sidecar]) -> pa.Table:
    parts = [_placed(plan.dropped, "", -1, [-1] * len(plan.dropped))]
    for split in plan.splits:
        for index in range(split.shard_count):
            offsets = list(sidecars[split.name, index].offsets)
            parts.append(_placed(split.shard(index), split.name, index, offsets))
    return pa.concat_tables(parts)


def _placed(rows: pa.Table, split: str, shard: int, offsets: list[int]) -> pa.Table:
    count = len(rows)
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names}
    columns["split"] = pa.array([split] * count, pa.string())
    columns["shard"] = pa.array([shard] * count, pa.int64())
    columns["offset"] = pa.array(offsets, pa.int64())
    return pa.table(columns).cast(tables.IMAGES)


def _split_info(split: SplitPlan, sidecars: dict[tuple[str, int], Sidecar]) -> SplitInfo:
    found = [sidecars[split.name, index] for index in range(split.shard_count)]
    return SplitInfo(
        shards=tuple(
            Shard(
                name=shards.shard_name(index, split.shard_count),
                records=sidecar.records,
                bytes=sidecar.bytes,
                sha256=sidecar.sha256,
            )
            for index, sidecar in enumerate(found)
        ),
        classes=dict(sorted(Counter(split.images["label"].to_pylist()).items())),
    )


def _counts(plan: Plan, rejects: pa.Table, found: int) -> ImageCounts:
    written = pa.concat_tables([split.images for split in plan.splits])
    reasons = written.filter(pc.not_equal(written["normalised"], ""))["normalised"].to_pylist()
    return ImageCounts(
        found=found,
        written=len(written),
        rejects=reason_counts(rejects),
        normalised=dict(Counter(reason for joined in reasons for reason in joined.split("+")).most_common()),
        duplicate_clusters=plan.clusters,
        duplicate_images=plan.cluster_images,
        duplicates_dropped=len(plan.dropped),
        label_conflicts=plan.label_conflicts,
    )
