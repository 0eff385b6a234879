"""Baselines of the input pipeline: two common tf.data pipelines, and the limit of this machine.

`naive` is the simplest possible pipeline, `tutorial` that of the tf.data tutorials. The limit decodes or reads the same
bytes on all cores without a pipeline. `compare` returns the rates for the summary of `feedline run`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import tensorflow as tf

from beam_jobs import storage
from beam_jobs.common.system import cores, free_bytes
from beam_jobs.dataset import record
from beam_jobs.images.decode import decode_rgb
from trainer.bench.meter import Counts, Subject, dataset_subject, measure_alternately
from trainer.bench.stages import Source, first_mixing_op, open_source, unfuse_crop
from trainer.input.parse import NO_LABEL, base_spec
from trainer.input_fn import FOREVER, make_dataset
from trainer.ops import IMAGE, Op, apply_batch_ops, apply_ops
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions

_TUTORIAL_SHUFFLE = 10_000  # records
_MAX_SHUFFLE_BYTES = 256e6  # limit of the shuffle buffer; 10,000 records above 25 kB would need more
_MAX_SEED = 1 << 30


def naive_dataset(path: str, split: str, options: InputOptions) -> tf.data.Dataset:
    """Builds the simplest pipeline: sequential files and records, and batches of floats.

    It decodes complete images, then applies the other ops of training and converts to floats on the host.

    Returns:
      endless dataset of (images float32[batch, side, side, 3] in 0-1, labels int64[batch], -1 without a label).
    """
    source = open_source(path, split, options)
    stream = _prepare_images(tf.data.TFRecordDataset(source.files), source, None).repeat()
    stream = _make_batches(stream, source, None)
    tf_options = tf.data.Options()
    tf_options.autotune.enabled = False
    return stream.with_options(tf_options)


def tutorial_dataset(path: str, split: str, options: InputOptions) -> tf.data.Dataset:
    """Builds the pipeline of the tf.data performance guides: every stage is parallel, tuned by AUTOTUNE.

    It shuffles files, interleaves and maps in parallel, shuffles 10,000 records, and prefetches batches. It decodes
    complete images and converts them to floats, as in the guides. It shuffles before decoding, because 10,000 float
    images of 224 pixels take 6 GB.

    Returns:
      endless dataset of (images float32[batch, side, side, 3] in 0-1, labels int64[batch], -1 without a label).
    """
    source = open_source(path, split, options)
    window_records = max(1, min(_TUTORIAL_SHUFFLE, int(_MAX_SHUFFLE_BYTES / source.record_bytes)))
    # `list_files` is equivalent, but would interpret a [ in the path as a pattern.
    stream = tf.data.Dataset.from_tensor_slices(source.files).shuffle(len(source.files))
    stream = stream.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    stream = _prepare_images(stream.shuffle(window_records).repeat(), source, tf.data.AUTOTUNE)
    return _make_batches(stream, source, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _prepare_images(stream: tf.data.Dataset, source: Source, parallel_calls: int | None) -> tf.data.Dataset:
    """Returns a dataset of (image, label, image seed): floats, or uint8 if ops that mix images follow."""
    dataset = source.plan.dataset
    ops, spec = unfuse_crop(source.plan.all_ops), base_spec(dataset)
    image_ops = ops[: first_mixing_op(ops)]

    def prepare(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(serialized, spec)
        image_seed = tf.random.uniform([2], maxval=_MAX_SEED, dtype=tf.int32)
        features = {name: parsed[name] for name in (record.HEIGHT, record.WIDTH)}
        image = apply_ops(image_ops, {**features, IMAGE: parsed[record.ENCODED]}, image_seed)[IMAGE]
        label = parsed[record.LABEL] if dataset.label_kind == "single" else tf.constant(NO_LABEL, tf.int64)
        return _convert_to_floats(image) if len(image_ops) == len(ops) else image, label, image_seed

    return stream.map(prepare, num_parallel_calls=parallel_calls)


def _make_batches(stream: tf.data.Dataset, source: Source, parallel_calls: int | None) -> tf.data.Dataset:
    """Returns a dataset of batches (float images, labels), after the ops that mix images."""
    ops: Sequence[Op] = unfuse_crop(source.plan.all_ops)
    first_index = first_mixing_op(ops)
    stream = stream.batch(source.options.batch_size)

    def mix_images(images: tf.Tensor, label: tf.Tensor, image_seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if first_index == len(ops):
            return images, label
        return _convert_to_floats(apply_batch_ops(ops[first_index:], images, image_seeds, first_index)), label

    return stream.map(mix_images, num_parallel_calls=parallel_calls)


def _convert_to_floats(images: tf.Tensor) -> tf.Tensor:
    return tf.image.convert_image_dtype(images, tf.float32)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of two pipelines with the same ops.

    Attributes:
      feedline: images/s of `make_dataset`.
      naive: images/s of `naive_dataset`.
    """

    feedline: float
    naive: float

    @property
    def ratio(self) -> float:
        """Rate of `make_dataset` divided by that of `naive_dataset`."""
        return self.feedline / self.naive


@without_autograph
def compare(path: str, split: str, options: InputOptions, seconds: float = 0.5) -> Rates:
    """Measures `make_dataset` and `naive_dataset` for training alternately.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: options of the input pipeline.
      seconds: duration of a measurement; each pipeline has three, each after a warm-up of a quarter of this time.

    Raises:
      UsageError: the dataset or split does not exist.
    """
    feedline = make_dataset(path, split, options, training=True, epochs=FOREVER)
    naive = naive_dataset(path, split, options)
    costs = measure_alternately([dataset_subject("feedline", feedline), dataset_subject("naive", naive)], seconds)
    return Rates(feedline=costs["feedline"].rate, naive=costs["naive"].rate)


_TASK_BYTES = 1 << 20  # encoded images per task; decoding takes about 10 ms, far longer than starting a task
_MAX_TASK_IMAGES = 256
_READ_BYTES = 4 << 20


def bare_decode(name: str, encoded: Sequence[bytes], crops: int = 1) -> Subject:
    """Returns the subject that repeatedly decodes complete images on all cores.

    Args:
      name: name of the subject.
      encoded: contents of JPEG or PNG files.
      crops: number of images that the pipeline makes of each file; each decoded file counts as so many images.
    """
    mean_bytes = sum(map(len, encoded)) / len(encoded)
    task_images = max(1, min(_MAX_TASK_IMAGES, int(_TASK_BYTES / mean_bytes), -(-len(encoded) // cores())))
    tasks = [tf.constant(encoded[start : start + task_images]) for start in range(0, len(encoded), task_images)]

    def decode(task: tf.Tensor) -> float:
        return float(crops * _decode_files(task).shape[0])

    return Subject(name=name, start=lambda: _run_on_all_cores(decode, itertools.cycle(tasks)), warm_images=len(encoded))


def bare_read(name: str, files: Sequence[str], record_bytes: float) -> Subject:
    """Returns the subject that repeatedly reads shards on all cores.

    Args:
      name: name of the subject.
      files: paths of the shards.
      record_bytes: mean size of a record, to convert bytes to images.
    """
    blocks = list(_block_offsets(files))

    def read(path_and_offset: tuple[str, int]) -> float:
        return len(storage.read_range(*path_and_offset, _READ_BYTES)) / record_bytes

    return Subject(name=name, start=lambda: _run_on_all_cores(read, itertools.cycle(blocks)))


def warm_page_cache(files: Sequence[str], total_bytes: int) -> bool:
    """Reads all shards once, so that all measurements read them from memory.

    Args:
      files: paths of the shards.
      total_bytes: size of all shards together.

    Returns:
      whether the shards were read; False if they are remote, or larger than half of the free memory.
    """
    if any(map(storage.is_remote, files)) or total_bytes > free_bytes() / 2:
        return False
    for path, offset in _block_offsets(files):
        storage.read_range(path, offset, _READ_BYTES)
    return True


def _block_offsets(files: Iterable[str]) -> Iterator[tuple[str, int]]:
    for path in files:
        for offset in range(0, storage.size(path), _READ_BYTES):
            yield path, offset


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def _decode_files(encoded: tf.Tensor) -> tf.Tensor:
    # A graph, because a call from Python takes as long as decoding a small image. Its result has one value per image,
    # because TensorFlow does not decode an image whose values are unused.
    return tf.map_fn(lambda img: decode_rgb(img)[0, 0, 0], encoded, fn_output_signature=tf.uint8, parallel_iterations=1)


def _run_on_all_cores(run_task: Callable[..., float], tasks: Iterator) -> Counts:
    """Yields the sum of the results of each group of completed tasks; one task per core runs, and another waits."""
    pool = ThreadPoolExecutor(cores())
    try:
        running: set[Future[float]] = {pool.submit(run_task, task) for task in itertools.islice(tasks, 2 * cores())}
        while True:
            completed, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(run_task, next(tasks)) for _ in completed}
            yield sum(future.result() for future in completed)
    finally:
        pool.shutdown(cancel_futures=True)
