"""Publication: compares the listed shards with their sidecars, writes the tables, and `dataset.json` last."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections import Counter
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
from beam_jobs.dataset.manifest import ImageCounts, Manifest, Remarks, Shard, SplitInfo, TablePart
from beam_jobs.errors import CorruptDataset, DatasetChanged
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import Plan
from beam_jobs.stages import append, reject_table, resume
from beam_jobs.stages.append import ExistingDataset
from beam_jobs.stages.summary import Summary
from beam_jobs.stages.write import ShardTask, Sidecar, load_sidecar, shard_path, sidecar_path

# Packages whose versions affect the facts or the bytes of re-encoded images.
_PRODUCERS = ("feedline", "tensorflow", "pillow", "opencv-python-headless", "pycocotools")


@dataclass(frozen=True, kw_only=True)
class RunProperties:
    """Properties of the source and the run that are not in the plan.

    Attributes:
      images: number of entries, including rejects.
      label_kind: one of `types.LABEL_KINDS`.
      work: work directory, with the sidecars.
      spill: local directory for rows that exceed the memory; the directory of temporary files when empty.
      existing: the dataset to which the images are added; None for a new dataset.
      keys: sorted digests of the keys of retried entries; empty unless rejects were retried.
      remarks: remarks of the run.
    """

    images: int
    label_kind: str
    work: str
    spill: str = ""
    existing: ExistingDataset | None = None
    keys: np.ndarray = field(default_factory=lambda: append.key_digests(()))
    remarks: Remarks = field(default_factory=Remarks)

    def shards_before(self, split: str) -> int:
        """Returns the number of existing shards of a split."""
        return self.existing.shard_counts().get(split, 0) if self.existing else 0


def producer() -> dict[str, str]:
    """Returns package -> version of the packages that affect the output."""
    return {name: metadata.version(name) for name in _PRODUCERS}


def publish(
    options: IngestOptions, plan: Plan, tasks: list[ShardTask], rejects: Iterable[pa.Table], run: RunProperties
) -> Manifest:
    """Publishes written shards as a dataset, and returns its manifest. Idempotent; never replaces a `dataset.json`.

    Args:
      options: options of the ingest.
      plan: the plan of the written shards.
      tasks: the written shards.
      rejects: `REJECTS` rows of all stages, in any order.
      run: properties of the source, and the existing dataset.

    Raises:
      CorruptDataset: a shard or its part of the image table does not match the sidecar.
      DatasetChanged: another process published a dataset in the output during the run.
      FileNotFoundError: another process removed files of the output; nothing is published.
    """
    check_unpublished(options.out)
    existing, work = run.existing, run.work
    written_splits = _read_sidecars(options.out, work, plan, tasks)
    shard_totals = {name: run.shards_before(name) + len(written.shards) for name, written in written_splits.items()}
    first_split = next(iter(existing.manifest.splits if existing else written_splits))
    scratch = storage.join(work, "tmp")
    parts, first_summary, total_summary = _write_other_rows(plan, options.out, scratch, first_split, run.label_kind)
    total_summary.add(first_summary)
    first_summary.add(written_splits[first_split].summary)
    for written in written_splits.values():
        parts += written.parts
        total_summary.add(written.summary)
    splits = {
        name: SplitInfo(shards=tuple(written.shards), classes=dict(sorted(written.summary.classes.items())))
        for name, written in written_splits.items()
    }
    normalised = sum((written.summary.normalised for written in written_splits.values()), Counter())
    if existing:
        rejects = itertools.chain(append.untried_rejects(existing, run.keys), rejects)
    path = storage.join(options.out, manifest.REJECTS_NAME)
    reasons = reject_table.write_sorted(path, rejects, scratch, run.spill)
    counts = _counts(plan, normalised, reasons, run.images)
    if existing:
        append.link_shards(existing, options.out, shard_totals)
        splits = append.merge_splits(existing, splits, shard_totals)
        counts = append.merge_counts(existing, counts)
    _remove_unplanned_files(options.out, splits, parts)
    tfds_files = _tfds_files(options, splits, plan.labels, total_summary, run.label_kind)
    for name, content in tfds_files.items():
        storage.write_bytes(storage.join(options.out, name), content, scratch)
    dataset = Manifest(
        source=_source_name(options.source),
        options=dataset_options(options),
        options_digest=options.digest(),
        label_kind=run.label_kind,
        labels=plan.labels,
        splits=splits,
        counts=counts,
        channels=first_summary.channels(first_split) if options.facts == "all" else None,
        producer=producer(),
        images=tuple(parts),
        tables={
            name: storage.digest(storage.join(options.out, name))[1]
            for name in (manifest.REJECTS_NAME, *sorted(tfds_files))
        },
        remarks=run.remarks,
    )
    if not manifest.create(dataset, options.out, scratch):
        raise _changed_error(options.out)
    _check_complete(dataset, options.out)
    return dataset


def check_unpublished(out: str) -> None:
    """Raises `DatasetChanged` if another process published a dataset in an output that had none."""
    if manifest.is_published(out):
        raise _changed_error(out)


def _changed_error(out: str) -> DatasetChanged:
    return DatasetChanged(f"{out} holds a dataset that was published since this run began; choose another --out")


def _source_name(source: str) -> str:
    """Returns the last part of a local path, because its directory is private, or the complete URL."""
    return source if storage.is_remote(source) else os.path.basename(os.path.abspath(source))


def dataset_options(options: IngestOptions) -> dict[str, Any]:
    """Returns the options that determine a dataset, in the form in which `dataset.json` records them."""
    settings = fields(type(options))
    return {name: value for name, value in options.to_json().items() if settings[name].field.scope != "run"}


@dataclass(kw_only=True)
class _WrittenSplit:
    """Written parts of a split: new shards, their parts of the image table, and a summary of the images."""

    shards: list[Shard] = field(default_factory=list)
    parts: list[TablePart] = field(default_factory=list)
    summary: Summary = field(default_factory=Summary)


def _read_sidecars(out: str, work: str, plan: Plan, tasks: list[ShardTask]) -> dict[str, _WrittenSplit]:
    """Returns the written parts of each split. It does not read these files, which workers have compared."""
    written_splits = {split.name: _WrittenSplit() for split in plan.splits}
    file_stats = {
        storage.join(out, folder, name): stat
        for folder in (manifest.IMAGES_DIR, *map(shards.split_dir, written_splits))
        for name, stat in storage.stat_files(storage.join(out, folder)).items()
    }
    read_sidecar = partial(_read_sidecar, out, work, file_stats)
    for task, sidecar in zip(tasks, map_ordered(read_sidecar, tasks, resume.seal_threads(work)), strict=True):
        shard, part = sidecar.shard, sidecar.part
        written = written_splits[task.split]
        written.shards.append(Shard(name=task.name, records=sidecar.records, bytes=shard.bytes, sha256=shard.sha256))
        written.parts.append(
            TablePart(
                name=task.part_name,
                rows=sidecar.records,
                bytes=part.bytes,
                sha256=part.sha256,
                order_hashes=sidecar.order_hashes,
            )
        )
        written.summary.add(Summary.from_json(sidecar.summary))
    return written_splits


def _read_sidecar(out: str, work: str, file_stats: Mapping[str, tuple[int, int | None]], task: ShardTask) -> Sidecar:
    path = shard_path(out, task)  # for the error
    with contextlib.suppress(FileNotFoundError, ValueError):  # the sidecar is missing or damaged
        sidecar = load_sidecar(work, task)
        for file, path in sidecar.files(out, task):
            length, crc32c = file_stats.get(path, (-1, None))
            if length != file.bytes or crc32c not in (None, file.crc32c):
                break
        else:
            return sidecar
    storage.remove(sidecar_path(work, task))  # so that the next run writes the shard again
    raise CorruptDataset(f"{path} differs from the data written to it; check the disk, then run the ingest again")


def _check_complete(dataset: Manifest, out: str) -> None:
    """Removes the manifest if files were removed during publication: writing recreates removed directories.

    Raises:
      FileNotFoundError: a file of the dataset is missing.
    """
    if storage.is_remote(out):  # each check would be a request, and an accidental partial removal is unlikely
        return
    paths = [path for split in dataset.splits for path in dataset.shard_paths(out, split)]
    for path in [*paths, *(storage.join(out, name) for name in dataset.table_digests)]:
        if not os.path.isfile(path):
            storage.remove(storage.join(out, manifest.MANIFEST_NAME))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _tfds_files(
    options: IngestOptions, splits: dict[str, SplitInfo], labels: tuple[str, ...], summary: Summary, label_kind: str
) -> dict[str, bytes]:
    features = tfds_metadata.describe_features(
        label_kind=label_kind,
        labels=len(labels),
        raw=options.pixels.policy == "raw",
        channel_statistics=options.facts == "all",
        parts=frozenset(summary.parts),
        extra=summary.extra_types,
    )
    return tfds_metadata.files(splits, labels, features, _source_name(options.source))


def _remove_unplanned_files(out: str, splits: dict[str, SplitInfo], parts: Sequence[TablePart]) -> None:
    # TFX reads `Split-NAME/*`, so it would also read the shards of an abandoned plan.
    planned_names = {shards.split_dir(split): {shard.name for shard in info.shards} for split, info in splits.items()}
    planned_names[manifest.IMAGES_DIR] = {part.name for part in parts}
    for folder in storage.list_dirs(out):
        directory = storage.join(out, folder)
        if folder in planned_names:
            for name in storage.list_files(directory):
                if name not in planned_names[folder]:
                    storage.remove(storage.join(directory, name))
        elif folder.startswith(shards.SPLIT_PREFIX):
            storage.remove_tree(directory)


def _write_other_rows(
    plan: Plan, out: str, scratch: str, split: str, label_kind: str
) -> tuple[list[TablePart], Summary, Summary]:
    """Writes the rows of old images and of dropped images, which no worker writes.

    Returns:
      the files of the rows, a summary of the old images of `split`, and a summary of all other images.
    """
    tables_by_kind: dict[str, Iterable[pa.Table]] = {}
    if plan.existing:
        tables_by_kind["existing"] = schemas.read_images([plan.existing], schemas.IMAGES.names)
    if dropped := plan.dropped.shards if plan.dropped.images else ():
        tables_by_kind["dropped"] = (schemas.image_rows(shard.read(), "", -1, [-1] * shard.images) for shard in dropped)
    parts, split_summary, other_summary = [], Summary(), Summary()

    def add_to_summary(group: pa.Table) -> pa.Table:
        is_in_split = pc.and_(pc.equal(group["split"], split), pc.greater_equal(group["shard"], 0))
        split_summary.add(Summary.measure(group.filter(is_in_split), label_kind))
        other_summary.add(Summary.measure(group.filter(pc.invert(is_in_split)), label_kind))
        return group

    for kind, tables in tables_by_kind.items():
        parts.append(write_part(out, f"part-{kind}.parquet", map(add_to_summary, row_groups(tables)), scratch))
    return parts, split_summary, other_summary


def write_part(out: str, name: str, groups: Iterable[pa.Table], scratch: str = "") -> TablePart:
    """Writes row groups of `IMAGES` rows as a file of the image table of a dataset; see `schemas.write_table`."""
    path, rows = storage.join(out, manifest.IMAGES_DIR, name), 0
    with schemas.table_writer(path, schemas.IMAGES, scratch) as write:
        for group in groups:
            write(group)
            rows += len(group)
    size, sha256 = storage.digest(path)
    return TablePart(name=name, rows=rows, bytes=size, sha256=sha256)


def row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields `IMAGES` rows in tables of about `IMAGE_ROWS` rows, at least one table."""
    pending, count = [schemas.IMAGES.empty_table()], 0
    for table in tables:
        pending.append(table)
        count += len(table)
        if count >= schemas.IMAGE_ROWS:
            yield pa.concat_tables(pending)
            pending, count = [], 0
    if pending:
        yield pa.concat_tables(pending)


def _counts(plan: Plan, joined_counts: Mapping[str, int], rejects: Mapping[str, int], entries: int) -> ImageCounts:
    normalised: Counter[str] = Counter()
    for joined_reasons, count in joined_counts.items():
        normalised.update(dict.fromkeys(joined_reasons.split("+"), count))
    return ImageCounts(
        found=entries,
        written=sum(split.images for split in plan.splits),
        rejects=dict(rejects),
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
