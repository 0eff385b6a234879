"""Export of a published dataset, or some of its splits, to another format, with a few records in memory at a time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from beam_jobs import storage
from beam_jobs.common import system
from beam_jobs.common.system import Progress, Watch, no_watch
from beam_jobs.dataset import manifest, shards
from beam_jobs.dataset.manifest import Manifest, SplitInfo
from beam_jobs.export import descriptions, formats, staging
from beam_jobs.export.formats import ExportedFile, Format
from beam_jobs.export.options import STREAMED, WITH_ABOUT, ExportOptions
from beam_jobs.export.staging import EXPORT_NAME
from beam_jobs.options import About
from beam_jobs.storage import disk


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export.

    Attributes:
      format: one of `options.FORMATS`.
      digest: digest of the dataset.
      labels: class names; the index is the label.
      splits: split -> its files; empty for `croissant`.
    """

    format: str
    digest: str
    labels: tuple[str, ...]
    splits: Mapping[str, tuple[ExportedFile, ...]]

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values, the content of `export.json`."""
        splits = {name: {"files": [asdict(file) for file in files]} for name, files in self.splits.items()}
        return {"format": self.format, "digest": self.digest, "labels": list(self.labels), "splits": splits}


def export(options: ExportOptions, watch: Watch = no_watch) -> Exported:
    """Exports a dataset. After an error, `out` is unchanged; it never contains an incomplete export.

    Raises:
      SourceError: the dataset does not exist.
      OptionError: the dataset does not have a split, `out` cannot be used, or a package is missing.
      CorruptDataset: a shard or a table is damaged.
      DiskError: the disk is full or not writable.
      FeedlineError: an object store cannot be written.
    """
    dataset = manifest.load(options.dataset)
    splits = {name: dataset.split(name) for name in options.splits or dataset.splits}
    overrides = {name: value for name, value in vars(options.about).items() if value}
    about = replace(About.recorded(dataset.options), **overrides) if options.to in WITH_ABOUT else About()
    if options.to == "croissant":
        with disk.explain_errors("exporting", options.out, resumable=False):
            descriptions.write_croissant(options.dataset, dataset, options.out, about)
        return _make_result(options, dataset, {})
    out = staging.check(options.out)
    with disk.explain_errors("exporting", _parent_directory(out), resumable=False):
        if options.to in STREAMED:
            return _export_records(options, dataset, _make_format(options, dataset, about), splits, out, watch)
        with staging.staged(out) as stage:
            index_files = descriptions.write_dali_index(options.dataset, dataset, tuple(splits), stage.path)
            return _make_result(options, dataset, index_files)


def _parent_directory(out: str) -> str:
    """Returns the directory in which the export is built; for an object store, the output itself."""
    return out if storage.is_remote(out) else os.path.dirname(out)


def _make_result(options: ExportOptions, dataset: Manifest, files: Mapping[str, tuple[ExportedFile, ...]]) -> Exported:
    return Exported(format=options.to, digest=dataset.digest, labels=dataset.labels, splits=files)


def _export_records(
    options: ExportOptions, dataset: Manifest, exporter: Format, splits: Mapping[str, SplitInfo], out: str, watch: Watch
) -> Exported:
    total_work = Progress(sum(info.records for info in splits.values()), sum(info.bytes for info in splits.values()))
    disk.check_room(_parent_directory(out), total_work.bytes, "the export", resumable=False)
    system.local_progress.reset()
    with staging.staged(out) as stage:
        with watch("exporting", total_work, system.local_progress.read):
            files = {split: tuple(_write_split(exporter, split, dataset, options, stage.path)) for split in splits}
        for name, content in exporter.metadata_files(files).items():
            storage.write_bytes(storage.join(stage.path, name), content)
        exported = _make_result(options, dataset, files)
        stage.write_last(EXPORT_NAME, manifest.serialise(exported.to_json()))
    return exported


def _make_format(options: ExportOptions, dataset: Manifest, about: About) -> Format:
    """Returns a format; only its own libraries are imported.

    Raises:
      OptionError: a required package is not installed.
    """
    if options.to == "webdataset":
        return formats.WebDataset(options.dataset, dataset)
    if options.to == "array_record":
        return formats.ArrayRecord(options.dataset, dataset)
    from beam_jobs.export.parquet import Parquet

    return Parquet(options.dataset, dataset, about)


def _write_split(
    exporter: Format, split: str, dataset: Manifest, options: ExportOptions, directory: str
) -> Iterator[ExportedFile]:
    """Writes the files of a split into a directory; yields each when it is complete."""
    info, shard_mb = dataset.split(split), options.shard_mb
    samples = formats.read_samples(options.dataset, dataset, split)
    count = len(info.shards) if shard_mb is None else shards.shard_count(info.bytes, info.records, shard_mb * 1e6)
    for index, numbered in itertools.groupby(formats.numbered_samples(samples, info, count), key=lambda pair: pair[0]):
        name = exporter.file_name(split, index, count)
        path = storage.join(directory, name)
        records = 0
        with exporter.open(path) as open_file:
            for _, sample in numbered:
                try:
                    open_file.write(sample)
                except (LookupError, TypeError, ValueError) as error:  # a feature is missing or of another type
                    raise formats.corrupt_sample(sample, repr(error)) from error
                records += 1
                system.local_progress.add(Progress(1, len(sample.payload), 0))
        yield ExportedFile(name=name, samples=records, bytes=storage.size(path))
