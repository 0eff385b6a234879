"""Everything that can go wrong, in one tree.

    FeedlineError                exit 1
    ├── UsageError               exit 2   the request is wrong; nothing was touched
    │   ├── OptionError                   an option or configuration key
    │   └── SourceError                   where the images should come from
    ├── DiskError                exit 1   a local disk takes no more
    ├── Unreadable               exit 1   images may be there, and cannot be read now
    └── DataError                exit 3   the data failed a check; nothing was published
        ├── TooManyRejects                more bad images than allowed
        ├── EmptySplit                    a split that would hold no image
        ├── SplitConflict                 images that belong together would lie in several splits
        ├── SourceChanged                 an image changed while it was being ingested
        ├── DatasetChanged                another dataset was published while one was read or written
        ├── CorruptDataset                a published file is not what its manifest says
        ├── GateFailed                    a limit of the dataset gate was crossed
        └── TrainingDiverged              the loss of a training is not a number any more

`BadImage` stands apart: it concerns one image, is always caught, and becomes a `Reject`.

`check_choice` and the like are the checks that options make of their values: one line with name, value and what is
allowed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from beam_jobs.common import strings


class Fault(NamedTuple):
    """What may be there and could not be read or written: the key of an image, or the name of a file, and the cause."""

    key: str
    cause: str


class FeedlineError(Exception):
    """Base of every error a user is meant to read; the message is the whole explanation.

    It is one line, whatever names are in it, and a further one for each of `problems`.

    Attributes:
      exit_code: what the command line ends with.
      problems: what was found, where that is a list.

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
        """Returns the message; a line feed in a name is an escape there."""
        return strings.lines([super().__str__(), *self.problems])


class UsageError(FeedlineError):
    """The request cannot be carried out as it stands; nothing was touched.

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
      keys: names of the options that the error is about, dotted where they are settings of a file; empty where it does
        not know them.
    """

    def __init__(self, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, tuple[str, ...]]]:
        # Exceptions pickle through `args`, which holds the message alone.
        return type(self), (str(self), self.keys)


class SourceError(UsageError):
    """The source of images does not exist, cannot be read or has the wrong shape.

    Examples:
      >>> from beam_jobs import IngestOptions, run
      >>> run(IngestOptions(source="nowhere", out="new"))
      Traceback (most recent call last):
      beam_jobs.errors.SourceError: ...nowhere...
    """


class DiskError(FeedlineError):
    """A local disk is full, read-only or gone."""


class Unreadable(FeedlineError):
    """An image, or several, may be there and cannot be read: no permission, or a failing disk, network or store.

    That says nothing of the images, so it makes no reject of them; another attempt may succeed.

    Attributes:
      faults: pairs of the key of such an image and the cause.
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
    """A requested split would hold no image.

    Examples:
      >>> from beam_jobs import EmptySplit, IngestOptions, run
      >>> try:
      ...     run(IngestOptions(source="photos", out="uneven", splits={"train": 1, "rare": 1e-9}))
      ... except EmptySplit as error:
      ...     print("rare" in str(error))
      True
    """


class Float32Loss(DataError):
    """The float32 of a record would change numbers of a user column, and `float32_loss` is `refuse`."""


class SplitConflict(DataError):
    """Images that belong together would lie in several splits, and `split_conflicts` is `refuse`.

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
    """An image is not the one that was examined.

    Attributes:
      key: of the image; empty where it concerns none.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class DatasetChanged(DataError):
    """Another dataset was published in a directory while a run read the one before, or wrote its own."""


class CorruptDataset(DataError):
    """A file of a published dataset disagrees with its manifest.

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
    """A limit of the dataset gate, or of the evaluation, was crossed.

    Attributes:
      verdict: what the dataset gate found, the content of `verdict.json`; None for the evaluation.
    """

    def __init__(self, message: str, verdict: Mapping[str, Any] | None = None, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.verdict, self.problems = verdict, problems


class TrainingDiverged(DataError):
    """The loss of a training is not a number any more; nothing was exported."""


class RejectReason(str, enum.Enum):
    """Why an image is not in the dataset. Values are stable: they are written to `rejects.parquet`.

    Examples:
      >>> from beam_jobs import RejectReason, load
      >>> [RejectReason(reason).name for reason in load("dataset").counts.rejects]
      ['NOT_AN_IMAGE']

    Attributes:
      NO_LABEL: it lies in no class folder, or its label cell is empty.
      BAD_ANNOTATION: labels, boxes, segmentations or weights are not what they can be, or not of this image.
      BAD_MASK: the class mask is missing, damaged, of another size, or holds colours or undeclared values instead of
        class indices.
      UNKNOWN_SPLIT: the split column names a split that is not among the splits of the options.
      NAME_NOT_UTF8: the name of the file is not UTF-8.
      DUPLICATE_KEY: another entry of the source has the same key.
      BAD_MEMBER: a member of an archive, or a record, cannot be read: encrypted, damaged, a link, outside the archive.
      NOT_A_FILE: it is a pipe, a socket, a device or a directory, or the cell that should name it is empty.
      OUTSIDE_ROOT: it is a link that leads out of the source folder.
      UNREADABLE: it is missing; or it may be there, cannot be read, and `unreadable` is `reject`: then the next run
        tries again.
      NOT_FETCHED: the web server gave no answer, or not this image; the next run tries again.
      ADDRESS_REFUSED: the URL leads to a private address, or is not http(s).
      EMPTY_FILE: it has 0 bytes.
      TOO_MANY_BYTES: it has more than `max_bytes`.
      NOT_AN_IMAGE: it does not start like JPEG, PNG, GIF, BMP, TIFF or WebP, whatever its name says.
      BAD_HEADER: the header cannot be parsed, or names more tags, chunks or segments than an honest file has.
      TOO_SMALL: a side is shorter than `min_side_px`.
      TOO_LARGE: it has more than `max_pixels`, a side longer than `max_side_px`, or over 100 scans.
      BAD_ASPECT: the long side is more than `max_aspect` times the short one.
      FORGED_SIZE: it has fewer bytes than an image of the size it claims can have.
      UNKNOWN_RANGE: pixels are 32-bit, signed or floating-point: nothing says which value is white.
      UNDECODABLE: the decoder refuses it: truncated or damaged.
      TOO_SLOW: decoding takes more computing time than `max_seconds`.
      DECODER_CRASHED: the decoder died of it three times, or ran out of its 2 GiB of memory.
    """

    NO_LABEL = "no_label"
    BAD_ANNOTATION = "bad_annotation"
    BAD_MASK = "bad_mask"
    UNKNOWN_SPLIT = "unknown_split"
    NAME_NOT_UTF8 = "name_not_utf8"
    DUPLICATE_KEY = "duplicate_key"
    BAD_MEMBER = "bad_member"
    NOT_A_FILE = "not_a_file"
    OUTSIDE_ROOT = "outside_root"
    UNREADABLE = "unreadable"
    NOT_FETCHED = "not_fetched"
    ADDRESS_REFUSED = "address_refused"
    EMPTY_FILE = "empty_file"
    TOO_MANY_BYTES = "too_many_bytes"
    NOT_AN_IMAGE = "not_an_image"
    BAD_HEADER = "bad_header"
    TOO_SMALL = "too_small"
    TOO_LARGE = "too_large"
    BAD_ASPECT = "bad_aspect"
    FORGED_SIZE = "forged_size"
    UNKNOWN_RANGE = "unknown_range"
    UNDECODABLE = "undecodable"
    TOO_SLOW = "too_slow"
    DECODER_CRASHED = "decoder_crashed"


class BadImage(Exception):
    """One image cannot be used.

    Attributes:
      reason: the category it is counted under.
      detail: one line for a person: the value found and the limit it crossed.
    """

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[BadImage], tuple[RejectReason, str]]:
        # Exceptions pickle through `args`, which holds the joined message here, not the two parts.
        return type(self), (self.reason, self.detail)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what it comes from, the innermost last; each once, for two can be the cause of each other."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raises `OptionError` unless the value is one of the allowed."""
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def check_whole(name: str, value: object, minimum: int | None = None) -> None:
    """Raises `OptionError` unless the value is an int of at least `minimum`; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
        least = "" if minimum is None else f" of at least {minimum}"
        raise OptionError(f"{name} is {value!r}; it must be a whole number{least}")


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
