"""Views of datasets and TFRecord files, for a terminal and as JSON, and the files that a path stands for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from beam_jobs import storage
from beam_jobs.common.strings import name_list, plural, some
from beam_jobs.dataset import manifest
from beam_jobs.dataset.lookup import find_record, record_lengths
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, FeedlineError, SourceError, os_errors_as
from beam_jobs.inspect.records import is_tfrecord
from beam_jobs.inspect.summary import (
    FeatureRoles,
    FeatureSummary,
    FileSummary,
    detect_roles,
    shown_name,
    shown_value,
    size_statistics,
    summarise,
)
from beam_jobs.sources import containers

_NAME_MARK = "tfrecord"  # in the names of nearly all TFRecord files
_MAX_OPENED = 50  # files without the mark that are opened to find out whether a directory has TFRecord files


def find_files(path: str) -> list[str]:
    """Returns the TFRecord files that a path stands for, sorted by name.

    Below a directory, the files with `tfrecord` in their name are returned, or all files when no name has it; names
    that start with `.` or `_` are skipped.

    Args:
      path: path of a file or a directory, or a pattern.

    Raises:
      SourceError: there is no such file, or the directory cannot be listed.
    """
    if containers.is_pattern(path):
        return [container.path for container in containers.find(path)]
    with os_errors_as(SourceError, f"{path} cannot be read"):
        if not containers.is_directory(path):
            return [path]
        files = _remote_files(path) if storage.is_remote(path) else [file.path for file in containers.list_below(path)]
    marked_files = [file for file in files if _NAME_MARK in os.path.basename(file).lower()]
    if not marked_files and not any(map(is_tfrecord, files[:_MAX_OPENED])):
        raise SourceError(f"{path} holds neither dataset.json nor a TFRecord file; give the path of one of them")
    return marked_files or files


def name_below(file: str, path: str) -> str:
    """Returns the name of a file of `find_files`, relative to the path that was searched."""
    return file.removeprefix(path.rstrip("/") + "/") if file != path else os.path.basename(file)


def _remote_files(path: str) -> list[str]:
    names = sorted(name for name, *_ in storage.list_objects(path))
    files = [storage.join(path, name) for name in names if not any(p[:1] in "._" for p in name.split("/") if p)]
    if not files:
        raise SourceError(f"{path} cannot be read: there is no such file, and none below it")
    return files


FEATURE_COLUMNS = ("feature", "kind", "values", "records", "holds")
FILE_COLUMNS = ("file", "records", "bytes", "compression")
_SHOWN_FILES = 20


@dataclass(frozen=True, kw_only=True)
class View:
    """The information to show about a path.

    Attributes:
      headline: a line with counts; empty when they are in `properties`.
      properties: name and value of each property of all the files together.
      features: a row of text for each feature, with the columns `feature_columns`.
      feature_columns: names of the columns of `features`.
      features_of: names of the files from which `features` come; empty for all files.
      files: name, records, bytes and compression of each file, as text; empty for a single file.
      records: the records to show, each as feature name -> values.
      roles: roles of the features.
      values: the view as plain JSON values.
      errors: the errors of files that were not read completely.
    """

    headline: str = ""
    properties: Sequence[tuple[str, str]] = ()
    features: Sequence[tuple[str, ...]] = ()
    feature_columns: Sequence[str] = FEATURE_COLUMNS
    features_of: str = ""
    files: Sequence[tuple[str, ...]] = ()
    records: Sequence[dict[str, list]]
    roles: FeatureRoles = field(default_factory=FeatureRoles)
    values: Mapping[str, Any]
    errors: Sequence[FeedlineError] = field(default_factory=tuple)


def view_key(directory: str, key: str) -> View:
    """Returns the view of an image of a dataset; raises the errors of `find_record`."""
    row, values = find_record(directory, key)
    position = f"{row['split']} shard {row['shard']} offset {row['offset']:,}"
    json_values = {"row": row, "features": _shown_values(values)}
    return View(headline=position, records=[values], roles=detect_roles(values), values=json_values)


def view_dataset(directory: str, shown: int) -> View:
    """Returns the view of a published dataset: its manifest, and the features of the shards with the first records.

    Args:
      directory: directory of the dataset.
      shown: number of first records to show.

    Raises:
      SourceError: the directory is not a dataset.
      CorruptDataset: `dataset.json` or the image table is damaged, or all records are damaged.
    """
    dataset = manifest.load(directory)
    sizes = size_statistics(record_lengths(directory, dataset))
    paths = list(_first_shards(directory, dataset, shown))
    summary = summarise(paths, shown)
    if summary.errors and not summary.records:
        raise summary.errors[0]
    roles = detect_roles(summary.features)
    properties = [("digest", dataset.digest), ("classes", name_list(dataset.labels))]
    for name, info in dataset.splits.items():
        counts = f"{plural(info.records, 'image')}, {plural(len(info.shards), 'shard')}, {info.bytes:,} bytes"
        properties.append((name, counts))
    properties += _size_properties(sizes)
    return View(
        properties=properties,
        features=_feature_rows(summary, roles),
        features_of=some([name_below(path, directory) for path in paths]),
        records=summary.first,
        roles=roles,
        values=dataset.to_json(),
        errors=summary.errors,
    )


def _first_shards(directory: str, dataset: Manifest, shown: int) -> Iterator[str]:
    """Yields paths of shards, at least one, until they have `shown` records."""
    records = 0
    for name, split in dataset.splits.items():
        for path, shard in zip(dataset.shard_paths(directory, name), split.shards, strict=True):
            yield path
            records += shard.records
            if records >= shown:
                return


def view_files(path: str, shown: int) -> View:
    """Returns the view of a TFRecord file, or of all files of a directory or a pattern.

    Args:
      path: path of a file or a directory, or a pattern.
      shown: number of first records to show.

    Raises:
      SourceError: there is no file, or no file can be read.
      CorruptDataset: a file is damaged, and no file has an intact record.
    """
    paths = find_files(path)
    summary = summarise(paths, shown)
    if summary.errors and not summary.records:
        raise summary.errors[0]
    roles = detect_roles(summary.features)
    sizes = {file: _size(file) for file in paths}
    subject = f"records in {len(paths):,} files" if len(paths) > 1 else "records"
    total = f"{sum(sizes.values()):,} bytes"
    rows = [{**_file_json(one), "file": name_below(one.path, path), "bytes": sizes[one.path]} for one in summary.files]
    return View(
        headline=f"{summary.records:,} {subject}, {total}, compression {summary.compression}",
        properties=[*_size_properties(summary.sizes), *_remarks(summary), *_role_properties(roles)],
        features=_feature_rows(summary, roles),
        files=_file_rows(rows) if len(paths) > 1 else (),
        records=summary.first,
        roles=roles,
        values={
            "path": path,
            **_totals(summary),
            "bytes": sum(sizes.values()),
            "guess": _roles_json(roles),
            "features": {name: feature.to_json() for name, feature in sorted(summary.features.items())},
            "files": rows,
            "first": [_shown_values(values) for values in summary.first],
        },
        errors=summary.errors,
    )


def damage_error(view: View) -> CorruptDataset | None:
    """Returns an error about the files that were not read completely; None if all files were."""
    if not view.errors:
        return None
    more = f"; and {len(view.errors) - 1} more files are damaged" if len(view.errors) > 1 else ""
    return CorruptDataset(f"{view.errors[0]}{more}")


def _totals(summary: FileSummary) -> Mapping[str, Any]:
    return {
        "compression": summary.compression,
        "records": summary.records,
        "payload_bytes": summary.payload_bytes,
        "record_bytes": summary.sizes or None,
        "no_examples": summary.unreadable,
        "too_long": summary.long,
    }


def _size(path: str) -> int:
    try:
        return storage.size(path)
    except OSError:  # the file was removed after it was read
        return 0


def _size_properties(sizes: Mapping[str, float]) -> list[tuple[str, str]]:
    if not sizes:
        return []
    return [("record", f"min {sizes['min']:,}, median {sizes['median']:,.0f}, max {sizes['max']:,} bytes")]


def _remarks(summary: FileSummary) -> list[tuple[str, str]]:
    remarks = []
    if summary.unreadable:
        remarks.append(f"{summary.unreadable:,} records are not tf.train.Example")
    if summary.long:
        remarks.append(f"{summary.long:,} records are over 64 MiB and were only checked")
    if summary.left_out:
        remarks.append(f"{summary.left_out:,} records are not shown: the records before them take 256 MiB")
    return [("remark", line) for line in remarks]


def _role_properties(roles: FeatureRoles) -> list[tuple[str, str]]:
    names_by_role = (("image", roles.image), ("label", roles.labels), ("key", roles.keys))
    looks_like = roles.looks_like or "unknown: no feature has a known name of an image"
    return [("looks like", looks_like), *((name, ", ".join(features)) for name, features in names_by_role if features)]


def _feature_rows(summary: FileSummary, roles: FeatureRoles) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, feature in sorted(summary.features.items()):
        lengths = str(feature.least) if feature.least == feature.most else f"{feature.least}-{feature.most}"
        holds = ", ".join(filter(None, (roles.role_of(name), *_ranges_and_formats(feature))))
        rows.append((shown_name(name), feature.kind, lengths, f"{feature.records:,}", holds))
    return rows


def _ranges_and_formats(feature: FeatureSummary) -> Iterator[str]:
    """Yields the range of the numbers of a feature, and the image formats of its bytes."""
    if feature.low is not None:
        yield f"{feature.low:.6g}" if feature.low == feature.high else f"{feature.low:.6g} to {feature.high:.6g}"
    yield from (f"{count:,} {name}" for name, count in sorted(feature.formats.items()))


def _file_rows(files: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    # When rows are limited, damaged files take precedence; the order of the files stays.
    damaged = [index for index, file in enumerate(files) if file["error"]][:_SHOWN_FILES]
    others = [index for index, file in enumerate(files) if not file["error"]][: _SHOWN_FILES - len(damaged)]
    rows: list[tuple[str, ...]] = []
    for index in sorted(damaged + others):
        file = files[index]
        state = "damaged" if file["error"] else file["compression"]
        rows.append((file["file"], f"{file['records']:,}", f"{file['bytes']:,}", state))
    omitted = len(files) - len(rows)
    return [*rows, (f"and {omitted:,} more", "", "", "")] if omitted else rows


def _file_json(file: Any) -> dict[str, Any]:
    return {**vars(file), "error": str(file.error) if file.error else ""}


def _roles_json(roles: FeatureRoles) -> dict[str, Any]:
    image, key = (names[0] if names else "" for names in (roles.image, roles.keys))
    return {"looks_like": roles.looks_like, "image": image, "labels": list(roles.labels), "key": key}


def _shown_values(values: Mapping[str, list]) -> dict[str, str]:
    return {name: shown_value(feature_values) for name, feature_values in sorted(values.items())}
