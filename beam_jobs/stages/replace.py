"""Replacement of a dataset: the new generation is built beside the old one and replaces it by rename.

For a dataset in `DIR/NAME`:

    DIR/NAME                    the dataset that readers open
    DIR/.NAME.feedline-next     the new generation while it is built; an interrupted build leaves it
    DIR/.NAME.feedline-old      the old generation, between the two renames

The two hidden names are reserved: files of these names are removed without confirmation. They are the same in every
run, so that a run continues an interrupted one; `work_dir.exclusive` prevents two runs from using them.
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
    """Builds a dataset that replaces the dataset in `out`; if `out` has no dataset, builds it there.

    Readers open the old dataset until the new one is complete. If the process is killed between the two renames, `out`
    does not exist until the next run calls `recover`.

    Args:
      out: directory of the dataset, on a local filesystem.
      build: function that builds a dataset in the given directory, or leaves the directory empty.

    Returns:
      the manifest of the new generation.

    Raises:
      OptionError: `out` is remote, or contains something that is not a dataset.
      DatasetChanged: another process published another dataset in `out` in the meantime; it is left unchanged.
    """
    check_replaceable(out)
    new_path, old_path = _sibling(out, "next"), _sibling(out, "old")
    if not manifest.is_published(out):
        return build(out)
    old_manifest = _read_manifest(out)
    if manifest.is_published(new_path):
        storage.remove_tree(new_path)  # of a run that was killed before the renames; the source may have changed
    result = build(new_path)
    if not manifest.is_published(new_path):
        return result  # nothing was built, and the old generation remains
    if _read_manifest(out) != old_manifest:
        raise DatasetChanged(f"{out} was replaced by another dataset during this run; run the ingest again")
    os.rename(out, old_path)
    try:
        os.rename(new_path, out)
    except OSError:
        with contextlib.suppress(OSError):  # the disk accepts no writes: `recover` renames it in the next run
            os.rename(old_path, out)
        raise
    storage.remove_tree(old_path)
    return result


def check_replaceable(out: str) -> None:
    """Raises `OptionError` for a remote output, which cannot be replaced."""
    if storage.is_remote(out):
        raise OptionError(f"{out} cannot be replaced by rename: object stores have no folders; choose another --out")


def _read_manifest(out: str) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return storage.read_bytes(storage.join(out, manifest.MANIFEST_NAME))
    return b""


def _sibling(out: str, suffix: str) -> str:
    folder, name = os.path.split(out)
    return os.path.join(folder, f".{name}.feedline-{suffix}")


def dataset_path(out: str) -> str:
    """Returns the directory with the dataset of an output; between the two renames, the one of the old generation."""
    old_path = "" if storage.is_remote(out) else _sibling(os.path.abspath(out), "old")
    return old_path if os.path.isdir(old_path) and not os.path.isdir(out) else out


def recover(out: str) -> None:
    """Restores the old generation if a run was killed between the two renames; removes it if `out` exists.

    Args:
      out: directory of the dataset, absolute, or a URL, which has no generations.
    """
    if storage.is_remote(out) or not os.path.isdir(old_path := _sibling(out, "old")):
        return
    if os.path.isdir(out):
        storage.remove_tree(old_path)
    else:
        os.rename(old_path, out)
