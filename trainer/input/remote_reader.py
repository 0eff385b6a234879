"""Runs of records in shards of Google Storage, each fetched by one request for exactly its bytes.

The client of TensorFlow fetches 64 MB whenever it opens a file, even for a run of half a MB. Only an environment
variable that is set before TensorFlow is imported can change that.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from beam_jobs import storage
from beam_jobs.dataset import tfrecord
from beam_jobs.errors import CorruptDataset, DatasetChanged, FeedlineError, SourceError
from trainer.input.faults import raise_fault, register_fault
from trainer.input.index import replaced_message

T = TypeVar("T")

SCHEME = "gs://"  # shards of other stores are copied, or read by TensorFlow
_MAX_THREADS = 64  # for all datasets of the process; threads start when needed
_EXIT_WAIT_S, _QUIET_S = 4.0, 0.2  # see `_stop`: a busy machine may run no thread of TensorFlow for a tenth of a second

# Clients of a store are thread-local, and a thread of TensorFlow loses them after each call, so these threads use them.
_queue: queue.SimpleQueue[tuple[Future, Callable[[], Any]]] = queue.SimpleQueue()
_threads: list[threading.Thread] = []
_pending: set[Future] = set()  # results for which threads of TensorFlow wait
_unfinished: set[Future] = set()  # results, cancelled ones too, whose function is queued or runs
_lock = threading.Lock()
_exiting = threading.Event()


def fetch_run(name: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns the records of a run, a string tensor of shape [count]; a failure is raised by `raise_fault`.

    Args:
      name: path of the shard.
      begin: first byte of the first record, int64.
      end: the byte after the last record, int64.
      count: number of records, int64.
    """
    records, fault = tf.numpy_function(_fetch_run, [name, begin, end, count], [tf.string, tf.string])
    with tf.control_dependencies([raise_fault(fault)]):
        return tf.ensure_shape(records, [None])


def check_manifest(path: str, crc32c: int) -> tf.Operation:
    """Returns an operation that fails with `raise_fault` if the store has another `dataset.json`.

    Args:
      path: path of `dataset.json`.
      crc32c: checksum of the content that was read.
    """
    return raise_fault(tf.numpy_function(_compare_manifest, [path, tf.constant(crc32c, tf.int64)], tf.string))


def _fetch_run(name: bytes, begin: np.int64, end: np.int64, count: np.int64) -> tuple[np.ndarray, bytes]:
    path = os.fsdecode(name)
    records, fault = _run_in_thread(path, lambda: _read_records(path, int(begin), int(end), int(count)))
    # As objects, because the bytes type of NumPy strips zeros at the end.
    return np.array(records or [], object), fault


def _compare_manifest(name: bytes, crc32c: np.int64) -> bytes:
    path = os.fsdecode(name)

    def compare() -> None:
        if storage.describe(path).crc32c != crc32c:
            raise DatasetChanged(replaced_message(os.path.dirname(path)))

    return _run_in_thread(path, compare)[1]


def _read_records(path: str, begin: int, end: int, count: int) -> list[bytes]:
    stream = io.BytesIO(storage.read_range(path, begin, end - begin))
    records: list[bytes] = []
    while len(records) < count:
        payload = tfrecord.read_record(stream, path, begin + stream.tell())
        if payload is None:
            raise CorruptDataset(f"{path} ends before its last record, at offset {begin + stream.tell()}")
        records.append(payload)
    return records


def _run_in_thread(path: str, function: Callable[[], T]) -> tuple[T | None, bytes]:
    """Runs a function in a thread that keeps its client of the store; returns the result, and the fault or b''."""
    future: Future[T] = Future()
    try:
        _submit(future, function)
        return future.result(), b""
    except FeedlineError as error:
        return None, register_fault(error.with_traceback(None)).encode()  # the traceback refers to the bytes
    except OSError as error:
        failure = SourceError(f"{path} cannot be read: {error.strerror or error}; try again")
        return None, register_fault(failure).encode()
    except CancelledError:
        return None, b"the process ends"
    finally:
        with _lock:
            _pending.discard(future)


def _submit(future: Future, function: Callable[[], Any]) -> None:
    with _lock:
        _pending.add(future)
        _unfinished.add(future)
        if _exiting.is_set():
            future.cancel()
        elif len(_threads) < min(len(_pending), _MAX_THREADS):
            # No executor of Python: at exit it waits for running requests, as long as the client of the store retries.
            _threads.append(threading.Thread(target=_run_queue, name="fetch", daemon=True))
            _threads[-1].start()
    _queue.put((future, function))


def _run_queue() -> None:
    while True:
        _run(*_queue.get())  # a separate function, because an idle thread must keep no records


def _run(future: Future, function: Callable[[], Any]) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled
        try:
            if not future.cancelled():
                future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            future.set_exception(error)
    with _lock:
        _unfinished.discard(future)


@atexit.register
def _stop() -> None:
    # At exit, the interpreter ends a thread of TensorFlow that runs Python code, and TensorFlow waits for it for ever;
    # a thread of this module that is ended while it collects garbage, such as a dataset, aborts the process.
    _exiting.set()
    if not _threads:  # no run was ever fetched
        return
    deadline, quiet_until = time.monotonic() + _EXIT_WAIT_S, time.monotonic() + _QUIET_S
    while time.monotonic() < min(deadline, quiet_until):
        with _lock:
            for future in _pending:
                future.cancel()
            if _pending or _unfinished:
                quiet_until = time.monotonic() + _QUIET_S
        time.sleep(_QUIET_S / 10)
