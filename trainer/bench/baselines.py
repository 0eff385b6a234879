"""What the input pipeline is compared with: pipelines of others, and what this machine can do without any.

People write the plainest pipeline, or the one of the tf.data tutorials. Without a pipeline the same bytes are decoded,
or read, on all cores. `compare` gives the two figures that the summary of a run shows.
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
from trainer.bench.meter import Counts, Subject, in_turn, of_dataset
from trainer.bench.stages import Source, first_mixing, open_source, unfused
from trainer.input.parse import NO_LABEL, base_spec
from trainer.input_fn import FOREVER, make_dataset
from trainer.ops import IMAGE, Op, apply_batch_ops, apply_ops
from trainer.ops.tf_ops import without_autograph
from trainer.options import InputOptions

_TUTORIAL_SHUFFLE = 10_000  # records
_MOST_SHUFFLE_BYTES = 256e6  # so that it fits beside everything else; reached at records over 25 kB
_MOST_DRAWS = 1 << 30


def naive_dataset(path: str, split: str, options: InputOptions) -> tf.data.Dataset:
    """Builds the pipeline of the first tutorials: one file after the other, one record after the other, floats.

    It decodes the whole image, crops afterwards, and normalises on the host. The ops are otherwise those of training.

    Returns:
      endless dataset of (float32[batch, side, side, 3] in 0-1, int64[batch]: the label, or -1).
    """
    source = open_source(path, split, options)
    stream = _prepared(tf.data.TFRecordDataset(source.files), source, None).repeat()
    stream = _batched(stream, source, None)
    bare = tf.data.Options()
    bare.autotune.enabled = False
    return stream.with_options(bare)


def tutorial_dataset(path: str, split: str, options: InputOptions) -> tf.data.Dataset:
    """Builds the pipeline of the performance guides: everything parallel, and AUTOTUNE decides how far.

    Files come in random order, interleaved and mapped in parallel, 10,000 records shuffled, and batches prefetched. It
    decodes whole images and moves floats, as those guides do. The shuffle comes before the decode: 10,000 float images
    of 224 pixels are 6 GB.

    Returns:
      endless dataset of (float32[batch, side, side, 3] in 0-1, int64[batch]: the label, or -1).
    """
    source = open_source(path, split, options)
    window_records = max(1, min(_TUTORIAL_SHUFFLE, int(_MOST_SHUFFLE_BYTES / source.record_bytes)))
    # `list_files` does just this, but would take a [ in the path for a pattern.
    stream = tf.data.Dataset.from_tensor_slices(source.files).shuffle(len(source.files))
    stream = stream.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    stream = _prepared(stream.shuffle(window_records).repeat(), source, tf.data.AUTOTUNE)
    return _batched(stream, source, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _prepared(stream: tf.data.Dataset, source: Source, parallel: int | None) -> tf.data.Dataset:
    """Parses one record at a time, decodes all of it, crops, makes floats: dataset of (image, label, draw)."""
    dataset = source.choices.dataset
    ops, spec = unfused(source.choices.all_ops), base_spec(dataset)
    alone = ops[: first_mixing(ops)]

    def prepare(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(serialized, spec)
        draw = tf.random.uniform([2], maxval=_MOST_DRAWS, dtype=tf.int32)
        features = {name: parsed[name] for name in (record.HEIGHT, record.WIDTH)}
        image = apply_ops(alone, {**features, IMAGE: parsed[record.ENCODED]}, draw)[IMAGE]
        label = parsed[record.LABEL] if dataset.label_kind == "single" else tf.constant(NO_LABEL, tf.int64)
        return _floats(image) if len(alone) == len(ops) else image, label, draw

    return stream.map(prepare, num_parallel_calls=parallel)


def _batched(stream: tf.data.Dataset, source: Source, parallel: int | None) -> tf.data.Dataset:
    """Makes batches; ops that mix images can only run on these."""
    ops: Sequence[Op] = unfused(source.choices.all_ops)
    place = first_mixing(ops)
    stream = stream.batch(source.options.batch_size)

    def finish(images: tf.Tensor, label: tf.Tensor, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if place == len(ops):
            return images, label
        return _floats(apply_batch_ops(ops[place:], images, draws, place)), label

    return stream.map(finish, num_parallel_calls=parallel)


def _floats(images: tf.Tensor) -> tf.Tensor:
    return tf.image.convert_image_dtype(images, tf.float32)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Images per second of two pipelines over the same work.

    Attributes:
      feedline: of `make_dataset`.
      naive: of `naive_dataset`.
    """

    feedline: float
    naive: float

    @property
    def ratio(self) -> float:
        """How many times faster `make_dataset` is."""
        return self.feedline / self.naive


@without_autograph
def compare(path: str, split: str, options: InputOptions, seconds: float = 0.5) -> Rates:
    """Measures both pipelines of training, in turn.

    Args:
      path: directory of a published dataset.
      split: name of the split.
      options: how shards become batches.
      seconds: length of one measurement; each pipeline gets three, after a warm-up of a quarter of it.

    Raises:
      UsageError: there is no such dataset or split.
    """
    ours = make_dataset(path, split, options, training=True, epochs=FOREVER)
    naive = naive_dataset(path, split, options)
    costs = in_turn([of_dataset("feedline", ours), of_dataset("naive", naive)], seconds)
    return Rates(feedline=costs["feedline"].rate, naive=costs["naive"].rate)


_TASK_BYTES = 1 << 20  # of encoded images; some 10 ms of decoding, so that starting a task weighs nothing
_MOST_IMAGES = 256  # a task
_READ_BYTES = 4 << 20


def bare_decode(name: str, encoded: Sequence[bytes], crops: int = 1) -> Subject:
    """Returns the subject that decodes whole images on all cores, over and over: `tf.io.decode_jpeg`, nothing else.

    Args:
      name: of the subject.
      encoded: JPEG or PNG files.
      crops: images that the pipeline makes of each, so that both count the same.
    """
    mean = sum(map(len, encoded)) / len(encoded)
    size = max(1, min(_MOST_IMAGES, int(_TASK_BYTES / mean), -(-len(encoded) // cores())))
    tasks = [tf.constant(list(encoded[start : start + size])) for start in range(0, len(encoded), size)]

    def decode(task: tf.Tensor) -> float:
        return float(crops * _decode_all(task).shape[0])

    return Subject(name=name, start=lambda: _on_all_cores(decode, itertools.cycle(tasks)), warm_images=len(encoded))


def bare_read(name: str, files: Sequence[str], record_bytes: float) -> Subject:
    """Returns the subject that reads shards on all cores, over and over, without looking at them.

    Args:
      name: of the subject.
      files: paths of the shards.
      record_bytes: mean size of a record; it turns bytes into images.
    """
    ranges = list(_ranges(files))

    def read(place: tuple[str, int]) -> float:
        return len(storage.read_range(*place, _READ_BYTES)) / record_bytes

    return Subject(name=name, start=lambda: _on_all_cores(read, itertools.cycle(ranges)))


def warm_page_cache(files: Sequence[str], total_bytes: int) -> bool:
    """Reads all shards once, so that no measurement pays for the disk and the next one does not.

    Args:
      files: paths of the shards.
      total_bytes: of all of them.

    Returns:
      whether they were read; shards elsewhere, or larger than half of the free memory, would not stay.
    """
    if any(map(storage.is_remote, files)) or total_bytes > free_bytes() / 2:
        return False
    for path, offset in _ranges(files):
        storage.read_range(path, offset, _READ_BYTES)
    return True


def _ranges(files: Iterable[str]) -> Iterator[tuple[str, int]]:
    for path in files:
        for offset in range(0, storage.size(path), _READ_BYTES):
            yield path, offset


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def _decode_all(encoded: tf.Tensor) -> tf.Tensor:
    # In a graph, because calling an op from Python takes as long as decoding a small image. One pixel of each is kept:
    # an image that is not used is not decoded.
    return tf.map_fn(lambda one: decode_rgb(one)[0, 0, 0], encoded, fn_output_signature=tf.uint8, parallel_iterations=1)


def _on_all_cores(work: Callable[..., float], tasks: Iterator) -> Counts:
    """Yields what each task returns, as they end; one more waits for every core that works."""
    pool = ThreadPoolExecutor(cores())
    try:
        running: set[Future[float]] = {pool.submit(work, task) for task in itertools.islice(tasks, 2 * cores())}
        while True:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(work, next(tasks)) for _ in done}
            yield sum(future.result() for future in done)
    finally:
        pool.shutdown(cancel_futures=True)
