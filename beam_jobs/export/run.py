"""Export: a published dataset, all of it or some splits, to another format; memory holds a few records at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from beam_jobs import storage
from beam_jobs.common import system
from beam_jobs.common.system import Progress
from beam_jobs.dataset import manifest, shards
from beam_jobs.dataset.manifest import Manifest, SplitInfo
from beam_jobs.export import descriptions, formats, staging
from beam_jobs.export.formats import ExportedFile, Format
from beam_jobs.export.options import STREAMED, ExportOptions
from beam_jobs.export.staging import EXPORT_NAME
from beam_jobs.storage import disk

# Shows how far it is: takes the stage, what it will have done, and how to ask what it has; see `jobs.Watch`.
Watch = Callable[[str, Progress, Callable[[], Progress]], AbstractContextManager[object]]


def _unwatched(*_: object) -> AbstractContextManager[object]:
    return contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was exported.

    Attributes:
      format: one of `options.FORMATS`.
      digest: of the dataset.
      labels: class names; the index is the label.
      splits: split -> the files of it; of `croissant` none.
    """

    format: str
    digest: str
    labels: tuple[str, ...]
    splits: Mapping[str, tuple[ExportedFile, ...]]

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values, the content of `export.json`."""
        splits = {name: {"files": [asdict(file) for file in files]} for name, files in self.splits.items()}
        return {"format": self.format, "digest": self.digest, "labels": list(self.labels), "splits": splits}


def export(options: ExportOptions, watch: Watch = _unwatched) -> Exported:
    """Exports a dataset. Whatever goes wrong, `out` holds a whole export or is as it was.

    Args:
      options: what, to which format, where to.
      watch: shows how far it is.

    Raises:
      SourceError: there is no published dataset.
      OptionError: it has no such split, `out` cannot be used, or a package is missing.
      CorruptDataset: a shard or a table is damaged.
      DiskError: the disk takes no more.
      FeedlineError: a store takes no more.
    """
    dataset = manifest.load(options.dataset)
    chosen = {name: dataset.split(name) for name in options.splits or dataset.splits}
    if options.to == "croissant":
        with disk.explained("exporting", options.out, kept=False):
            descriptions.write_croissant(options.dataset, dataset, options.out, options.about)
        return _exported(options, dataset, {})
    out = staging.check(options.out)
    with disk.explained("exporting", _parent(out), kept=False):
        if options.to in STREAMED:
            return _stream(options, dataset, chosen, out, watch)
        with staging.staged(out) as stage:
            return _exported(
                options, dataset, descriptions.write_dali_index(options.dataset, dataset, tuple(chosen), stage.path)
            )


def _parent(out: str) -> str:
    """Returns the directory that the export is built in; a store is one place."""
    return out if storage.is_remote(out) else os.path.dirname(out)


def _exported(options: ExportOptions, dataset: Manifest, files: Mapping[str, tuple[ExportedFile, ...]]) -> Exported:
    return Exported(format=options.to, digest=dataset.digest, labels=dataset.labels, splits=files)


def _stream(
    options: ExportOptions, dataset: Manifest, chosen: Mapping[str, SplitInfo], out: str, watch: Watch
) -> Exported:
    form = _format(options.to, options.dataset, dataset)
    total = Progress(sum(info.records for info in chosen.values()), sum(info.bytes for info in chosen.values()))
    disk.check_room(_parent(out), total.bytes, "the export", kept=False)
    system.local_progress.reset()
    with staging.staged(out) as stage:
        with watch("exporting", total, system.local_progress.read):
            files = {
                name: tuple(
                    _write_split(
                        form, name, info, options, formats.read_samples(options.dataset, dataset, name), stage.path
                    )
                )
                for name, info in chosen.items()
            }
        for name, content in form.beside(files).items():
            storage.write_bytes(storage.join(stage.path, name), content)
        exported = _exported(options, dataset, files)
        stage.write_last(EXPORT_NAME, manifest.serialise(exported.to_json()))
    return exported


def _format(name: str, directory: str, dataset: Manifest) -> Format:
    """Returns a format; of all of them, its libraries alone are imported.

    Raises:
      OptionError: a package that it needs is not installed.
    """
    if name == "webdataset":
        return formats.WebDataset(directory, dataset)
    if name == "array_record":
        return formats.ArrayRecord(directory, dataset)
    from beam_jobs.export.parquet import Parquet

    return Parquet(directory, dataset)


def _write_split(
    form: Format, split: str, info: SplitInfo, options: ExportOptions, found: Iterator[formats.Sample], stage: str
) -> Iterator[ExportedFile]:
    size = options.shard_mb
    count = len(info.shards) if size is None else shards.shard_count(info.bytes, info.records, size * 1e6)
    for index, group in itertools.groupby(formats.numbered_samples(found, info, count), key=lambda pair: pair[0]):
        name = form.file_name(split, index, count)
        path = storage.join(stage, name)
        written = 0
        with form.open(path) as shard:
            for _, sample in group:
                try:
                    shard.write(sample)
                except (LookupError, TypeError, ValueError) as error:  # it lacks a feature, or has another in its place
                    raise formats.corrupt_sample(sample, repr(error)) from error
                written += 1
                system.local_progress.add(Progress(1, len(sample.payload), 0))
        yield ExportedFile(name=name, samples=written, bytes=storage.size(path))
