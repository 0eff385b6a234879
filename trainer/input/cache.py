"""What the first ops made of every record, kept for the epochs after: in memory, or in one file on a local disk.

Only what is the same every epoch can be kept: the ops up to the first random one, as long as all images have one size
there. Where no image has, the stored bytes themselves are kept, which is worth it when the shards lie far away.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import pathlib
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from beam_jobs import storage
from beam_jobs.common.system import free_bytes
from beam_jobs.dataset import record, tfrecord
from beam_jobs.errors import OptionError
from trainer.input.order import RecordIndex
from trainer.input.parse import batch_ragged
from trainer.input.windowed_reader import in_order
from trainer.ops import IMAGE, Normalize, Op, apply_ops
from trainer.options import InputOptions

_SHARE_OF_FREE = 0.25  # the model, the shuffle window and everybody else want the rest
WHILE_FILLED = 2  # the images that come are still there when they are joined
_INDEX_NAME, _RECORDS_NAME = "index.npz", "records.tfrecord"
_BLOCK_BYTES = 1 << 22  # of a file that is read through
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CacheChoice:
    """What is kept.

    Attributes:
      kind: `none`, `memory` or `disk`.
      ops: how many of the first ops are done before; 0 keeps the stored bytes.
      size: height and width of the kept images; None when they are the stored bytes.
      bytes: what they take.
      reason: why, in a few words.
    """

    kind: str
    reason: str
    ops: int = 0
    size: tuple[int, int] | None = None
    bytes: int = 0


def choose_cache(options: InputOptions, ops: Sequence[Op], index: RecordIndex, once: bool) -> CacheChoice:
    """Decides what to keep.

    Args:
      options: `cache`, `cache_mb` and `service` count.
      ops: the whole chain.
      index: the records.
      once: whether there is one pass only; evaluation is usually repeated.
    """
    reason = _why_not(options, once) if len(index) else "this host has no record"
    if reason:
        return CacheChoice(kind="none", reason=reason)
    # Boxes and masks must move with the image, so it has to pass through every op.
    done, size = (0, None) if options.targets else fixed_prefix(ops)
    total = int(len(index) * (size[0] * size[1] * 3 if size else index.record_bytes))
    if options.cache != "auto":
        return CacheChoice(kind=options.cache, reason=f"cache is {options.cache}", ops=done, size=size, bytes=total)
    if size is None and not storage.is_remote(index.files[0]):
        return CacheChoice(kind="none", reason="no first op makes images of one size, and local files need none")
    limit = options.cache_mb * 1e6 or free_bytes() * _SHARE_OF_FREE
    wanted = f"{total / 1e6:,.0f} MB, twice that while it is filled, of {limit / 1e6:,.0f} MB for it"
    if total * WHILE_FILLED > limit:
        return CacheChoice(kind="none", reason=f"it would take {wanted}")
    return CacheChoice(kind="memory", reason=f"it takes {wanted}", ops=done, size=size, bytes=total)


def _why_not(options: InputOptions, once: bool) -> str:
    if options.cache == "none":
        return "cache is none"
    if options.service:
        return "a tf.data service reads the shards on its workers"
    return "one pass reads everything once anyway" if options.cache == "auto" and once else ""


def fixed_prefix(ops: Sequence[Op]) -> tuple[int, tuple[int, int] | None]:
    """Returns how many of the first ops are not random and end at uint8 images of one size, and that size."""
    best: tuple[int, tuple[int, int] | None] = (0, None)
    size = None
    for count, op in enumerate(ops, 1):
        if op.random or isinstance(op, Normalize):  # floats would take four times the space
            break
        size = op.size(size)
        best = (count, size) if size else best
    return best


def keep(encoded: tf.Tensor, ops: Sequence[Op]) -> tf.Tensor:
    """Runs the ops whose result is kept on one stored image."""
    return apply_ops(ops, {IMAGE: encoded}, tf.zeros([2], tf.int32))[IMAGE]


def in_memory(parsed: tf.data.Dataset, ops: Sequence[Op], index: RecordIndex, threads: int) -> dict[str, tf.Tensor]:
    """Reads everything once.

    Args:
      parsed: batches of parsed records, each record once, in order.
      ops: those whose result is kept.
      index: the records.
      threads: for the ops.

    Returns:
      the parsed features of all records, `image` uint8[records, height, width, 3], or string[records] without ops.
    """

    def prepare(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {**features, IMAGE: keep(features[IMAGE], ops)} if ops else features

    images = parsed.unbatch().map(prepare, threads, deterministic=True)
    with tf.device("CPU:0"):  # an accelerator has better use for its memory
        return batch_ragged(images, max(1, len(index)), drop_remainder=False).get_single_element()


def on_disk(index: RecordIndex, ops: Sequence[Op], identity: str, directory: str, threads: int) -> RecordIndex:
    """Writes the records with the kept images to a local file, unless that was done before.

    The file appears at once, by a rename, so that what an interrupted run left is never taken for it. One that is
    there is read through, and written anew where it is damaged; a warning names it.

    Args:
      index: the records of the shards.
      ops: those whose result is kept.
      identity: of the records: the digest of the dataset, the split and what is left out.
      directory: of all caches.
      threads: for the ops.

    Returns:
      the index of the records in that file, numbered alike.

    Raises:
      OptionError: the directory cannot be written.
    """
    name = hashlib.sha256(json.dumps([identity, repr(tuple(ops)), _made_by()]).encode()).hexdigest()[:32]
    target = os.path.join(directory, name)
    path = os.path.join(target, _RECORDS_NAME)
    try:
        offsets = _reusable(target, len(index))
        if offsets is None:
            _make(index, ops, target, threads)
            with np.load(os.path.join(target, _INDEX_NAME)) as written:
                offsets = written["offset"]
        size = os.path.getsize(path)
    except OSError as error:
        raise OptionError(
            f"cache_dir {directory} cannot be written: {error.strerror}; name another, or set cache to none"
        ) from error
    return RecordIndex(
        files=(path,),
        shard=np.zeros(len(index), np.int32),
        offset=offsets,
        label=index.label,
        record_bytes=size / max(1, len(index)),
        size=index.size,
    )


@functools.cache
def _made_by() -> str:
    """Returns what decides the kept bytes beside dataset and ops: the decoder and the code."""
    here = pathlib.Path(__file__)
    hasher = hashlib.sha256()
    for path in (here, here.with_name("parse.py"), *sorted((here.parent.parent / "ops").glob("*.py"))):
        hasher.update(path.read_bytes())
    return f"tensorflow {tf.__version__}, {hasher.hexdigest()}"


def _reusable(target: str, records: int) -> np.ndarray | None:
    """Returns where each record of a cache begins; None where there is none to use."""
    if not os.path.isdir(target):
        return None
    try:
        with np.load(os.path.join(target, _INDEX_NAME)) as written:
            offsets, crc = written["offset"], int(written["crc"])
        problem = "" if _crc_of(os.path.join(target, _RECORDS_NAME)) == crc else f"{_RECORDS_NAME} has changed"
    except FileNotFoundError as error:
        problem = f"{os.path.basename(error.filename)} is missing"
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        problem = f"it cannot be read: {error}"
    if not problem and len(offsets) == records:
        return offsets
    _log.warning("the cache %s is damaged: %s; it is written anew", target, problem or "it holds other records")
    return None


def _crc_of(path: str) -> int:
    crc = 0
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc


def _make(index: RecordIndex, ops: Sequence[Op], target: str, threads: int) -> None:
    directory, name = os.path.split(target)
    os.makedirs(directory, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f"{name}-", dir=directory)
    try:
        _write(index, ops, temporary, threads)
        _publish(temporary, target, len(index))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: str, target: str, records: int) -> None:
    if os.path.isdir(target) and _reusable(target, records) is None:
        os.rename(target, os.path.join(temporary, "damaged"))
    try:
        storage.rename(temporary, target)
    except OSError:
        if not os.path.isdir(target):  # else another process was first, with the same bytes
            raise
    shutil.rmtree(os.path.join(target, "damaged"), ignore_errors=True)


def _write(index: RecordIndex, ops: Sequence[Op], directory: str, threads: int) -> None:
    spec = record.feature_spec((record.ENCODED,))

    def prepare(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded = tf.io.parse_single_example(serialized, spec)[record.ENCODED]
        return serialized, keep(encoded, ops) if ops else tf.zeros([0], tf.uint8)

    offsets, end, crc = [], 0, 0
    records = in_order(index).unbatch().map(prepare, threads, deterministic=True)
    with storage.own_writer(os.path.join(directory, _RECORDS_NAME)) as stream:
        for serialized, pixels in records.as_numpy_iterator():
            framed = b"".join(tfrecord.frame(_replaced(serialized, pixels) if ops else serialized))
            stream.write(framed)
            offsets.append(end)
            end, crc = end + len(framed), zlib.crc32(framed, crc)
    with storage.own_writer(os.path.join(directory, _INDEX_NAME)) as stream:
        np.savez(stream, offset=np.array(offsets, np.int64), crc=crc)


def _replaced(serialized: bytes, pixels: np.ndarray) -> bytes:
    example = tf.train.Example.FromString(serialized)
    example.features.feature[record.ENCODED].bytes_list.value[0] = pixels.tobytes()
    return example.SerializeToString(deterministic=True)
