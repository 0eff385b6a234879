"""Checkpoints: one directory per step, in file formats that are independent of the backend.

    checkpoint-00000120/
      variables.npz     every variable, in order, as NumPy arrays
      state.json        the `Progress` of the training: step, history, early stopping
      position.json     the position of the input pipeline, under 100 bytes
      checkpoint.json   SHA-256 of the other files; written last: a directory without it is an incomplete checkpoint

Every file is written under a temporary name and renamed. If a power cut truncates a file, its checksum is wrong, and
the previous checkpoint is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import ml_dtypes
import numpy as np

from beam_jobs import storage
from beam_jobs.errors import OptionError
from beam_jobs.storage import disk, lock
from trainer.input.position import Position

if TYPE_CHECKING:
    import keras


DIVERGED_NAME = "assets.extra/diverged.txt"  # file in an exported model whose training diverged; prevents the push


@dataclass(kw_only=True)
class Progress:
    """The state of a training between two steps. Callbacks update it, checkpoints store it.

    Examples:
      >>> from trainer import Progress
      >>> progress = Progress()
      >>> progress.add_epoch({"loss": 0.7, "val_accuracy": 0.9})
      >>> progress.history
      {'loss': [0.7], 'val_accuracy': [0.9]}

    Attributes:
      step: number of completed steps.
      history: name of a metric -> its value at the end of each epoch.
      best: best value of the monitored metric; None before the end of the first epoch.
      best_epoch: epoch of the best value, from 0.
      stale: number of epochs since the best epoch.
      stopped: whether early stopping has ended the training.
      diverged: message that names the step at which the loss became NaN or infinite; empty while it is finite.
      train_seconds: duration of the steps of the current epoch, seconds.
      counted_seconds: `train_seconds` without the first execution of each `fit`, which compiles; the denominator of
        `input_wait`.
      waited_seconds: input wait within `counted_seconds`, seconds.
    """

    step: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    best: float | None = None
    best_epoch: int = 0
    stale: int = 0
    stopped: bool = False
    diverged: str = ""
    train_seconds: float = 0.0
    counted_seconds: float = 0.0
    waited_seconds: float = 0.0

    def add_epoch(self, logs: Mapping[str, float]) -> None:
        """Adds the metrics of a finished epoch to the history."""
        for name, value in logs.items():
            self.history.setdefault(name, []).append(float(value))

    @property
    def input_wait(self) -> float:
        """Share of the duration of the steps that was input wait, 0 to 1."""
        return min(1.0, self.waited_seconds / self.counted_seconds) if self.counted_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """Builds the state from `to_json` output."""
        return cls(**values)


INDEX_NAME = "checkpoint.json"
POSITION_NAME = "position.json"
STATE_NAME = "state.json"
VARIABLES_NAME = "variables.npz"
_PREFIX = "checkpoint-"
_MAX_CHECKPOINTS = 2  # the newest, and the previous one in case the newest is damaged
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
      arrays: name -> value of a variable, from `to_arrays` and for `assign`.
      state: `Progress.to_json()` of the training.
      position: position of the next record of the input pipeline.
    """

    arrays: Mapping[str, np.ndarray]
    state: Mapping[str, Any]
    position: Position


class Checkpoints:
    """The checkpoints of one training.

    Examples:
      >>> import numpy as np
      >>> from trainer import Checkpoints, Position
      >>> from trainer.training.checkpoint import Checkpoint
      >>> checkpoints = Checkpoints("checkpoints")
      >>> arrays = {"model/kernel": np.zeros((3, 3), "float32")}
      >>> checkpoints.save(120, Checkpoint(arrays=arrays, state={"step": 120}, position=Position(records=7_680)))
      >>> checkpoints.latest().position
      Position(epoch=0, records=7680)
      >>> checkpoints.clear()
      >>> checkpoints.latest() is None
      True

    Args:
      directory: local or remote directory for the checkpoints only; `save` creates it.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._check_lock: Callable[[], None] = lambda: None  # raises `OptionError` if the lock is lost

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Locks the checkpoints against other trainings for the duration of the block.

        Raises:
          OptionError: another training uses them. `save` and `clear` raise it if another training has taken the lock,
            which is possible if this process was suspended for longer than the lease of the lock.
        """
        path = f"{self.directory}-lock"
        storage.make_dirs(os.path.dirname(path))
        refusal = f"{self.directory} is in use by another training: {lock.OWNER}; wait for its end"
        with lock.exclusive(path, refusal) as self._check_lock:
            yield
        self._check_lock = lambda: None

    def check_room(self, size: int, count: int) -> None:
        """Checks that the disk has space for the retained checkpoints, and for one more while it is written.

        Args:
          size: size of a checkpoint, bytes.
          count: number of checkpoints that the training will write.

        Raises:
          DiskError: a local disk does not have enough space for them.
        """
        if storage.is_remote(self.directory):
            return
        complete_count = sum(storage.exists(storage.join(self.directory, name, INDEX_NAME)) for name in self._names())
        needed_bytes = min(complete_count + count, _MAX_CHECKPOINTS + 1) * size
        disk.check_room(self.directory, needed_bytes - disk.used_bytes(self.directory), "the checkpoints")

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint, and removes all but the newest two once it is complete.

        Args:
          step: number of completed steps of the training, which orders the checkpoints.
          checkpoint: content of the checkpoint.

        Raises:
          DiskError: a local disk cannot store the checkpoint; the previous checkpoints remain complete.
        """
        self._check_lock()
        size = sum(value.nbytes for value in checkpoint.arrays.values())
        with disk.explain_errors("writing a checkpoint", self.directory, needed=lambda: size):
            path = storage.join(self.directory, f"{_PREFIX}{step:08d}")
            storage.remove(storage.join(path, INDEX_NAME))  # exists if an earlier process wrote the same step
            digests = {VARIABLES_NAME: _write_arrays(storage.join(path, VARIABLES_NAME), checkpoint.arrays)}
            for name, values in ((STATE_NAME, checkpoint.state), (POSITION_NAME, checkpoint.position.to_json())):
                digests[name] = _write_json(storage.join(path, name), values)
            _write_json(storage.join(path, INDEX_NAME), {"sha256": digests})
            for old_name in self._names()[:-_MAX_CHECKPOINTS]:
                storage.remove_tree(storage.join(self.directory, old_name))

    def latest(self) -> Checkpoint | None:
        """Returns the newest complete and undamaged checkpoint, or None."""
        for name in reversed(self._names()):
            path = storage.join(self.directory, name)
            try:
                return _read_checkpoint(path)
            except (OSError, ValueError, KeyError) as error:
                _log.warning("%s is skipped: %s", path, error)
        return None

    def clear(self) -> None:
        """Removes all checkpoints."""
        self._check_lock()
        storage.remove_tree(self.directory)

    def _names(self) -> list[str]:
        return sorted(name for name in storage.list_dirs(self.directory) if re.fullmatch(_PREFIX + r"\d+", name))


def to_arrays(variables: Sequence[keras.Variable], group: str) -> dict[str, np.ndarray]:
    """Returns the values of variables under names that preserve their order.

    Args:
      variables: variables of a model or an optimizer.
      group: first part of the names, which distinguishes several lists of variables in one checkpoint.
    """
    import keras  # imported here, because reading checkpoints does not need Keras

    values = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
    return {_array_name(group, index, variables[index]): value for index, value in enumerate(values)}


def count_bytes(variables: Sequence[keras.Variable]) -> int:
    """Returns the size of variables in a checkpoint, in bytes."""
    return sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in variables)


def assign(
    variables: Sequence[keras.Variable],
    arrays: Mapping[str, np.ndarray],
    group: str,
    directory: str = "the checkpoints",
) -> None:
    """Assigns stored values to variables.

    Args:
      variables: variables of a model or an optimizer.
      arrays: name -> value, from `to_arrays`.
      group: the `group` of `to_arrays`.
      directory: directory of the checkpoints, for the error message.

    Raises:
      OptionError: the checkpoint is of another model. No variable is changed then.
    """
    targets = {_normalise(_array_name(group, index, variable)): variable for index, variable in enumerate(variables)}
    stored_values = {_normalise(name): value for name, value in arrays.items() if name.startswith(f"{group}/")}
    for name in {**targets, **stored_values}:
        shape = tuple(targets[name].shape) if name in targets else None
        stored_shape = stored_values[name].shape if name in stored_values else None
        if shape != stored_shape:
            raise OptionError(
                f"the checkpoint is of another model: {name} has the shape {stored_shape} in the checkpoint and "
                f"{shape} in the model; remove {directory} to start from the beginning"
            )
    for name, variable in targets.items():
        variable.assign(stored_values[name])


def _array_name(group: str, index: int, variable: keras.Variable) -> str:
    # Keras numbers the layers of a class through all models of a process, so the numbers are removed from the name.
    path = re.sub(r"_\d+(?=/|_|$)", "", getattr(variable, "path", variable.name))
    return f"{group}/{index:05d}/{path.replace('/', '.')}"


def _normalise(name: str) -> str:
    # Earlier versions of Keras name optimizers `adamw`, `rmsprop`, `SGD`; version 3.15 `adam_w`, `rm_sprop`, `sgd`.
    return name.replace("_", "").lower()


def _write_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes a NPZ file: first the dtype and name of each array, then the arrays; returns its SHA-256."""
    with storage.atomic_writer(path, durable=False) as stream:
        dtypes_and_names = np.array([f"{value.dtype.name} {name}" for name, value in arrays.items()])
        with contextlib.closing(_HashingWriter(stream)) as writer:
            np.savez(writer, dtypes_and_names, *map(_as_storable, arrays.values()))
    return writer.digest.hexdigest()


def _as_storable(value: np.ndarray) -> np.ndarray:
    # NumPy cannot store the dtype bfloat16, so its bytes are stored as integers.
    return value if value.dtype.kind != "V" else value.view(f"u{value.dtype.itemsize}")


def _read_checkpoint(path: str) -> Checkpoint:
    digests = json.loads(storage.read_bytes(storage.join(path, INDEX_NAME)))["sha256"]
    contents = {name: storage.read_bytes(storage.join(path, name)) for name in digests}
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != digests[name]:
            raise ValueError(f"{name} does not match its SHA-256 in {INDEX_NAME}")
    with np.load(io.BytesIO(contents[VARIABLES_NAME]), allow_pickle=False) as stored:
        rows = [str(dtype_and_name).partition(" ") for dtype_and_name in stored["arr_0"]]
        arrays = {name: _restore_dtype(stored[f"arr_{i}"], dtype) for i, (dtype, _, name) in enumerate(rows, 1)}
    return Checkpoint(
        arrays=arrays,
        state=json.loads(contents[STATE_NAME]),
        position=Position.from_json(json.loads(contents[POSITION_NAME])),
    )


def _restore_dtype(value: np.ndarray, dtype: str) -> np.ndarray:
    return value if value.dtype.name == dtype else value.view(getattr(ml_dtypes, dtype))


def _write_json(path: str, values: Mapping[str, Any]) -> str:
    data = json.dumps(values).encode()
    storage.write_bytes(path, data, durable=False)
    return hashlib.sha256(data).hexdigest()


class _HashingWriter:
    """An append-only stream that hashes the written bytes, so that the file need not be read again."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._closed = False
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        if self._closed:
            return len(data)
        self.digest.update(data)
        return self._stream.write(data)

    def flush(self) -> None:
        if not self._closed:
            self._stream.flush()

    def close(self) -> None:
        """Makes `write` discard data: after a failed write, NumPy's zip archive writes its directory when freed."""
        self._closed = True

    def read(self, _: int = -1) -> bytes:
        """Exists because NumPy takes an object without this method for a file name; never called."""
        raise io.UnsupportedOperation("read")
