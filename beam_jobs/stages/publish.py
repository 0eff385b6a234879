"""Publish: checks every shard, writes the tables, and `dataset.json` last."""

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
from beam_jobs.rejects import Reject
from beam_jobs.stages import append
from beam_jobs.stages.append import ExistingDataset
from beam_jobs.stages.write import ShardTask, Sidecar, load_sidecar, shard_path, sidecar_path
from beam_jobs.types import EXTRA_TYPES

# Packages whose versions affect the facts or the bytes of re-encoded images.
_PRODUCERS = ("feedline", "tensorflow", "pillow", "opencv-python-headless", "pycocotools")


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """Facts about the source and the run that are not in the plan.

    Attributes:
      images: number of entries, including rejects.
      label_kind: one of `types.LABEL_KINDS`.
      work: work directory, with the sidecars.
      existing: the dataset to which the images are added; None for a new dataset.
      keys: keys of the retried entries; empty unless rejects were retried.
      remarks: remarks of the run.
    """

    images: int
    label_kind: str
    work: str
    existing: ExistingDataset | None = None
    keys: frozenset[str] = frozenset()
    remarks: Remarks = field(default_factory=Remarks)

    def shards_before(self, split: str) -> int:
        """Returns the number of existing shards of a split."""
        return self.existing.shard_counts().get(split, 0) if self.existing else 0


def producer() -> dict[str, str]:
    """Returns package -> version of the packages that affect the output."""
    return {name: metadata.version(name) for name in _PRODUCERS}


def occupied_message(out: str) -> str:
    """Returns the message about an output that contains a dataset; only a local dataset can be replaced."""
    alternative = "" if storage.is_remote(out) else ", or replace it with --overwrite"
    return f"{out} already holds a dataset; choose another --out{alternative}"


def publish(
    options: IngestOptions, plan: Plan, tasks: list[ShardTask], rejects: pa.Table, source_facts: SourceFacts
) -> Manifest:
    """Turns written shards into a dataset. Idempotent until `dataset.json` exists, which is never replaced.

    Args:
      options: options of the ingest.
      plan: the plan of the written shards.
      tasks: the written shards.
      rejects: `REJECTS` rows of all stages.
      source_facts: facts about the source, and the existing dataset.

    Raises:
      CorruptDataset: a shard does not match its sidecar.
      DatasetChanged: another process published a dataset in the output during the run.
      FileNotFoundError: another process removed files of the output; nothing is published.
    """
    check_unpublished(options.out)
    sidecars = {(task.split, task.index): _check_shard(options.out, source_facts.work, task) for task in tasks}
    images = _images(plan, sidecars, source_facts)
    splits = {split.name: _split_info(split, sidecars, source_facts) for split in plan.splits}
    counts = _counts(plan, rejects, source_facts.images)
    if source_facts.existing:
        totals = {split.name: source_facts.shards_before(split.name) + split.shard_count for split in plan.splits}
        append.link_shards(source_facts.existing, options.out, totals)
        splits = append.merge_splits(source_facts.existing, splits, totals)
        images = pa.concat_tables([plan.existing, images])
        rejects = append.merge_rejects(source_facts.existing, rejects, source_facts.keys)
        counts = append.merge_counts(source_facts.existing, counts, rejects)
    _remove_strays(options.out, splits)
    scratch = storage.join(source_facts.work, "tmp")
    schemas.write_table(storage.join(options.out, manifest.IMAGES_NAME), images, scratch)
    schemas.write_table(storage.join(options.out, manifest.REJECTS_NAME), rejects, scratch)
    tfds_files = _tfds_files(options, splits, plan.labels, images, source_facts.label_kind)
    for name, content in tfds_files.items():
        storage.write_bytes(storage.join(options.out, name), content, scratch)
    result = Manifest(
        source=_source_name(options.source),
        options=dataset_options(options),
        options_digest=options.digest(),
        label_kind=source_facts.label_kind,
        labels=plan.labels,
        splits=splits,
        counts=counts,
        channels=_channels(next(iter(splits)), images) if options.facts == "all" else None,
        producer=producer(),
        tables={
            name: storage.digest(storage.join(options.out, name))[1]
            for name in (*manifest.TABLE_NAMES, *sorted(tfds_files))
        },
        remarks=source_facts.remarks,
    )
    if not manifest.create(result, options.out, scratch):
        raise _dataset_appeared(options.out)
    _check_complete(result, options.out)
    return result


def check_unpublished(out: str) -> None:
    """Raises `DatasetChanged` if another process published a dataset in an output that had none."""
    if manifest.is_published(out):
        raise _dataset_appeared(out)


def _dataset_appeared(out: str) -> DatasetChanged:
    return DatasetChanged(f"{out} holds a dataset that was published since this run began; choose another --out")


def rejects_table(examined: pa.Table, rejects: tuple[Reject, ...]) -> pa.Table:
    """Joins the rejects of examining and of other stages into one table, in order of key."""
    rows = pa.Table.from_pylist([schemas.reject_row(reject) for reject in rejects], schemas.REJECTS)
    return pa.concat_tables([examined, rows]).sort_by([("key", "ascending"), ("uri", "ascending")])


def reason_counts(rejects: pa.Table) -> dict[str, int]:
    """Returns reason -> number of images, most frequent first."""
    return dict(Counter(rejects["reason"].to_pylist()).most_common())


def _source_name(source: str) -> str:
    """Returns the last part of a local path, because its directory is private; a URL completely."""
    return source if storage.is_remote(source) else os.path.basename(os.path.abspath(source))


def dataset_options(options: IngestOptions) -> dict[str, Any]:
    """Returns the options that determine a dataset, in the form in which `dataset.json` records them."""
    settings = fields(type(options))
    return {name: value for name, value in options.to_json().items() if settings[name].field.scope != "run"}


def _check_shard(out: str, work: str, task: ShardTask) -> Sidecar:
    path = shard_path(out, task)
    with contextlib.suppress(OSError, ValueError):  # a file is missing, or the sidecar is damaged
        sidecar = load_sidecar(work, task)
        if storage.checksum(path) == sidecar.crc32c:
            return sidecar
    storage.remove(sidecar_path(work, task))  # so that the next run writes the shard again
    raise CorruptDataset(f"{path} is not what was written to it; check the disk, then run the ingest again")


def _check_complete(result: Manifest, out: str) -> None:
    """Removes the manifest again if files were removed during publication: writing recreates removed directories.

    Raises:
      FileNotFoundError: a file of the dataset is missing.
    """
    if storage.is_remote(out):  # each check would be a request, and an accidental partial removal is unlikely
        return
    paths = [path for split in result.splits for path in result.shard_paths(out, split)]
    for path in [*paths, *(storage.join(out, name) for name in result.tables)]:
        if not os.path.isfile(path):
            storage.remove(storage.join(out, manifest.MANIFEST_NAME))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _tfds_files(
    options: IngestOptions, splits: dict[str, SplitInfo], labels: tuple[str, ...], images: pa.Table, label_kind: str
) -> dict[str, bytes]:
    parts = {
        name
        for text in images["annotations"].to_pylist()
        if (annotations := schemas.parse_annotations(text))
        for name in ("objects", "mask", "weight")
        if getattr(annotations, name) is not None
    }
    extra: dict[str, type] = {}
    for text in set(images["extra"].to_pylist()) - {"{}"}:
        for name, value in schemas.cell(text).items():
            values = value if isinstance(value, list) else [value]
            extra[name] = max([extra.get(name, int), *map(type, values)], key=EXTRA_TYPES.index)
    features = tfds_metadata.describe_features(
        label_kind=label_kind,
        labels=len(labels),
        raw=options.pixels.policy == "raw",
        channel_statistics=options.facts == "all",
        parts=frozenset(parts),
        extra=extra,
    )
    return tfds_metadata.files(splits, labels, features, _source_name(options.source))


def _remove_strays(out: str, splits: dict[str, SplitInfo]) -> None:
    # TFX reads `Split-NAME/*`, so it would also read the shards of an abandoned plan.
    planned = {shards.split_dir(split): {shard.name for shard in info.shards} for split, info in splits.items()}
    for folder in storage.list_dirs(out):
        directory = storage.join(out, folder)
        if folder in planned:
            for name in storage.list_files(directory):
                if name not in planned[folder]:
                    storage.remove(storage.join(directory, name))
        elif folder.startswith(shards.SPLIT_PREFIX):
            storage.remove_tree(directory)


def _images(plan: Plan, sidecars: dict[tuple[str, int], Sidecar], source_facts: SourceFacts) -> pa.Table:
    parts = [_image_rows(plan.dropped, "", -1, [-1] * len(plan.dropped))]
    for split in plan.splits:
        first = source_facts.shards_before(split.name)
        for index in range(split.shard_count):
            offsets = list(sidecars[split.name, first + index].offsets)
            parts.append(_image_rows(split.shard(index), split.name, first + index, offsets))
    return pa.concat_tables(parts)


def _channels(split: str, images: pa.Table) -> ChannelStatistics:
    written = pc.and_(pc.equal(images["split"], split), pc.greater_equal(images["shard"], 0))
    return channel_statistics(split, images.filter(written))


def _image_rows(rows: pa.Table, split: str, shard: int, offsets: list[int]) -> pa.Table:
    count = len(rows)
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names if name in schemas.IMAGES.names}
    columns["split"] = pa.array([split] * count, pa.string())
    columns["shard"] = pa.array([shard] * count, pa.int64())
    columns["offset"] = pa.array(offsets, pa.int64())
    return pa.table(columns).cast(schemas.IMAGES)


def _split_info(split: SplitPlan, sidecars: dict[tuple[str, int], Sidecar], source_facts: SourceFacts) -> SplitInfo:
    """Describes the new shards of a split."""
    first = source_facts.shards_before(split.name)
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
        classes=dict(sorted(_count_classes(split.images, source_facts.label_kind).items())),
    )


def _count_classes(rows: pa.Table, label_kind: str) -> Counter[str]:
    """Returns class -> number of images; an image of several classes counts in each."""
    if label_kind == "single":
        return Counter(rows["label"].to_pylist())
    annotations = (schemas.parse_annotations(text) for text in rows["annotations"].to_pylist())
    return Counter(name for item in annotations if item and item.labels for name in item.labels)


def _counts(plan: Plan, rejects: pa.Table, total: int) -> ImageCounts:
    written = pa.concat_tables([split.images for split in plan.splits])
    reasons = written.filter(pc.not_equal(written["normalised"], ""))["normalised"].to_pylist()
    return ImageCounts(
        found=total,
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
