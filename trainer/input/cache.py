"""The cache of an input pipeline: the result of its first ops for every record, in memory or in a local file.

Only a result that is the same in every epoch can be cached: that of the ops before the first random one, if all images
have one size after them. Otherwise the cache holds the stored bytes, which helps only if the shards are remote.
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
from trainer.input.index import RecordIndex
from trainer.input.parse import batch_ragged
from trainer.input.windowed_reader import read_in_order
from trainer.ops import IMAGE, Normalize, Op, apply_ops
from trainer.options import InputOptions

_FREE_MEMORY_SHARE = 0.25  # the model, the shuffle window and other processes need the rest
FILL_FACTOR = 2  # joining the images copies them all
_INDEX_NAME, _RECORDS_NAME = "index.npz", "records.tfrecord"
_BLOCK_BYTES = 1 << 22  # read at a time to compute a checksum
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CacheChoice:
    """The decision about the cache: its kind and its content.

    Attributes:
      kind: `none`, `memory` or `disk`.
      ops: number of the first ops whose result is cached; 0 caches the stored bytes.
      size: height and width of the cached images in pixels; None for the stored bytes.
      bytes: size of the cached images in bytes.
      reason: reason for the choice, in a few words.
    """

    kind: str
    reason: str
    ops: int = 0
    size: tuple[int, int] | None = None
    bytes: int = 0


def choose_cache(options: InputOptions, ops: Sequence[Op], index: RecordIndex, single_pass: bool) -> CacheChoice:
    """Returns the decision about the cache.

    Args:
      options: options of the pipeline: `cache`, `cache_mb` and `service` are used.
      ops: the ops that run image by image.
      index: the records.
      single_pass: whether the records are read only once; evaluation is usually repeated.
    """
    reason = _reason_for_no_cache(options, single_pass) if len(index) else "this host has no record"
    if reason:
        return CacheChoice(kind="none", reason=reason)
    # Boxes and masks must move with the image, so it has to pass through every op.
    count, size = (0, None) if options.targets else find_fixed_prefix(ops)
    total = int(len(index) * (size[0] * size[1] * 3 if size else index.record_bytes))  # bytes
    if options.cache != "auto":
        return CacheChoice(kind=options.cache, reason=f"cache is {options.cache}", ops=count, size=size, bytes=total)
    if size is None and not storage.is_remote(index.files[0]):
        return CacheChoice(kind="none", reason="images differ in size before a random op; local files need no cache")
    limit = options.cache_mb * 1e6 or free_bytes() * _FREE_MEMORY_SHARE
    usage = f"{total / 1e6:,.0f} MB, and twice as much while it is filled; the limit is {limit / 1e6:,.0f} MB"
    if total * FILL_FACTOR > limit:
        return CacheChoice(kind="none", reason=f"it would take {usage}")
    return CacheChoice(kind="memory", reason=f"it takes {usage}", ops=count, size=size, bytes=total)


def _reason_for_no_cache(options: InputOptions, single_pass: bool) -> str:
    if options.cache == "none":
        return "cache is none"
    if options.service:
        return "a tf.data service reads the shards on its workers"
    return "a single pass reads each record once" if options.cache == "auto" and single_pass else ""


def find_fixed_prefix(ops: Sequence[Op]) -> tuple[int, tuple[int, int] | None]:
    """Returns length and image size of the longest prefix without random ops that makes uint8 images of one size."""
    prefix: tuple[int, tuple[int, int] | None] = (0, None)
    size = None
    for count, op in enumerate(ops, 1):
        if op.random or isinstance(op, Normalize):  # floats would take four times the space
            break
        size = op.size(size)
        prefix = (count, size) if size else prefix
    return prefix


def apply_prefix(encoded: tf.Tensor, ops: Sequence[Op]) -> tf.Tensor:
    """Runs the ops whose result is cached on one stored image."""
    return apply_ops(ops, {IMAGE: encoded}, tf.zeros([2], tf.int32))[IMAGE]


def load_in_memory(
    parsed: tf.data.Dataset, ops: Sequence[Op], index: RecordIndex, threads: int
) -> dict[str, tf.Tensor]:
    """Reads all records into memory and returns them.

    Args:
      parsed: batches of parsed records, each record once, in order.
      ops: ops whose result is cached.
      index: the records.
      threads: number of threads of the ops.

    Returns:
      the parsed features of all records; `image` is uint8[records, height, width, 3], or string[records] without ops.
    """

    def prepare(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {**features, IMAGE: apply_prefix(features[IMAGE], ops)} if ops else features

    images = parsed.unbatch().map(prepare, threads, deterministic=True)
    with tf.device("CPU:0"):  # the memory of an accelerator is scarce
        return batch_ragged(images, max(1, len(index)), drop_remainder=False).get_single_element()


def write_on_disk(index: RecordIndex, ops: Sequence[Op], identity: str, directory: str, threads: int) -> RecordIndex:
    """Writes the records with the cached images to a local file, unless a valid one exists.

    A rename publishes the file, so an interrupted run leaves no partial one. The checksum of an existing file is
    checked; a damaged one is written again, with a warning.

    Args:
      index: the records of the shards.
      ops: ops whose result is cached.
      identity: identity of the records: digest of the dataset, split and excluded records.
      directory: directory of all caches.
      threads: number of threads of the ops.

    Returns:
      the index of the records in the file, in the same order.

    Raises:
      OptionError: the directory is not writable.
    """
    name = hashlib.sha256(json.dumps([identity, repr(tuple(ops)), _code_fingerprint()]).encode()).hexdigest()[:32]
    target = os.path.join(directory, name)
    path = os.path.join(target, _RECORDS_NAME)
    try:
        offsets = _load_offsets(target, len(index))
        if offsets is None:
            _create_cache(index, ops, target, threads)
            with np.load(os.path.join(target, _INDEX_NAME)) as arrays:
                offsets = arrays["offset"]
        size = os.path.getsize(path)
    except OSError as error:
        raise OptionError(
            f"cache_dir {directory} cannot be written: {error.strerror}; name another directory, or set cache to none"
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
def _code_fingerprint() -> str:
    """Returns the version of TensorFlow, which decodes, and a hash of the code: the cached bytes depend on both."""
    this_file = pathlib.Path(__file__)
    hasher = hashlib.sha256()
    for path in (this_file, this_file.with_name("parse.py"), *sorted((this_file.parent.parent / "ops").glob("*.py"))):
        hasher.update(path.read_bytes())
    return f"tensorflow {tf.__version__}, {hasher.hexdigest()}"


def _load_offsets(target: str, records: int) -> np.ndarray | None:
    """Returns the byte offset of each record of a cache; None if the cache is missing or damaged."""
    if not os.path.isdir(target):
        return None
    try:
        with np.load(os.path.join(target, _INDEX_NAME)) as arrays:
            offsets, crc = arrays["offset"], int(arrays["crc"])
        problem = "" if _compute_crc(os.path.join(target, _RECORDS_NAME)) == crc else f"{_RECORDS_NAME} has changed"
    except FileNotFoundError as error:
        problem = f"{os.path.basename(error.filename)} is missing"
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        problem = f"it cannot be read: {error}"
    if not problem and len(offsets) == records:
        return offsets
    _log.warning("the cache %s is damaged: %s; it is written again", target, problem or "it has other records")
    return None


def _compute_crc(path: str) -> int:
    crc = 0
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc


def _create_cache(index: RecordIndex, ops: Sequence[Op], target: str, threads: int) -> None:
    directory, name = os.path.split(target)
    os.makedirs(directory, exist_ok=True)
    temporary_dir = tempfile.mkdtemp(prefix=f"{name}-", dir=directory)
    try:
        _write_cache(index, ops, temporary_dir, threads)
        _publish_cache(temporary_dir, target, len(index))
    finally:
        shutil.rmtree(temporary_dir, ignore_errors=True)


def _publish_cache(temporary_dir: str, target: str, records: int) -> None:
    if os.path.isdir(target) and _load_offsets(target, records) is None:
        os.rename(target, os.path.join(temporary_dir, "damaged"))
    try:
        storage.rename(temporary_dir, target)
    except OSError:
        if not os.path.isdir(target):  # otherwise another process published the same bytes
            raise
    shutil.rmtree(os.path.join(target, "damaged"), ignore_errors=True)


def _write_cache(index: RecordIndex, ops: Sequence[Op], directory: str, threads: int) -> None:
    spec = record.feature_spec((record.ENCODED,))

    def prepare(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded = tf.io.parse_single_example(serialized, spec)[record.ENCODED]
        return serialized, apply_prefix(encoded, ops) if ops else tf.zeros([0], tf.uint8)

    offsets, end, crc = [], 0, 0
    records = read_in_order(index).unbatch().map(prepare, threads, deterministic=True)
    with storage.direct_writer(os.path.join(directory, _RECORDS_NAME)) as stream:
        for serialized, pixels in records.as_numpy_iterator():
            framed = b"".join(tfrecord.frame(_replace_image(serialized, pixels) if ops else serialized))
            stream.write(framed)
            offsets.append(end)
            end, crc = end + len(framed), zlib.crc32(framed, crc)
    with storage.direct_writer(os.path.join(directory, _INDEX_NAME)) as stream:
        np.savez(stream, offset=np.array(offsets, np.int64), crc=crc)


def _replace_image(serialized: bytes, pixels: np.ndarray) -> bytes:
    example = tf.train.Example.FromString(serialized)
    example.features.feature[record.ENCODED].bytes_list.value[0] = pixels.tobytes()
    return example.SerializeToString(deterministic=True)
