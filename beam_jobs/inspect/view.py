"""What is shown of a path, and which files it stands for: the same on a terminal and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from beam_jobs import storage
from beam_jobs.common.strings import listed, plural, some
from beam_jobs.dataset import manifest
from beam_jobs.dataset.lookup import find_record, record_lengths
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, FeedlineError, SourceError
from beam_jobs.inspect.records import is_tfrecord
from beam_jobs.inspect.summary import (
    FeatureRoles,
    FeatureSummary,
    FileSummary,
    roles_of,
    shown_name,
    shown_value,
    sizes_of,
    summarise,
)
from beam_jobs.sources import containers

_MARK = "tfrecord"  # in the names of nearly all such files
_TRIED = 50  # files without the mark, until a directory is taken for one of something else


def find_files(path: str) -> list[str]:
    """Returns the TFRecord files that a path stands for, in the order of their names.

    Below a directory those count whose name holds `tfrecord`, or all when there is none such; files and directories
    whose name begins with `.` or `_` are passed over.

    Args:
      path: of a file or a directory, or a pattern.

    Raises:
      SourceError: there is none, or it cannot be listed.
    """
    if containers.is_pattern(path):
        return [container.path for container in containers.find(path)]
    try:
        if not (os.path.isdir(path) or (storage.is_remote(path) and not storage.exists(path))):
            return [path]
        found = _remote(path) if storage.is_remote(path) else [one.path for one in containers.below(path)]
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    marked = [one for one in found if _MARK in os.path.basename(one).lower()]
    if not marked and not any(map(is_tfrecord, found[:_TRIED])):
        raise SourceError(f"{path} holds neither dataset.json nor a TFRecord file; name such a file")
    return marked or found


def name_below(file: str, path: str) -> str:
    """Returns what to call a file that `find_files` found: relative to the directory that was given."""
    return file.removeprefix(path.rstrip("/") + "/") if file != path else os.path.basename(file)


def _remote(path: str) -> list[str]:
    names = sorted(name for name, _, _ in storage.walk_files(path))
    found = [storage.join(path, name) for name in names if not any(p[:1] in "._" for p in name.split("/") if p)]
    if not found:
        raise SourceError(f"{path} cannot be read: there is no such file, and none below it")
    return found


FEATURE_COLUMNS = ("feature", "kind", "values", "records", "holds")
FILE_COLUMNS = ("file", "records", "bytes", "compression")

_SHOWN_FILES = 20


@dataclass(frozen=True, kw_only=True)
class View:
    """What is shown of a path.

    Attributes:
      headline: counts in a line; empty where `facts` say them.
      facts: name and value of what is known of the whole.
      features: what is known of each feature, as text, under `feature_columns`; empty for none.
      feature_columns: what the parts of `features` are.
      features_of: what `features` were seen in; empty for all of it.
      files: name, records, bytes and compression of each file, as text; empty for one file.
      records: those that are shown, feature name -> values.
      roles: of the features.
      values: all of it as plain JSON values.
      errors: why files were not read to their end.
    """

    headline: str = ""
    facts: Sequence[tuple[str, str]] = ()
    features: Sequence[tuple[str, ...]] = ()
    feature_columns: Sequence[str] = FEATURE_COLUMNS
    features_of: str = ""
    files: Sequence[tuple[str, ...]] = ()
    records: Sequence[dict[str, list]]
    roles: FeatureRoles = field(default_factory=FeatureRoles)
    values: Mapping[str, Any]
    errors: Sequence[FeedlineError] = field(default_factory=tuple)


def view_key(directory: str, key: str) -> View:
    """Looks at one image of a dataset; raises what `find_record` does."""
    row, values = find_record(directory, key)
    place = f"{row['split']} shard {row['shard']} offset {row['offset']:,}"
    plain = {"row": row, "features": _shown(values)}
    return View(headline=place, records=[values], roles=roles_of(values), values=plain)


def view_dataset(directory: str, shown: int) -> View:
    """Looks at a published dataset: what its manifest says, and the features of as many shards as have the records.

    Args:
      directory: of the dataset.
      shown: how many of the first records to show.

    Raises:
      SourceError: the directory is not a dataset.
      CorruptDataset: `dataset.json` or `images.parquet` is damaged, or not one of the records is sound.
    """
    dataset = manifest.load(directory)
    sizes = sizes_of(record_lengths(directory, dataset))
    paths = list(_first_shards(directory, dataset, shown))
    summary = summarise(paths, shown)
    if summary.errors and not summary.records:
        raise summary.errors[0]
    roles = roles_of(summary.features)
    facts = [("digest", dataset.digest), ("classes", listed(dataset.labels))]
    for name, info in dataset.splits.items():
        facts.append(
            (name, f"{plural(info.records, 'image')}, {plural(len(info.shards), 'shard')}, {info.bytes:,} bytes")
        )
    facts += _size_facts(sizes)
    return View(
        facts=facts,
        features=_feature_rows(summary, roles),
        features_of=some([name_below(path, directory) for path in paths]),
        records=summary.first,
        roles=roles,
        values=dataset.to_json(),
        errors=summary.errors,
    )


def _first_shards(directory: str, dataset: Manifest, shown: int) -> Iterator[str]:
    """Yields the first shard, and more until there are so many records."""
    records = 0
    for name, split in dataset.splits.items():
        for path, shard in zip(dataset.shard_paths(directory, name), split.shards, strict=True):
            yield path
            records += shard.records
            if records >= shown:
                return


def view_files(path: str, shown: int) -> View:
    """Looks at a TFRecord file, or all that a directory or a pattern stands for.

    Args:
      path: of them.
      shown: how many of the first records to show.

    Raises:
      SourceError: there is none, or none can be read.
      CorruptDataset: not one sound record is in them, and one is damaged.
    """
    paths = find_files(path)
    summary = summarise(paths, shown)
    if summary.errors and not summary.records:
        raise summary.errors[0]
    roles = roles_of(summary.features)
    size = {one: _size(one) for one in paths}
    many = f"records in {len(paths):,} files" if len(paths) > 1 else "records"
    total = f"{sum(size.values()):,} bytes"
    plain = [{**_file_json(one), "file": name_below(one.path, path), "bytes": size[one.path]} for one in summary.files]
    return View(
        headline=f"{summary.records:,} {many}, {total}, compression {summary.compression}",
        facts=[*_size_facts(summary.sizes), *_remarks(summary), *_role_facts(roles)],
        features=_feature_rows(summary, roles),
        files=_file_rows(plain) if len(paths) > 1 else (),
        records=summary.first,
        roles=roles,
        values={
            "path": path,
            **_totals(summary),
            "bytes": sum(size.values()),
            "guess": _roles_json(roles),
            "features": {name: one.to_json() for name, one in sorted(summary.features.items())},
            "files": plain,
            "first": [_shown(values) for values in summary.first],
        },
        errors=summary.errors,
    )


def damage(view: View) -> CorruptDataset | None:
    """Returns the one line about files that were not read to their end; None when all were."""
    if not view.errors:
        return None
    more = f"; and {len(view.errors) - 1} more files are damaged" if len(view.errors) > 1 else ""
    return CorruptDataset(f"{view.errors[0]}{more}")


def _totals(summary: FileSummary) -> Mapping[str, Any]:
    """Returns the counts of a summary as plain JSON values."""
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
    except OSError:  # it was there when it was read
        return 0


def _size_facts(sizes: Mapping[str, float]) -> list[tuple[str, str]]:
    if not sizes:
        return []
    return [("record", f"min {sizes['min']:,}, median {sizes['median']:,.0f}, max {sizes['max']:,} bytes")]


def _remarks(summary: FileSummary) -> list[tuple[str, str]]:
    remarks = []
    if summary.unreadable:
        remarks.append(f"{summary.unreadable:,} records are no tf.train.Example")
    if summary.long:
        remarks.append(f"{summary.long:,} records are over 64 MiB and were only checked")
    if summary.left_out:
        remarks.append(f"{summary.left_out:,} records are not shown: those before take 256 MiB")
    return [("remark", line) for line in remarks]


def _role_facts(roles: FeatureRoles) -> list[tuple[str, str]]:
    facts = (("image", roles.image), ("label", roles.labels), ("key", roles.keys))
    looks_like = roles.looks_like or "unknown: no feature has a known name of an image"
    return [("looks like", looks_like), *((name, ", ".join(features)) for name, features in facts if features)]


def _feature_rows(summary: FileSummary, roles: FeatureRoles) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, one in sorted(summary.features.items()):
        lengths = str(one.least) if one.least == one.most else f"{one.least}-{one.most}"
        holds = ", ".join(filter(None, (roles.of(name), *_seen(one))))
        rows.append((shown_name(name), one.kind, lengths, f"{one.records:,}", holds))
    return rows


def _seen(one: FeatureSummary) -> Iterator[str]:
    """Yields the range of the numbers of a feature, and the image formats of its bytes."""
    if one.low is not None:
        yield f"{one.low:.6g}" if one.low == one.high else f"{one.low:.6g} to {one.high:.6g}"
    yield from (f"{count:,} {name}" for name, count in sorted(one.formats.items()))


def _file_rows(files: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    # Damaged ones first to be shown, each where it belongs.
    damaged = [place for place, one in enumerate(files) if one["error"]][:_SHOWN_FILES]
    others = [place for place, one in enumerate(files) if not one["error"]][: _SHOWN_FILES - len(damaged)]
    rows: list[tuple[str, ...]] = []
    for place in sorted(damaged + others):
        one = files[place]
        state = "damaged" if one["error"] else one["compression"]
        rows.append((one["file"], f"{one['records']:,}", f"{one['bytes']:,}", state))
    left = len(files) - len(rows)
    return [*rows, (f"and {left:,} more", "", "", "")] if left else rows


def _file_json(one: Any) -> dict[str, Any]:
    return {**vars(one), "error": str(one.error) if one.error else ""}


def _roles_json(roles: FeatureRoles) -> dict[str, Any]:
    image, key = (names[0] if names else "" for names in (roles.image, roles.keys))
    return {"looks_like": roles.looks_like, "image": image, "labels": list(roles.labels), "key": key}


def _shown(values: Mapping[str, list]) -> dict[str, str]:
    return {name: shown_value(found) for name, found in sorted(values.items())}
