"""Upgrade of a dataset of format 1: its image table becomes several files. No shard is opened."""

from __future__ import annotations

import dataclasses
import itertools
import os
from operator import itemgetter

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.manifest import IMAGES_NAME, Manifest
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.stages import work_dir
from beam_jobs.stages.publish import row_groups, write_part
from beam_jobs.storage import disk

_PART_GROUPS = 16  # row groups of a file


def upgrade(out: str) -> bool:
    """Converts a dataset into the newest format, in place. Its shards and its digest do not change.

    The new `dataset.json` replaces the old one after the new table is written, so a killed upgrade leaves a dataset of
    either format; the next upgrade removes the files of the other format.

    Args:
      out: directory of the dataset, local or remote.

    Returns:
      whether the dataset had an older format.

    Raises:
      SourceError: the directory is not a published dataset.
      CorruptDataset: its image table is damaged.
      OptionError: an ingest writes to the directory, or it contains a `_work` of another program.
      DiskError: the disk of the dataset is full or read-only.
    """
    if not storage.is_remote(out):
        out = os.path.abspath(out)
    work = storage.join(out, work_dir.DIRECTORY)
    with work_dir.exclusive(out), disk.explain_errors("upgrading", out):
        dataset = manifest.load(out)
        is_old = dataset.format_version != manifest.FORMAT_VERSION
        work_dir.remove_leftovers(work)
        if is_old:
            _check_table(storage.join(out, IMAGES_NAME), dataset)
            if not storage.is_remote(work) and os.path.exists(work):
                raise OptionError(f"{work} was not created by Feedline; move it elsewhere")
            work_dir.create(out, work)  # for temporary files; if this upgrade is killed, the next removes it
            manifest.write(_write_table(out, dataset, work), out, work)
            work_dir.remove(work)
        storage.remove(storage.join(out, IMAGES_NAME))
    return is_old


def _check_table(path: str, dataset: Manifest) -> None:
    if not storage.exists(path):
        raise CorruptDataset(f"{path} is missing; write the dataset again")
    if storage.digest(path)[1] != dataset.tables.get(IMAGES_NAME):
        raise CorruptDataset(f"{path} has changed since it was published; write the dataset again")


def _write_table(out: str, dataset: Manifest, scratch: str) -> Manifest:
    """Writes the image table as parts, and returns the manifest that names them."""
    groups = enumerate(row_groups(schemas.read_images(dataset.image_paths(out), schemas.IMAGES.names)))
    parts = tuple(
        write_part(out, f"part-{number:05d}.parquet", map(itemgetter(1), part), scratch)
        for number, part in itertools.groupby(groups, lambda group: group[0] // _PART_GROUPS)
    )
    tables = {name: sha256 for name, sha256 in dataset.tables.items() if name != IMAGES_NAME}
    return dataclasses.replace(dataset, images=parts, tables=tables, format_version=manifest.FORMAT_VERSION)
