"""What this machine can do without any pipeline: decode the same bytes, or read them, on all cores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import tensorflow as tf

from beam_jobs import storage
from beam_jobs.common.system import cores, free_bytes
from beam_jobs.images.decode import decode_rgb
from trainer.bench.meter import Counts, Subject

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
