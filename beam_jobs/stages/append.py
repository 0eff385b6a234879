"""Addition of images to a published dataset: `--append` and `--retry-rejects`.

It builds a new generation with hard links to the old shards and with new shards. No byte of an old shard is read or
written. Old shards get new names, because names contain the number of shards of the split; the new generation replaces
the old one by rename, see `replace`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs import storage
from beam_jobs.common.settings import fields
from beam_jobs.dataset import manifest, schemas, shards
from beam_jobs.dataset.manifest import ImageCounts, Manifest, SplitInfo
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.options import About, IngestOptions
from beam_jobs.rejects import Reject
from beam_jobs.sources import http_fetch
from beam_jobs.stages.replace import dataset_path
from beam_jobs.types import LABEL_KINDS, ImageRef

_SETTINGS = {name: setting for name, setting in fields(IngestOptions).items() if setting.field.scope != "run"}
# Options that must be equal for all images of a dataset, and options whose default is their value in the dataset.
_SAME_OPTIONS = tuple(name for name, setting in _SETTINGS.items() if setting.field.append == "same")
_INHERITED_OPTIONS = tuple(name for name, setting in _SETTINGS.items() if setting.field.append == "kept")
_KEYS_AT_ONCE = 1 << 13
_DIGEST_BYTES = 16
_DIGEST_TYPE = np.dtype(f"S{_DIGEST_BYTES}")  # drops trailing zero bytes, on both sides of a comparison


@dataclass(frozen=True, kw_only=True)
class ExistingDataset:
    """A published dataset to which images are added.

    Attributes:
      directory: directory of the dataset.
      manifest: manifest of the dataset.
      images: paths of the files of its image table.
      rejects: path of its `rejects.parquet`.
    """

    directory: str
    manifest: Manifest
    images: Sequence[str]
    rejects: str

    @functools.cached_property
    def image_keys(self) -> np.ndarray:
        """Sorted digests of the keys of the images, bytes16[images].

        Raises:
          CorruptDataset: the image table is damaged.
        """
        return key_digests(schemas.read_images(self.images, ["key"]))

    @functools.cached_property
    def reject_keys(self) -> np.ndarray:
        """Sorted digests of the keys of the rejects, bytes16[rejects].

        Raises:
          CorruptDataset: the rejects are damaged.
        """
        return key_digests(schemas.read_rejects(self.rejects))

    @property
    def about(self) -> About:
        """Description of the dataset."""
        return About.recorded(self.manifest.options)

    def shard_counts(self) -> dict[str, int]:
        """Returns split -> number of shards."""
        return {name: len(info.shards) for name, info in self.manifest.splits.items()}


def complete_settings(out: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of an ingest that adds images to a dataset, with the options of the dataset as defaults.

    Args:
      out: directory of the dataset.
      settings: nested settings of the user; a partial section is completed from the section of the dataset.

    Raises:
      SourceError, CorruptDataset: there is no valid dataset in `out`.
    """
    options = manifest.load(out).options
    dataset_values = {
        **{name: options[name] for name in (*_SAME_OPTIONS, *_INHERITED_OPTIONS) if name in options},
        "splits": dict(options["splits"]),
    }
    sections = {
        name: {**dataset_values[name], **value}
        for name, value in settings.items()
        if name in dataset_values and _SETTINGS[name].section and isinstance(value, Mapping)
    }
    return {**dataset_values, **settings, **sections}


def check_published(options: IngestOptions) -> None:
    """Raises `OptionError` unless the output contains a dataset to which images can be added."""
    if not manifest.is_published(dataset_path(options.out)):
        mode = "--append" if options.append else "--retry-rejects"
        raise OptionError(f"{options.out} holds no dataset to add to; leave {mode} out to make one")


def load_existing(options: IngestOptions, label_kind: str, recorded_options: dict) -> ExistingDataset:
    """Reads the dataset to which an ingest adds images.

    Args:
      options: options of the ingest.
      label_kind: label kind of the source.
      recorded_options: the options in the form in which `dataset.json` records them.

    Raises:
      OptionError: there is no dataset, or it was made with other options.
      CorruptDataset: its tables cannot be read, or a shard is missing or truncated.
    """
    check_published(options)
    dataset = manifest.load(options.out)
    if dataset.label_kind != label_kind:
        old, new = LABEL_KINDS[dataset.label_kind], LABEL_KINDS[label_kind]
        raise OptionError(f"the images in {options.out} have {old}, the images of the source have {new}")
    for name in _SAME_OPTIONS:
        _check_option(options.out, name, dataset.options.get(name), recorded_options[name])
    _check_shards(options.out, dataset)
    return ExistingDataset(
        directory=options.out,
        manifest=dataset,
        images=dataset.image_paths(options.out),
        rejects=storage.join(options.out, manifest.REJECTS_NAME),
    )


def _check_option(out: str, name: str, old: Any, new: Any) -> None:
    # Shares of splits are relative to one another, so they are compared together.
    if isinstance(old, Mapping) and isinstance(new, Mapping) and name != "splits":
        for inner_name in {**old, **new}:
            _check_option(out, f"{name}.{inner_name}", old.get(inner_name), new.get(inner_name))
    elif old != new:
        raise OptionError(
            f"{out} was made with {name} {old!r}, not {new!r}; omit it, and the value of the dataset applies"
        )


def _check_shards(out: str, dataset: Manifest) -> None:
    """Checks the size of every old shard without reading it, so that no missing or truncated shard is published."""
    for split, info in dataset.splits.items():
        for shard, path in zip(info.shards, dataset.shard_paths(out, split), strict=True):
            try:
                size = storage.size(path)
            except FileNotFoundError as error:
                raise CorruptDataset(f"{path} is missing; write the dataset again, with --overwrite") from error
            if size != shard.bytes:
                raise CorruptDataset(
                    f"{path} has {size} bytes instead of {shard.bytes} as in {manifest.MANIFEST_NAME}; "
                    "write the dataset again, with --overwrite"
                )


def new_entries(
    entries: Iterable[ImageRef | Reject], existing: ExistingDataset, retry: bool
) -> Iterator[ImageRef | Reject]:
    """Yields entries whose key neither an image nor a reject has; with `retry`, those whose key only a reject has.

    Keys are compared without signatures of URLs, because older datasets contain keys with signatures.
    """
    stream = iter(entries)
    while chunk := list(itertools.islice(stream, _KEYS_AT_ONCE)):
        keys = _digests(entry.key for entry in chunk)
        is_new = ~_contains(existing.image_keys, keys) & (_contains(existing.reject_keys, keys) == retry)
        yield from itertools.compress(chunk, is_new)


def key_digests(tables: Iterable[pa.Table]) -> np.ndarray:
    """Returns the sorted digests of the keys in some tables, bytes16[rows]."""
    return np.sort(np.concatenate([np.empty(0, _DIGEST_TYPE), *(_digests(rows["key"].to_pylist()) for rows in tables)]))


def _digests(keys: Iterable[str]) -> np.ndarray:
    """Returns digests of keys without signatures of URLs; with 128 bits, accidental collisions are improbable."""
    texts = (http_fetch.remove_signature(key).encode("utf-8", "surrogatepass") for key in keys)
    return np.fromiter((hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest() for text in texts), _DIGEST_TYPE)


def _contains(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns whether each wanted value is among sorted values, bool[wanted]."""
    return np.searchsorted(values, wanted, "left") < np.searchsorted(values, wanted, "right")


def link_shards(existing: ExistingDataset, out: str, totals: dict[str, int]) -> None:
    """Links the old shards into a new generation, or copies them where hard links are impossible. Idempotent.

    Args:
      existing: the old generation.
      out: directory of the new generation.
      totals: split -> number of shards in the new generation.
    """
    for split, info in existing.manifest.splits.items():
        directory = os.path.join(out, shards.split_dir(split))
        os.makedirs(directory, exist_ok=True)
        for index, shard in enumerate(info.shards):
            source = os.path.join(existing.directory, shards.split_dir(split), shard.name)
            target = os.path.join(directory, shards.shard_name(index, totals[split]))
            with contextlib.suppress(FileNotFoundError):
                os.remove(target)
            try:
                os.link(source, target)
            except OSError:  # the filesystem has no hard links
                shutil.copyfile(source, target)


def merge_splits(existing: ExistingDataset, new: dict[str, SplitInfo], totals: dict[str, int]) -> dict[str, SplitInfo]:
    """Returns the splits of the new generation: the old shards with their new names, then the new shards."""
    merged = {}
    for split, info in existing.manifest.splits.items():
        names = (shards.shard_name(index, totals[split]) for index in range(len(info.shards)))
        old_shards = tuple(replace(shard, name=name) for shard, name in zip(info.shards, names, strict=True))
        classes = Counter(info.classes) + Counter(new[split].classes)
        merged[split] = SplitInfo(shards=old_shards + new[split].shards, classes=dict(sorted(classes.items())))
    return merged


def untried_rejects(existing: ExistingDataset, retried: np.ndarray) -> Iterator[pa.Table]:
    """Yields the rejects of the old generation that are not retried; `retried` has sorted digests of keys."""
    for rows in schemas.read_rejects(existing.rejects):
        yield rows.filter(pa.array(~_contains(retried, _digests(rows["key"].to_pylist()))))


def merge_counts(existing: ExistingDataset, new: ImageCounts) -> ImageCounts:
    """Returns the counts of the new generation.

    Args:
      existing: the old generation.
      new: counts of the addition; its counts of rejects, copies and near duplicates include the old images.
    """
    old = existing.manifest.counts
    return replace(
        new,
        # The sum of all outcomes; `old.found + new.found` would count retried images twice.
        found=new.rejected + old.written + new.written + old.dropped + new.dropped,
        written=old.written + new.written,
        normalised=dict((Counter(old.normalised) + Counter(new.normalised)).most_common()),
        duplicates_dropped=old.duplicates_dropped + new.duplicates_dropped,
        near_dropped=old.near_dropped + new.near_dropped,
        # An addition without a search for near duplicates counts no unsearched images.
        near_unsearched=max(old.near_unsearched, new.near_unsearched),
    )
