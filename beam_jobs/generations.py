"""Replacing a dataset: the new generation is built beside the old one and takes its place by rename.

For a dataset in `DIR/NAME`:

    DIR/NAME                    what readers see
    DIR/.NAME.feedline-next     the new generation while it is built; it stays when the build is interrupted
    DIR/.NAME.feedline-old      the old generation, between the two renames

Names that nobody gives to anything else: what bears them is removed without a question, and a `NAME.old` is
somebody's backup.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from beam_jobs import manifest, storage
from beam_jobs.errors import OptionError
from beam_jobs.manifest import Manifest


def replace_dataset(out: str, build: Callable[[str], Manifest]) -> Manifest:
    """Builds a dataset and puts it in the place of the one in `out`; without one there it is simply built.

    Until the new one is whole, readers find the old one. Killed between the two renames, nothing is at `out` for the
    moment; the next call puts the old generation back first.

    Args:
      out: directory of the dataset, on a local filesystem.
      build: builds a dataset in the directory it is given, or leaves it empty.

    Returns:
      the manifest of the new generation.

    Raises:
      OptionError: `out` is remote, or holds something that is not a dataset.
    """
    check(out)
    folder, name = os.path.split(out)
    following, previous = (os.path.join(folder, f".{name}.feedline-{which}") for which in ("next", "old"))
    if os.path.isdir(previous):
        _recover(out, previous)
    if not manifest.is_published(out):
        return build(out)
    if manifest.is_published(following):
        storage.remove_tree(following)  # whole, but of a run that died before the swap: the source may have changed
    result = build(following)
    if not manifest.is_published(following):
        return result  # there was nothing to build, and the old generation stays
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


def _recover(out: str, previous: str) -> None:
    if os.path.isdir(out):
        storage.remove_tree(previous)  # the swap was done, only the cleaning up was not
    else:
        os.rename(previous, out)
