"""Publish: compares the listing of the shards with their summaries, writes the tables, and `dataset.json` last."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.common.settings import fields
from beam_jobs.common.system import map_ordered
from beam_jobs.dataset import manifest, schemas, shards, tfds_metadata
from beam_jobs.dataset.manifest import ChannelStatistics, ImageCounts, Manifest, Remarks, Shard, SplitInfo
from beam_jobs.errors import CorruptDataset, DatasetChanged
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import Plan
from beam_jobs.rejects import Reject
from beam_jobs.stages import append, resume
from beam_jobs.stages.append import ExistingDataset
from beam_jobs.stages.write import ShardTask, load_sidecar, shard_path, sidecar_path
from beam_jobs.types import EXTRA_TYPES

_ROW_GROUP = 1 << 16  # rows of `images.parquet`
_ROW_THREADS = 2  # that read the rows of shards from a store; each has a shard's rows in memory, and one more
_OPTIONAL_PARTS = ("objects", "mask", "weight")
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
    existing, work = source_facts.existing, source_facts.work
    new_shards = _check_shards(options.out, work, plan, tasks)
    totals = {name: source_facts.shards_before(name) + len(new) for name, new in new_shards.items()}
    tally = _Tally(next(iter(existing.manifest.splits if existing else new_shards)))
    scratch = storage.join(work, "tmp")
    images = _images(plan, tasks, work, tally, source_facts.label_kind)
    with schemas.table_writer(storage.join(options.out, manifest.IMAGES_NAME), schemas.IMAGES, scratch) as write:
        for rows in _row_groups(images):
            tally.add(rows)
            write(rows)
    splits = {
        name: SplitInfo(shards=tuple(new), classes=dict(sorted(tally.classes[name].items())))
        for name, new in new_shards.items()
    }
    counts = _counts(plan, tally, rejects, source_facts.images)
    if existing:
        append.link_shards(existing, options.out, totals)
        splits = append.merge_splits(existing, splits, totals)
        rejects = append.merge_rejects(existing, rejects, source_facts.keys)
        counts = append.merge_counts(existing, counts, rejects)
    _remove_strays(options.out, splits)
    schemas.write_table(storage.join(options.out, manifest.REJECTS_NAME), rejects, scratch)
    tfds_files = _tfds_files(options, splits, plan.labels, tally, source_facts.label_kind)
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
        channels=tally.channels() if options.facts == "all" else None,
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


def _check_shards(out: str, work: str, plan: Plan, tasks: list[ShardTask]) -> dict[str, list[Shard]]:
    """Returns the shards of each split. It reads no byte of them: workers have compared them, see `write_shard`."""
    result: dict[str, list[Shard]] = {split.name: [] for split in plan.splits}
    listed = {split: storage.stat_files(storage.join(out, shards.split_dir(split))) for split in result}
    check = partial(_check_shard, out, work, listed)
    for task, shard in zip(tasks, map_ordered(check, tasks, resume.seal_threads(work)), strict=True):
        result[task.split].append(shard)
    return result


def _check_shard(
    out: str, work: str, listed: Mapping[str, Mapping[str, tuple[int, int | None]]], task: ShardTask
) -> Shard:
    length, crc32c = listed[task.split].get(task.name, (-1, None))
    with contextlib.suppress(FileNotFoundError, ValueError):  # the sidecar is missing or damaged
        sidecar = load_sidecar(work, task)
        if length == sidecar.bytes and crc32c in (None, sidecar.crc32c):
            return Shard(name=task.name, records=sidecar.records, bytes=sidecar.bytes, sha256=sidecar.sha256)
    storage.remove(sidecar_path(work, task))  # so that the next run writes the shard again
    path = shard_path(out, task)
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


class _Tally:
    """Counts and sums of the images of a dataset, for `dataset.json`, without the images.

    Attributes:
      parts: optional parts of records that occur: `objects`, `mask`, `weight`.
      extra: user column -> type of its values.
      classes: split -> class -> number of new images; an image of several classes counts in each.
      normalised: joined reasons of a conversion -> number of new images.
    """

    def __init__(self, split: str) -> None:
        """Starts without images.

        Args:
          split: split whose channels are measured.
        """
        self.parts: set[str] = set()
        self.extra: dict[str, type] = {}
        self.classes: dict[str, Counter[str]] = defaultdict(Counter)
        self.normalised: Counter[str] = Counter()
        self._split = split
        self._pixels, self._sum, self._squares = 0.0, np.zeros(3), np.zeros(3)

    def add(self, images: pa.Table) -> None:
        """Adds `IMAGES` rows, old and new."""
        for item in map(schemas.parse_annotations, pc.unique(images["annotations"]).to_pylist()):
            if item:
                self.parts |= {name for name in _OPTIONAL_PARTS if getattr(item, name) is not None}
        for text in pc.unique(images["extra"]).to_pylist():
            for name, value in schemas.cell(text).items():
                values = value if isinstance(value, list) else [value]
                self.extra[name] = max([self.extra.get(name, int), *map(type, values)], key=EXTRA_TYPES.index)
        self._add_moments(
            images.filter(pc.and_(pc.equal(images["split"], self._split), pc.greater_equal(images["shard"], 0)))
        )

    def add_new(self, split: str, rows: pa.Table, label_kind: str) -> None:
        """Adds the new images of a shard."""
        self.normalised.update(rows.filter(pc.not_equal(rows["normalised"], ""))["normalised"].to_pylist())
        if label_kind == "single":
            self.classes[split].update(rows["label"].to_pylist())
            return
        for item in map(schemas.parse_annotations, rows["annotations"].to_pylist()):
            if item and item.labels:
                self.classes[split].update(item.labels)

    def channels(self) -> ChannelStatistics:
        """Pools the moments of each image into those of all pixels, weighted by pixels.

        With n_i pixels, mean m_i and variance v_i: m = sum(n_i m_i) / n and v = sum(n_i (v_i + m_i^2)) / n - m^2.
        """
        mean = self._sum / self._pixels
        variance = np.maximum(self._squares / self._pixels - mean**2, 0)
        return ChannelStatistics(
            split=self._split,
            mean_rgb=tuple(float(value) for value in mean),
            std_rgb=tuple(float(value) for value in np.sqrt(variance)),
        )

    def _add_moments(self, images: pa.Table) -> None:
        pixels = (images["height"].to_numpy() * images["width"].to_numpy()).astype(np.float64)[:, None]
        mean = schemas.triples(images["mean_rgb"]).astype(np.float64)
        second = schemas.triples(images["var_rgb"]).astype(np.float64) + mean**2
        self._pixels += pixels.sum()
        self._sum += (pixels * mean).sum(0)
        self._squares += (pixels * second).sum(0)


def _tfds_files(
    options: IngestOptions, splits: dict[str, SplitInfo], labels: tuple[str, ...], tally: _Tally, label_kind: str
) -> dict[str, bytes]:
    features = tfds_metadata.describe_features(
        label_kind=label_kind,
        labels=len(labels),
        raw=options.pixels.policy == "raw",
        channel_statistics=options.facts == "all",
        parts=frozenset(tally.parts),
        extra=tally.extra,
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


def _images(plan: Plan, tasks: Sequence[ShardTask], work: str, tally: _Tally, label_kind: str) -> Iterator[pa.Table]:
    """Yields the `IMAGES` rows of a dataset: the old ones, the dropped ones, then shard after shard."""
    if plan.existing:
        yield from schemas.read_images(plan.existing, schemas.IMAGES.names)
    for part in plan.dropped.shards:
        yield _image_rows(part.read(), "", -1, [-1] * part.images)

    def read(task: ShardTask) -> tuple[pa.Table, Sequence[int]]:
        return task.rows.read(), load_sidecar(work, task).offsets

    threads = _ROW_THREADS if storage.is_remote(work) else 1
    for task, (rows, offsets) in zip(tasks, map_ordered(read, tasks, threads), strict=True):
        tally.add_new(task.split, rows, label_kind)
        yield _image_rows(rows, task.split, task.index, offsets)


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the rows of tables as tables of about `_ROW_GROUP` rows, at least one table."""
    pending, count = [schemas.IMAGES.empty_table()], 0
    for table in tables:
        pending.append(table)
        count += len(table)
        if count >= _ROW_GROUP:
            yield pa.concat_tables(pending)
            pending, count = [], 0
    if pending:
        yield pa.concat_tables(pending)


def _image_rows(rows: pa.Table, split: str, shard: int, offsets: Sequence[int]) -> pa.Table:
    count = len(rows)
    columns: dict[str, Any] = {name: rows[name] for name in rows.column_names if name in schemas.IMAGES.names}
    columns["split"] = pa.array([split] * count, pa.string())
    columns["shard"] = pa.array([shard] * count, pa.int64())
    columns["offset"] = pa.array(offsets, pa.int64())
    return pa.table(columns).cast(schemas.IMAGES)


def _counts(plan: Plan, tally: _Tally, rejects: pa.Table, total: int) -> ImageCounts:
    normalised: Counter[str] = Counter()
    for joined, count in tally.normalised.items():
        normalised.update(dict.fromkeys(joined.split("+"), count))
    return ImageCounts(
        found=total,
        written=sum(split.images for split in plan.splits),
        rejects=reason_counts(rejects),
        normalised=dict(normalised.most_common()),
        duplicate_clusters=plan.clusters,
        duplicate_images=plan.cluster_images,
        duplicates_dropped=plan.dropped.images - plan.near_dropped,
        near_clusters=plan.near_clusters,
        near_images=plan.near_images,
        near_dropped=plan.near_dropped,
        near_unsearched=plan.near_unsearched,
        label_conflicts=plan.label_conflicts,
    )
