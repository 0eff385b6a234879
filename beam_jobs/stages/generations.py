"""Replacing a dataset: the new generation is built beside the old one and takes its place by rename.

For a dataset in `DIR/NAME`:

    DIR/NAME                    what readers see
    DIR/.NAME.feedline-next     the new generation while it is built; it stays when the build is interrupted
    DIR/.NAME.feedline-old      the old generation, between the two renames

Names that are given to nothing else: what bears them is removed without a question, and a `NAME.old` is a user's
backup. They are the same in every run, so that an interrupted one is continued; `workplace.alone` keeps two
runs from sharing them.

Adding images makes a new generation that links the old shards and holds new ones beside them. No byte of an old
shard is read or written. Its name changes, because names count the shards of a split; the new generation takes the
place of the old one by rename, like that of `--overwrite`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from beam_jobs import storage
from beam_jobs.common.settings import fields
from beam_jobs.dataset import manifest, schemas, shards
from beam_jobs.dataset.manifest import ImageCounts, Manifest, Shard, SplitInfo
from beam_jobs.errors import CorruptDataset, DatasetChanged, OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.sources import http_fetch
from beam_jobs.types import LABEL_KINDS, ImageRef, Reject


def replace_dataset(out: str, build: Callable[[str], Manifest]) -> Manifest:
    """Builds a dataset and puts it in the place of the one in `out`; without one there it is simply built.

    Until the new one is whole, readers find the old one. Killed between the two renames, nothing is at `out` for the
    moment; see `recover`, which comes first.

    Args:
      out: directory of the dataset, on a local filesystem.
      build: builds a dataset in the directory it is given, or leaves it empty.

    Returns:
      the manifest of the new generation.

    Raises:
      OptionError: `out` is remote, or holds something that is not a dataset.
      DatasetChanged: another dataset was published in `out` meanwhile, and stays there.
    """
    check_replaceable(out)
    following, previous = _beside(out, "next"), _beside(out, "old")
    if not manifest.is_published(out):
        return build(out)
    before = _content(out)
    if manifest.is_published(following):
        storage.remove_tree(following)  # whole, but of a run that died before the swap: the source may have changed
    result = build(following)
    if not manifest.is_published(following):
        return result  # there was nothing to build, and the old generation stays
    if _content(out) != before:
        raise DatasetChanged(f"{out} holds another dataset than when this run began, and keeps it; run it again")
    os.rename(out, previous)
    try:
        os.rename(following, out)
    except OSError:
        with contextlib.suppress(OSError):  # of a disk that takes nothing any more: the next call does it
            os.rename(previous, out)
        raise
    storage.remove_tree(previous)
    return result


def check_replaceable(out: str) -> None:
    """Raises `OptionError` for an output that cannot be replaced, for it is remote."""
    if storage.is_remote(out):
        raise OptionError(f"{out} cannot be replaced by rename: object stores have no folders; choose another --out")


def _content(out: str) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return storage.read_bytes(storage.join(out, manifest.MANIFEST_NAME))
    return b""


def _beside(out: str, which: str) -> str:
    folder, name = os.path.split(out)
    return os.path.join(folder, f".{name}.feedline-{which}")


def current(out: str) -> str:
    """Returns where the dataset of an output lies: between the two renames, under the name of the old generation."""
    previous = "" if storage.is_remote(out) else _beside(os.path.abspath(out), "old")
    return previous if os.path.isdir(previous) and not os.path.isdir(out) else out


def recover(out: str) -> None:
    """Puts the old generation back after a kill between the two renames, or removes it after one behind them.

    Args:
      out: directory of the dataset, absolute, or a URL, which has no generations.
    """
    if storage.is_remote(out) or not os.path.isdir(previous := _beside(out, "old")):
        return
    if os.path.isdir(out):
        storage.remove_tree(previous)  # the swap was done, only the cleaning up was not
    else:
        os.rename(previous, out)


_FIELDS = {name: one for name, one in fields(IngestOptions).items() if one.field.scope != "run"}
# Options that all images of a dataset must have in common, and those that it keeps where none are given.
_MUST_AGREE = tuple(name for name, one in _FIELDS.items() if one.field.append == "same")
_MAY_DIFFER = tuple(name for name, one in _FIELDS.items() if one.field.append == "kept")


@dataclass(frozen=True, kw_only=True)
class Existing:
    """A published dataset that gets more images.

    Attributes:
      directory: where it lies.
      manifest: what it is.
      images: its `IMAGES` rows.
      rejects: its `REJECTS` rows.
    """

    directory: str
    manifest: Manifest
    images: pa.Table
    rejects: pa.Table

    def shard_counts(self) -> dict[str, int]:
        """Returns split -> shards."""
        return {name: len(info.shards) for name, info in self.manifest.splits.items()}


def completed(out: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of an ingest that adds to a dataset: those given, and for the rest what it was made with.

    Args:
      out: directory of the dataset.
      settings: nested, as given; one of a section leaves the others of that section to the dataset.

    Raises:
      SourceError, CorruptDataset: there is no sound dataset in `out`.
    """
    found = manifest.load(out).options
    was = {**{name: found[name] for name in (*_MUST_AGREE, *_MAY_DIFFER)}, "splits": dict(found["splits"])}
    sections = {
        name: {**was[name], **given}
        for name, given in settings.items()
        if name in was and _FIELDS[name].section and isinstance(given, Mapping)
    }
    return {**was, **settings, **sections}


def check_published(options: IngestOptions) -> None:
    """Raises `OptionError` unless there is a dataset to add to."""
    if not manifest.is_published(current(options.out)):
        mode = "--append" if options.append else "--retry-rejects"
        raise OptionError(f"{options.out} holds no dataset to add to; leave {mode} out to make one")


def load_existing(options: IngestOptions, label_kind: str, described: dict) -> Existing:
    """Reads the dataset that the options want to add to.

    Args:
      options: of the ingest that adds.
      label_kind: of the source.
      described: the options as `dataset.json` keeps them.

    Raises:
      OptionError: there is no dataset, or it was made with other options.
      CorruptDataset: its tables cannot be read, or a shard is missing or was cut.
    """
    check_published(options)
    found = manifest.load(options.out)
    if found.label_kind != label_kind:
        old, new = LABEL_KINDS[found.label_kind], LABEL_KINDS[label_kind]
        raise OptionError(f"the images in {options.out} have {old}, those of the source {new}")
    for name in _MUST_AGREE:
        _check_agrees(options.out, name, found.options.get(name), described[name])
    _check_shards(options.out, found)
    return Existing(
        directory=options.out,
        manifest=found,
        images=schemas.read_published(storage.join(options.out, manifest.IMAGES_NAME)),
        rejects=schemas.read_published(storage.join(options.out, manifest.REJECTS_NAME)),
    )


def _check_agrees(out: str, name: str, was: Any, asked: Any) -> None:
    # Shares of splits stand as they were given: one of them alone says nothing.
    if isinstance(was, Mapping) and isinstance(asked, Mapping) and name != "splits":
        for inner in {**was, **asked}:
            _check_agrees(out, f"{name}.{inner}", was.get(inner), asked.get(inner))
    elif was != asked:
        raise OptionError(
            f"{out} was made with {name} {was!r}, not {asked!r}; leave it out: what is added is treated like the rest"
        )


def _check_shards(out: str, found: Manifest) -> None:
    """Looks at the length of every old shard, without reading it: what is missing or cut is not published again."""
    for split, info in found.splits.items():
        for shard, path in zip(info.shards, found.shard_paths(out, split), strict=True):
            try:
                size = storage.size(path)
            except FileNotFoundError as error:
                raise CorruptDataset(f"{path} is missing; write the dataset again, with --overwrite") from error
            if size != shard.bytes:
                raise CorruptDataset(
                    f"{path} has {size} bytes, {manifest.MANIFEST_NAME} says {shard.bytes}; write the dataset again, "
                    "with --overwrite"
                )


def fresh_images(entries: Iterable[ImageRef | Reject], existing: Existing, retry: bool) -> Iterator[ImageRef | Reject]:
    """Yields the entries whose key the dataset does not know; with `retry`, those that it knows as rejects alone.

    Keys of a dataset from before signatures were cut from URLs hold them, and stay.
    """
    good = set(map(http_fetch.unsigned, existing.images["key"].to_pylist()))
    bad = set(map(http_fetch.unsigned, existing.rejects["key"].to_pylist()))
    for entry in entries:
        key = http_fetch.unsigned(entry.key)
        if key not in good and (key in bad) == retry:
            yield entry


def link_shards(existing: Existing, out: str, totals: dict[str, int]) -> None:
    """Puts the old shards into a new generation, as hard links where the filesystem has them. Idempotent.

    Args:
      existing: the old generation.
      out: directory of the new one.
      totals: split -> shards in the new generation.
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
            except OSError:  # no hard links here
                shutil.copyfile(source, target)


def merged_splits(existing: Existing, new: dict[str, SplitInfo], totals: dict[str, int]) -> dict[str, SplitInfo]:
    """Returns the splits of the new generation: the old shards under their new names, then the new ones."""
    result = {}
    for split, info in existing.manifest.splits.items():
        old = tuple(_renamed(shard, index, totals[split]) for index, shard in enumerate(info.shards))
        classes = Counter(info.classes) + Counter(new[split].classes)
        result[split] = SplitInfo(shards=old + new[split].shards, classes=dict(sorted(classes.items())))
    return result


def merged_rejects(existing: Existing, new: pa.Table, retried: Set[str]) -> pa.Table:
    """Returns the old rejects that were not tried again, and the new ones, ordered by key."""
    kept = existing.rejects.filter(
        pa.array([http_fetch.unsigned(key) not in retried for key in existing.rejects["key"].to_pylist()], pa.bool_())
    )
    return pa.concat_tables([kept, new]).sort_by([("key", "ascending"), ("uri", "ascending")])


def merged_counts(existing: Existing, new: ImageCounts, rejects: pa.Table) -> ImageCounts:
    """Returns the counts of the new generation.

    Args:
      existing: the old generation.
      new: counts of what was added; its sets of copies and near duplicates are those of both already.
      rejects: rejects of both.
    """
    old = existing.manifest.counts
    return replace(
        new,
        # What was tried again was found before, so it is counted by what became of it.
        found=len(rejects) + old.written + new.written + old.dropped + new.dropped,
        written=old.written + new.written,
        rejects=dict(Counter(rejects["reason"].to_pylist()).most_common()),
        normalised=dict((Counter(old.normalised) + Counter(new.normalised)).most_common()),
        duplicates_dropped=old.duplicates_dropped + new.duplicates_dropped,
        near_dropped=old.near_dropped + new.near_dropped,
        # An addition that looks for no near duplicates says nothing of the images that are there.
        near_unsearched=max(old.near_unsearched, new.near_unsearched),
    )


def _renamed(shard: Shard, index: int, total: int) -> Shard:
    return replace(shard, name=shards.shard_name(index, total))
