"""NVIDIA DALI: an index beside each TFRecord shard, a line a record with its offset and its size in bytes."""

from __future__ import annotations

import os

import numpy as np
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas, shards
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset
from beam_jobs.export.formats import ExportedFile


def write(directory: str, dataset: Manifest, splits: tuple[str, ...], out: str) -> dict[str, tuple[ExportedFile, ...]]:
    """Writes the index of every shard; no shard is opened, for `images.parquet` knows where its records begin.

    Args:
      directory: of the dataset.
      dataset: its manifest.
      splits: to write the indices of.
      out: directory to write `Split-NAME/data-00000-of-00001.idx` in.

    Returns:
      split -> its indices.

    Raises:
      CorruptDataset: `images.parquet` is damaged, or is not of these shards.
    """
    path = storage.join(directory, manifest.IMAGES_NAME)
    images = schemas.read_published(path, ["split", "shard", "offset"])
    written: dict[str, tuple[ExportedFile, ...]] = {}
    for split in splits:
        rows = images.filter(pc.equal(images["split"], split))
        places, offsets = rows["shard"].to_numpy(), rows["offset"].to_numpy()
        written[split] = ()
        listed = dataset.split(split).shards
        for number, shard in enumerate(listed):
            starts = np.sort(offsets[places == number])
            if len(starts) != shard.records:
                raise CorruptDataset(f"{path} has {len(starts)} rows for {shard.name}, which holds {shard.records}")
            stem = os.path.splitext(shards.shard_name(number, len(listed)))[0]
            name = f"{shards.split_dir(split)}/{stem}.idx"
            content = _index(starts, shard.bytes)
            storage.write_bytes(storage.join(out, name), content)
            written[split] += (ExportedFile(name=name, samples=shard.records, bytes=len(content)),)
    return written


def _index(starts: np.ndarray, end: int) -> bytes:
    """Returns the lines: a record ends where the next one begins, the last one at the end of the file."""
    sizes = np.diff(starts, append=end)
    return "".join(f"{start} {size}\n" for start, size in zip(starts, sizes, strict=True)).encode()
