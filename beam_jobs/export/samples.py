"""What is exported: the records of a dataset one by one, and in which file each goes."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs import storage
from beam_jobs.dataset import record, tfrecord
from beam_jobs.dataset.manifest import Manifest, SplitInfo
from beam_jobs.errors import CorruptDataset
from beam_jobs.export.options import safe_name

_SUFFIXES = {b"jpeg": "jpg", b"png": "png", b"raw": "png"}


class Sample:
    """One record; only the fields that are asked for are decoded.

    Attributes:
      payload: the serialised Example.
      place: shard and offset of it.
    """

    def __init__(self, payload: bytes, place: str) -> None:
        self.payload = payload
        self.place = place

    @functools.cached_property
    def values(self) -> Mapping[str, list]:
        """Feature name -> values, see `beam_jobs.dataset.record`."""
        return record.decode(self.payload)

    @functools.cached_property
    def key(self) -> str:
        """Identity of the image."""
        return self.values[record.FILENAME][0].decode()

    @functools.cached_property
    def name(self) -> str:
        """A file name for it, without its ending; see `names.safe_name`."""
        return safe_name(self.key)

    @functools.cached_property
    def suffix(self) -> str:
        """Ending of the file of the image: `jpg` or `png`."""
        return _SUFFIXES[self.values[record.FORMAT][0]]

    @functools.cached_property
    def image(self) -> bytes:
        """The image as a file; raw pixels become a PNG, which loses nothing."""
        (found,) = self.values[record.ENCODED]
        if self.values[record.FORMAT] != [b"raw"]:
            return found
        from PIL import Image

        height, width = self.values[record.HEIGHT][0], self.values[record.WIDTH][0]
        if len(found) != height * width * 3:
            raise CorruptDataset(f"{self.key!r} has {len(found)} bytes of pixels, its record says {width}x{height}")
        out = io.BytesIO()
        Image.frombytes("RGB", (width, height), found).save(out, "PNG")
        return out.getvalue()

    def plain(self, name: str) -> Any:
        """Returns the values of a feature, text for bytes: a list, or the one value of what has never more than one."""
        values = [_text(value) if isinstance(value, bytes) else value for value in self.values.get(name, ())]
        return (values[0] if values else None) if name in _SINGLE else values


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


_SINGLE = {name for name, (_, shape) in record.FEATURES.items() if not shape} - {record.LABEL, record.TEXT}
_SINGLE |= {record.WEIGHT}


def read(directory: str, dataset: Manifest, split: str) -> Iterator[Sample]:
    """Yields the samples of a split in the order of its shards, every checksum verified, also that of each image.

    One is in memory at a time.

    Raises:
      CorruptDataset: a shard cannot be read, is damaged, or holds more or fewer records than `dataset.json` says, or
        something else than images of a dataset.
    """
    for path, shard in zip(dataset.shard_paths(directory, split), dataset.split(split).shards, strict=True):
        count = 0
        try:
            with storage.open_read(path) as stream:
                for offset, payload in tfrecord.read_records(stream, path):
                    count += 1
                    sample = Sample(payload, f"{path} at offset {offset}")
                    if problem := _problem(sample):
                        raise corrupt(sample, problem)
                    yield sample
        except OSError as error:
            raise CorruptDataset(f"{path} cannot be read: {error.strerror or error}") from error
        if count != shard.records:
            raise CorruptDataset(f"{path} holds {count} records, dataset.json says {shard.records}; verify the dataset")


def corrupt(sample: Sample, problem: str) -> CorruptDataset:
    """Returns the error about a sample that is not what an ingest writes."""
    return CorruptDataset(f"{sample.place} is no record of a dataset: {problem}; write the dataset again")


def _problem(sample: Sample) -> str:
    """Returns what is wrong with a record, short of decoding its image; empty for nothing."""
    from google.protobuf.message import DecodeError

    try:
        if wrong := record.type_problem(sample.values):
            return wrong
        found, (encoded,) = sample.values[record.FORMAT][0], sample.values[record.ENCODED]
        if found not in _SUFFIXES:
            return f"its image is {found!r:.40}; known are jpeg, png and raw"
        if hashlib.sha256(encoded).hexdigest() != sample.values[record.SHA256][0].decode():
            return f"the image of {sample.key!r} is not the one its sha256 was taken of"
    except (DecodeError, LookupError, ValueError) as error:
        return repr(error)
    return ""


def numbered(samples: Iterator[Sample], info: SplitInfo, count: int) -> Iterator[tuple[int, Sample]]:
    """Yields (file, sample) with the files in order, of nearly equal bytes; none is empty.

    The arithmetic of `shards.cut`, for samples whose sizes are not known yet.

    Args:
      samples: of the split, in order.
      info: how many there are, and their bytes.
      count: number of files, at most one a sample.
    """
    file = in_file = seen = 0
    for position, sample in enumerate(samples):
        must_close = info.records - position <= count - file - 1
        if file < count - 1 and in_file and (must_close or seen * count >= info.bytes * (file + 1)):
            file, in_file = file + 1, 0
        yield file, sample
        in_file += 1
        seen += len(sample.payload) + tfrecord.OVERHEAD
