"""The class hierarchy of errors, with exit codes.

    FeedlineError                exit 1
    ├── UsageError               exit 2   the request is invalid; nothing was changed
    │   ├── OptionError                   an option or configuration key
    │   └── SourceError                   the source of the images
    ├── DiskError                exit 1   a local disk is full, read-only or missing
    ├── Unreadable               exit 1   images may exist, but cannot be read at present
    └── DataError                exit 3   the data failed a check; nothing was published
        ├── TooManyRejects                more bad images than allowed
        ├── EmptySplit                    a split would contain no image
        ├── SplitConflict                 images of one unit would be in several splits
        ├── SourceChanged                 an image changed during the ingest
        ├── DatasetChanged                another dataset was published during a run
        ├── CorruptDataset                a published file differs from its manifest
        ├── GateFailed                    a limit of the dataset gate was exceeded
        └── TrainingDiverged              the loss of a training became NaN or infinite

`BadImage` is not in this hierarchy: it concerns one image, is always caught, and becomes a `Reject`.

`check_choice` and the other checks raise errors whose message is one line: name, value and allowed values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from beam_jobs.common import strings
from beam_jobs.rejects import RejectReason


class Fault(NamedTuple):
    """A failed read or write: the key of an image, or the name of a file, and the cause."""

    key: str
    cause: str


class FeedlineError(Exception):
    """Base class of all errors that are shown to users; the message explains the error completely.

    The message is one line, followed by one line for each of `problems`.

    Attributes:
      exit_code: exit code of the command.
      problems: lines that follow the first one, such as the problems of a verification.

    Examples:
      >>> from beam_jobs import FeedlineError, load
      >>> try:
      ...     load("nowhere")
      ... except FeedlineError as error:
      ...     print(error.exit_code, error)
      2 nowhere is not a dataset: it has no dataset.json; make one with `feedline ingest`
    """

    exit_code: ClassVar[int] = 1
    problems: Sequence[str] = ()

    def __str__(self) -> str:
        """Returns the message; control characters in names, such as line feeds, are escaped."""
        return strings.lines([super().__str__(), *self.problems])


class UsageError(FeedlineError):
    """The request is invalid; nothing was changed.

    Examples:
      >>> from beam_jobs import OptionError, SourceError, UsageError
      >>> issubclass(OptionError, UsageError), issubclass(SourceError, UsageError), UsageError.exit_code
      (True, True, 2)
    """

    exit_code = 2


class OptionError(UsageError):
    """An option or configuration key is unknown or out of range.

    Examples:
      >>> from beam_jobs import ImageLimits
      >>> ImageLimits(min_side_px=0)
      Traceback (most recent call last):
      beam_jobs.errors.OptionError: min_side_px is 0; it must be a whole number of at least 1

    Attributes:
      keys: names of the invalid options, dotted for settings of a file; empty if unknown.
    """

    def __init__(self, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, tuple[str, ...]]]:
        # Exceptions pickle through `args`, which contains only the message.
        return type(self), (str(self), self.keys)


class SourceError(UsageError):
    """The source of images does not exist, cannot be read or does not have the expected structure.

    Examples:
      >>> from beam_jobs import IngestOptions, run
      >>> run(IngestOptions(source="nowhere", out="new"))
      Traceback (most recent call last):
      beam_jobs.errors.SourceError: ...nowhere...
    """


class DiskError(FeedlineError):
    """A local disk is full, read-only or missing."""


class Unreadable(FeedlineError):
    """Images that may exist cannot be read: no permission, or a failing disk, network or store.

    The images are not rejected, because another attempt may succeed.

    Attributes:
      faults: keys of the images and the causes.
    """

    def __init__(self, message: str, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class DataError(FeedlineError):
    """The data failed a check, so nothing was published.

    Examples:
      >>> from beam_jobs import DataError, EmptySplit, TooManyRejects
      >>> issubclass(TooManyRejects, DataError), issubclass(EmptySplit, DataError), DataError.exit_code
      (True, True, 3)
    """

    exit_code = 3


class TooManyRejects(DataError):
    """The share of bad images is over `max_reject_ratio`.

    Examples:
      >>> from beam_jobs import IngestOptions, TooManyRejects, run
      >>> try:
      ...     run(IngestOptions(source="photos", out="strict", max_reject_ratio=0))
      ... except TooManyRejects as error:
      ...     print(str(error).partition(":")[0])
      1 of 49 images are bad (2.0%), max_reject_ratio is 0.0%
    """


class EmptySplit(DataError):
    """A requested split would contain no image.

    Examples:
      >>> from beam_jobs import EmptySplit, IngestOptions, run
      >>> try:
      ...     run(IngestOptions(source="photos", out="uneven", splits={"train": 1, "rare": 1e-9}))
      ... except EmptySplit as error:
      ...     print("rare" in str(error))
      True
    """


class Float32Loss(DataError):
    """Storing a user column as float32 would change its numbers, and `float32_loss` is `refuse`."""


class SplitConflict(DataError):
    """Images of one unit would be in several splits, and `split_conflicts` is `refuse`.

    Examples:
      >>> import shutil
      >>> from beam_jobs import IngestOptions, SplitConflict, TableColumns, run
      >>> copy = shutil.copy("photos/cat/000.jpg", "photos/cat/twin.jpg")
      >>> with open("parted.csv", "w") as table:
      ...     for row in ("image,label,split", "photos/cat/000.jpg,cat,train", "photos/cat/twin.jpg,cat,eval"):
      ...         print(row, file=table)
      >>> columns = TableColumns(split="split")
      >>> try:
      ...     run(IngestOptions(source="parted.csv", out="parted", columns=columns, split_conflicts="refuse"))
      ... except SplitConflict as error:
      ...     print("twin.jpg in eval" in str(error))
      True
    """


class SourceChanged(DataError):
    """An image changed after it was examined.

    Attributes:
      key: key of the image; empty if the error does not give it.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class DatasetChanged(DataError):
    """Another dataset was published in a directory while a run read the previous one, or wrote a new one."""


class CorruptDataset(DataError):
    """A file of a published dataset differs from its manifest, or the manifest is invalid.

    Examples:
      >>> from pathlib import Path
      >>> from beam_jobs import CorruptDataset, load
      >>> size = Path("dataset/dataset.json").write_text("{}")
      >>> try:
      ...     load("dataset")
      ... except CorruptDataset as error:
      ...     print(error)
      dataset/dataset.json cannot be used: it lacks 'format_version'; write the dataset again
    """


class GateFailed(DataError):
    """A limit of the dataset gate, or of the evaluation, was exceeded.

    Attributes:
      verdict: result of the dataset gate, the content of `verdict.json`; None for the evaluation.
    """

    def __init__(self, message: str, verdict: Mapping[str, Any] | None = None, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.verdict, self.problems = verdict, problems


class TrainingDiverged(DataError):
    """The loss of a training became NaN or infinite; nothing was exported."""


class BadImage(Exception):
    """One image cannot be used.

    Attributes:
      reason: reason of the reject.
      detail: one line for users: the value and the exceeded limit.
      size: number of bytes that were read; None if unknown.
    """

    def __init__(self, reason: RejectReason, detail: str, size: int | None = None) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail
        self.size = size

    def __reduce__(self) -> tuple[type[BadImage], tuple[RejectReason, str, int | None]]:
        # Exceptions pickle through `args`, which contains the joined message, not the parts.
        return type(self), (self.reason, self.detail, self.size)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes, the innermost last; each error once, because causes can form a cycle."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def os_errors_as(error_class: type[FeedlineError], problem: str) -> Iterator[None]:
    """Raises each `OSError` of the block as an error of the class `error_class`, with the message `PROBLEM: reason`."""
    try:
        yield
    except OSError as error:
        raise error_class(f"{problem}: {error.strerror or error}") from error


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raises `OptionError` unless the value is one of the allowed values."""
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def check_whole(name: str, value: object, minimum: int | None = None) -> None:
    """Raises `OptionError` unless the value is an int, not a bool, of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
        range_text = "" if minimum is None else f" of at least {minimum}"
        raise OptionError(f"{name} is {value!r}; it must be a whole number{range_text}")


def check_at_least(name: str, value: object, minimum: float) -> None:
    """Raises `OptionError` unless the value is a finite number of at least `minimum`."""
    if not _is_number(value) or not minimum <= value < math.inf:  # type: ignore[operator]
        raise OptionError(f"{name} is {value!r}; it must be a number of at least {minimum:g}")


def check_above(name: str, value: object, minimum: float) -> None:
    """Raises `OptionError` unless the value is a finite number above `minimum`."""
    if not _is_number(value) or not minimum < value < math.inf:  # type: ignore[operator]
        raise OptionError(f"{name} is {value!r}; it must be a number above {minimum:g}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
