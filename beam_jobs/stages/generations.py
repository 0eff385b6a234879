"""Replacing a dataset: the new generation is built beside the old one and takes its place by rename.

For a dataset in `DIR/NAME`:

    DIR/NAME                    what readers see
    DIR/.NAME.feedline-next     the new generation while it is built; it stays when the build is interrupted
    DIR/.NAME.feedline-old      the old generation, between the two renames

Names that are given to nothing else: what bears them is removed without a question, and a `NAME.old` is a user's
backup. They are the same in every run, so that an interrupted one is continued; `workplace.alone` keeps two
runs from sharing them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from beam_jobs import storage
from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import DatasetChanged, OptionError


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
    check(out)
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


def check(out: str) -> None:
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
