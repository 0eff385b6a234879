"""Checkpoints: a directory of a training, complete or not there, in plain files that no backend owns.

    checkpoint-00000120/
      variables.npz     every variable, in order, as NumPy arrays
      state.json        how far the training has come, a `Progress`: history, early stopping
      position.json     the position of the input pipeline, under 100 bytes
      checkpoint.json   SHA-256 of the others; written last, so that without it there is no checkpoint

Every file is written under another name and renamed. What survives a power cut without being whole has a wrong
checksum, and then the checkpoint before counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import ml_dtypes
import numpy as np

from beam_jobs import storage
from beam_jobs.errors import OptionError
from beam_jobs.storage import disk
from trainer.input.position import Position

if TYPE_CHECKING:
    import keras


DIVERGED_NAME = "assets.extra/diverged.txt"  # beside an exported model, which is then not to be pushed


@dataclass(kw_only=True)
class Progress:
    """The state of a training between two steps. Callbacks change it, checkpoints hold it.

    Examples:
      >>> from trainer import Progress
      >>> progress = Progress()
      >>> progress.add_epoch({"loss": 0.7, "val_accuracy": 0.9})
      >>> progress.history
      {'loss': [0.7], 'val_accuracy': [0.9]}

    Attributes:
      step: steps done.
      history: figure -> its value at the end of each epoch.
      best: the best value of the monitored figure; None before the first.
      best_epoch: the epoch it is of, from 0.
      stale: epochs since then.
      stopped: early stopping has ended the training.
      diverged: when the loss stopped being a number, in words; empty when it did not.
      train_seconds: seconds that the steps of the epoch under way took.
      counted_seconds: seconds of those that `waited_seconds` is a share of: without first executions, which compile.
      waited_seconds: seconds that those steps waited for input.
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
        """Adds the figures of a finished epoch to the history."""
        for name, value in logs.items():
            self.history.setdefault(name, []).append(float(value))

    def begin_epoch(self) -> None:
        """Sets the clocks of an epoch to zero."""
        self.train_seconds = self.counted_seconds = self.waited_seconds = 0.0

    @property
    def input_wait(self) -> float:
        """Share of the time of the steps that went into waiting for input, 0 to 1."""
        return min(1.0, self.waited_seconds / self.counted_seconds) if self.counted_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_json` takes them back."""
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
_KEPT = 2  # the newest, and the one before it should the newest be damaged
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A training at one moment.

    Attributes:
      arrays: name -> value; `arrays_of` makes them, `assign` takes them back.
      state: plain JSON values.
      position: what the input pipeline delivers next.
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
      directory: theirs alone; created when the first is written. Local or remote.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def check_room(self, size: int, count: int) -> None:
        """Checks that the checkpoints of a training fit: those that are kept, and one more while it is written.

        Args:
          size: bytes of one.
          count: how many are still to be written.

        Raises:
          DiskError: a local disk has not enough room for them.
        """
        if storage.is_remote(self.directory):
            return
        whole = [name for name in self._names() if storage.exists(storage.join(self.directory, name, INDEX_NAME))]
        needed = min(len(whole) + count, _KEPT + 1) * size
        disk.check_room(self.directory, needed - disk.used_bytes(self.directory), "the checkpoints")

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint, and removes all but the newest two once it is complete.

        Args:
          step: steps since the beginning of the training; orders the checkpoints.
          checkpoint: what to write.

        Raises:
          DiskError: a local disk does not take it; the checkpoints before are whole.
        """
        size = sum(value.nbytes for value in checkpoint.arrays.values())
        with disk.explained("writing a checkpoint", self.directory, needed=lambda: size):
            self._save(step, checkpoint)

    def _save(self, step: int, checkpoint: Checkpoint) -> None:
        path = storage.join(self.directory, f"{_PREFIX}{step:08d}")
        storage.remove(storage.join(path, INDEX_NAME))  # of the same step, from a training that was resumed before it
        digests = {VARIABLES_NAME: _write_arrays(storage.join(path, VARIABLES_NAME), checkpoint.arrays)}
        for name, values in ((STATE_NAME, checkpoint.state), (POSITION_NAME, checkpoint.position.to_json())):
            digests[name] = _write_json(storage.join(path, name), values)
        _write_json(storage.join(path, INDEX_NAME), {"sha256": digests})
        for old in self._names()[:-_KEPT]:
            storage.remove_tree(storage.join(self.directory, old))

    def latest(self) -> Checkpoint | None:
        """Returns the newest checkpoint that is complete and undamaged; None when there is none."""
        for name in reversed(self._names()):
            path = storage.join(self.directory, name)
            try:
                return _read(path)
            except (OSError, ValueError, KeyError) as error:
                _log.warning("%s is passed over: %s", path, error)
        return None

    def clear(self) -> None:
        """Removes all of them."""
        storage.remove_tree(self.directory)

    def _names(self) -> list[str]:
        return sorted(name for name in storage.list_dirs(self.directory) if re.fullmatch(_PREFIX + r"\d+", name))


def arrays_of(variables: Sequence[keras.Variable], group: str) -> dict[str, np.ndarray]:
    """Returns the values of variables under names that keep their order.

    Args:
      variables: of a model or an optimizer.
      group: first part of the names, which keeps several lists apart.
    """
    import keras  # a caller with variables has loaded it; reading checkpoints needs none of it

    values = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
    return {_name(group, index, variables[index]): value for index, value in enumerate(values)}


def bytes_of(variables: Sequence[keras.Variable]) -> int:
    """Returns the bytes that the values of variables take in a checkpoint."""
    return sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in variables)


def assign(
    variables: Sequence[keras.Variable],
    arrays: Mapping[str, np.ndarray],
    group: str,
    directory: str = "the checkpoints",
) -> None:
    """Gives variables the values of `arrays_of`.

    Args:
      variables: of a model or an optimizer.
      arrays: what `arrays_of` returned.
      group: as `arrays_of` got it.
      directory: where the checkpoint lies, for the message.

    Raises:
      OptionError: the checkpoint is of another model; nothing was assigned.
    """
    wanted = {_comparable(_name(group, index, variable)): variable for index, variable in enumerate(variables)}
    stored = {_comparable(name): value for name, value in arrays.items() if name.startswith(f"{group}/")}
    for name in {**wanted, **stored}:
        here = tuple(wanted[name].shape) if name in wanted else None
        there = stored[name].shape if name in stored else None
        if here != there:
            raise OptionError(
                f"the checkpoint is of another model: {name} has the shape {there} there and {here} here; "
                f"remove {directory} to start anew"
            )
    for name, variable in wanted.items():
        variable.assign(stored[name])


def _name(group: str, index: int, variable: keras.Variable) -> str:
    # Keras numbers layers of one kind within a process: the second model of one has other numbers than the first.
    path = re.sub(r"_\d+(?=/|_|$)", "", getattr(variable, "path", variable.name))
    return f"{group}/{index:05d}/{path.replace('/', '.')}"


def _comparable(name: str) -> str:
    # Keras 3.15 calls `adam_w`, `rm_sprop` and `sgd` what it called `adamw`, `rmsprop` and `SGD` before.
    return name.replace("_", "").lower()


def _write_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    with storage.atomic_writer(path, durable=False) as stream:
        names = np.array([f"{value.dtype.name} {name}" for name, value in arrays.items()])
        with contextlib.closing(_Hashed(stream)) as hashed:
            np.savez(hashed, names, *map(_as_bytes, arrays.values()))
    return hashed.digest.hexdigest()


def _as_bytes(value: np.ndarray) -> np.ndarray:
    # NumPy does not know bfloat16 and would lose what it is; its bytes it knows.
    return value if value.dtype.kind != "V" else value.view(f"u{value.dtype.itemsize}")


def _read(path: str) -> Checkpoint:
    digests = json.loads(storage.read_bytes(storage.join(path, INDEX_NAME)))["sha256"]
    contents = {name: storage.read_bytes(storage.join(path, name)) for name in digests}
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != digests[name]:
            raise ValueError(f"{name} is not what {INDEX_NAME} says")
    with np.load(io.BytesIO(contents[VARIABLES_NAME]), allow_pickle=False) as stored:
        names = [str(line).partition(" ") for line in stored["arr_0"]]
        arrays = {name: _typed(stored[f"arr_{number}"], dtype) for number, (dtype, _, name) in enumerate(names, 1)}
    return Checkpoint(
        arrays=arrays,
        state=json.loads(contents[STATE_NAME]),
        position=Position.from_json(json.loads(contents[POSITION_NAME])),
    )


def _typed(value: np.ndarray, dtype: str) -> np.ndarray:
    return value if value.dtype.name == dtype else value.view(getattr(ml_dtypes, dtype))


def _write_json(path: str, values: Mapping[str, Any]) -> str:
    data = json.dumps(values).encode()
    storage.write_bytes(path, data, durable=False)
    return hashlib.sha256(data).hexdigest()


class _Hashed:
    """A stream that is only ever appended to; what went through is hashed, so that it need not be read again."""

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
        """Takes no more: when a write fails, NumPy leaves its archive open, and it writes its end when it is freed."""
        self._closed = True

    def read(self, _: int = -1) -> bytes:
        """Not there to be called: by it NumPy tells a stream from the name of a file."""
        raise io.UnsupportedOperation("read")
