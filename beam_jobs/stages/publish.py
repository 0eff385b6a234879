"""Publish: check every shard, write the tables, and `dataset.json` last."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.settings import fields
from beam_jobs.dataset import manifest, schemas, shards, tfds_metadata
from beam_jobs.dataset.manifest import ChannelStatistics, ImageCounts, Manifest, Remarks, Shard, SplitInfo
from beam_jobs.errors import CorruptDataset, DatasetChanged
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import Plan, SplitPlan, channel_statistics
from beam_jobs.stages import generations
from beam_jobs.stages.generations import Existing
from beam_jobs.stages.write import ShardTask, Sidecar, load_sidecar, shard_path, sidecar_path
from beam_jobs.types import EXTRA_TYPES, Reject

# What else decides the facts and the bytes of re-encoded images.
_PRODUCERS = ("feedline", "tensorflow", "pillow", "opencv-python-headless", "pycocotools")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an ingest found in its source.

    Attributes:
      images: entries, rejects included.
      label_kind: one of `types.LABEL_KINDS`.
      work: directory of the sidecars.
      existing: the dataset that the images are added to; None for a new one.
      keys: keys of the entries, when rejects were tried again.
      remarks: what was noticed on the way.
    """

    images: int
    label_kind: str
    work: str
    existing: Existing | None = None
    keys: frozenset[str] = frozenset()
    remarks: Remarks = field(default_factory=Remarks)

    def shards_before(self, split: str) -> int:
        """Returns how many shards the split had already."""
        return self.existing.shard_counts().get(split, 0) if self.existing else 0


def producer() -> dict[str, str]:
    """Returns package -> version of everything that shapes the output."""
    return {name: metadata.version(name) for name in _PRODUCERS}


def taken(out: str) -> str:
    """Returns the message about an output that holds a dataset; in object stores nothing can be replaced by rename."""
    instead = "" if storage.is_remote(out) else ", or replace it with --overwrite"
    return f"{out} already holds a dataset; choose another --out{instead}"


def publish(
    options: IngestOptions, plan: Plan, tasks: list[ShardTask], rejects: pa.Table, source_facts: Found
) -> Manifest:
    """Turns written shards into a dataset. Idempotent until `dataset.json` is there, which is never replaced.

    Args:
      options: of the ingest.
      plan: what was written.
      tasks: the shards of it.
      rejects: `REJECTS` rows of all stages.
      source_facts: what the source has, and the dataset that was there before.

    Raises:
      CorruptDataset: a shard is not what its sidecar says.
      DatasetChanged: another dataset was published in the output meanwhile.
      FileNotFoundError: somebody removes the output meanwhile; nothing is published.
    """
    check_unpublished(options.out)
    sidecars = {(task.split, task.index): _checked(options.out, source_facts.work, task) for task in tasks}
    images = _images(plan, sidecars, source_facts)
    splits = {split.name: _split_info(split, sidecars, source_facts) for split in plan.splits}
    counts = _counts(plan, rejects, source_facts.images)
    if source_facts.existing:
        totals = {split.name: source_facts.shards_before(split.name) + split.shard_count for split in plan.splits}
        generations.link_shards(source_facts.existing, options.out, totals)
        splits = generations.merged_splits(source_facts.existing, splits, totals)
        images = pa.concat_tables([plan.existing, images])
        rejects = generations.merged_rejects(source_facts.existing, rejects, source_facts.keys)
        counts = generations.merged_counts(source_facts.existing, counts, rejects)
    _remove_strays(options.out, splits)
    scratch = storage.join(source_facts.work, "tmp")
    schemas.write_table(storage.join(options.out, manifest.IMAGES_NAME), images, scratch)
    schemas.write_table(storage.join(options.out, manifest.REJECTS_NAME), rejects, scratch)
    beside = _tfds_files(options, splits, plan.labels, images, source_facts.label_kind)
    for name, content in beside.items():
        storage.write_bytes(storage.join(options.out, name), content, scratch)
    result = Manifest(
        source=_source_name(options.source),
        options=described(options),
        options_digest=options.digest(),
        label_kind=source_facts.label_kind,
        labels=plan.labels,
        splits=splits,
        counts=counts,
        channels=_channels(next(iter(splits)), images) if options.facts == "all" else None,
        producer=producer(),
        tables={
            name: storage.digest(storage.join(options.out, name))[1]
            for name in (*manifest.TABLE_NAMES, *sorted(beside))
        },
        remarks=source_facts.remarks,
    )
    if not manifest.create(result, options.out, scratch):
        raise _appeared(options.out)
    _check_whole(result, options.out)
    return result


def check_unpublished(out: str) -> None:
    """Raises `DatasetChanged` where a dataset appeared in an output that had none: nothing is written over it."""
    if manifest.is_published(out):
        raise _appeared(out)


def _appeared(out: str) -> DatasetChanged:
    return DatasetChanged(f"{out} holds a dataset that was published since this run began; choose another --out")


def rejects_table(stored: pa.Table, rejects: tuple[Reject, ...]) -> pa.Table:
    """Joins rejects of all stages into one table, ordered by key."""
    rows = pa.Table.from_pylist([schemas.reject_row(reject) for reject in rejects], schemas.REJECTS)
    return pa.concat_tables([stored, rows]).sort_by([("key", "ascending"), ("uri", "ascending")])


def reason_counts(rejects: pa.Table) -> dict[str, int]:
    """Returns reason -> images, most frequent first."""
    return dict(Counter(rejects["reason"].to_pylist()).most_common())


def _source_name(source: str) -> str:
    """Returns the last part of a local source: its directory is private, and no part of the dataset."""
    return source if storage.is_remote(source) else os.path.basename(os.path.abspath(source))


def described(options: IngestOptions) -> dict[str, Any]:
    """Returns the options that say what a dataset is, as `dataset.json` keeps them."""
    known = fields(type(options))
    return {name: value for name, value in options.to_json().items() if known[name].field.scope != "run"}


def _checked(out: str, work: str, task: ShardTask) -> Sidecar:
    path = shard_path(out, task)
    with contextlib.suppress(OSError, ValueError):  # one of the two is missing, or the sidecar damaged
        sidecar = load_sidecar(work, task)
        if storage.checksum(path) == sidecar.crc32c:
            return sidecar
    storage.remove(sidecar_path(work, task))  # or the next run would take the shard for finished
    raise CorruptDataset(f"{path} is not what was written to it; check the disk, then run the ingest again")


def _check_whole(result: Manifest, out: str) -> None:
    """Takes a manifest back whose files were removed while it was made: writing makes the directories anew.

    Raises:
      FileNotFoundError: one of them is not there.
    """
    if storage.is_remote(out):  # a request each, and a bucket is not removed half way by accident
        return
    paths = [path for split in result.splits for path in result.shard_paths(out, split)]
    for path in [*paths, *(storage.join(out, name) for name in result.tables)]:
        if not os.path.isfile(path):
            storage.remove(storage.join(out, manifest.MANIFEST_NAME))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _tfds_files(
    options: IngestOptions, splits: dict[str, SplitInfo], labels: tuple[str, ...], images: pa.Table, label_kind: str
) -> dict[str, bytes]:
    annotated = [
        annotations for text in images["annotations"].to_pylist() if (annotations := schemas.parse_annotations(text))
    ]
    parts = {name for one in annotated for name in ("objects", "mask", "weight") if getattr(one, name) is not None}
    extra: dict[str, type] = {}
    for text in set(images["extra"].to_pylist()) - {"{}"}:
        for name, value in schemas.cell(text).items():
            values = value if isinstance(value, list) else [value]
            extra[name] = max([extra.get(name, int), *map(type, values)], key=EXTRA_TYPES.index)
    features = tfds_metadata.describe_features(
        label_kind=label_kind,
        labels=len(labels),
        raw=options.pixels.policy == "raw",
        moments=options.facts == "all",
        parts=frozenset(parts),
        extra=extra,
    )
    return tfds_metadata.files(splits, labels, features, _source_name(options.source))


def _remove_strays(out: str, splits: dict[str, SplitInfo]) -> None:
    # TFX reads `Split-NAME/*`, so a shard or a split of an abandoned plan would be read too.
    planned = {shards.split_dir(split): {shard.name for shard in info.shards} for split, info in splits.items()}
    for folder in storage.list_dirs(out):
        directory = storage.join(out, folder)
        if folder in planned:
            for name in storage.list_files(directory):
                if name not in planned[folder]:
                    storage.remove(storage.join(directory, name))
        elif folder.startswith(shards.SPLIT_PREFIX):
            storage.remove_tree(directory)


def _images(plan: Plan, sidecars: dict[tuple[str, int], Sidecar], found: Found) -> pa.Table:
    parts = [_placed(plan.dropped, "", -1, [-1] * len(plan.dropped))]
    for split in plan.splits:
        first = found.shards_before(split.name)
        for index in range(split.shard_count):
            offsets = list(sidecars[split.name, first + index].offsets)
            parts.append(_placed(split.shard(index), split.name, first + index, offsets))
    return pa.concat_tables(parts)


def _channels(split: str, images: pa.Table) -> ChannelStatistics:
    written = pc.and_(pc.equal(images["split"], split), pc.greater_equal(images["shard"], 0))
    return channel_statistics(split, images.filter(written))


def _placed(rows: pa.Table, split: str, shard: int, offsets: list[int]) -> pa.Table:
    count = len(rows)
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names if name in schemas.IMAGES.names}
    columns["split"] = pa.array([split] * count, pa.string())
    columns["shard"] = pa.array([shard] * count, pa.int64())
    columns["offset"] = pa.array(offsets, pa.int64())
    return pa.table(columns).cast(schemas.IMAGES)


def _split_info(split: SplitPlan, sidecars: dict[tuple[str, int], Sidecar], found: Found) -> SplitInfo:
    """Describes the new shards of a split."""
    first = found.shards_before(split.name)
    count = first + split.shard_count
    return SplitInfo(
        shards=tuple(
            Shard(
                name=shards.shard_name(index, count),
                records=sidecars[split.name, index].records,
                bytes=sidecars[split.name, index].bytes,
                sha256=sidecars[split.name, index].sha256,
            )
            for index in range(first, count)
        ),
        classes=dict(sorted(_classes(split.images, found.label_kind).items())),
    )


def _classes(rows: pa.Table, label_kind: str) -> Counter[str]:
    """Returns class -> images; an image of several classes counts in each."""
    if label_kind == "single":
        return Counter(rows["label"].to_pylist())
    annotated = (schemas.parse_annotations(text) for text in rows["annotations"].to_pylist())
    return Counter(name for one in annotated if one and one.labels for name in one.labels)


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
        duplicates_dropped=len(plan.dropped) - plan.near_dropped,
        near_clusters=plan.near_clusters,
        near_images=plan.near_images,
        near_dropped=plan.near_dropped,
        near_unsearched=plan.near_unsearched,
        label_conflicts=plan.label_conflicts,
    )
