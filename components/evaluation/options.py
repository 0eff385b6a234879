"""The options of the evaluation, checked when they are made."""

from __future__ import annotations

from collections.abc import Collection

from pydantic.dataclasses import dataclass

from beam_jobs.common.settings import STRICT, Options, Share
from beam_jobs.dataset import record
from beam_jobs.dataset.user_columns import check_column
from beam_jobs.errors import OptionError


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateOptions(Options):
    """When a model is good enough to be pushed, and what is looked at apart.

    Attributes:
      min_accuracy: accuracy on the eval split below which the model is not blessed, 0-1. 0 is no limit.
      above_largest_class: bless no model for which always answering with the largest class is an explanation: the lower
        end of the 95 % interval of the accuracy must lie above the share of that class in the eval split.
      max_drop: how far the accuracy may lie below that of the model blessed before, on the same images, 0-1; None
        compares with none. The first model, and one of other classes than those before it, has none to compare with.
      slice_by: user columns, without `extra/`, whose values are measured one by one: columns of few values.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
    """

    min_accuracy: Share = 0.0
    above_largest_class: bool = True
    max_drop: Share | None = None
    slice_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.slice_by)) < len(self.slice_by):
            raise OptionError(f"slice_by is {list(self.slice_by)!r}; it names a column twice")
        for name in self.slice_by:
            if name.startswith(record.EXTRA_PREFIX):
                plain = name.removeprefix(record.EXTRA_PREFIX)
                raise OptionError(f"slice_by names {name!r}; columns are named as in ingest.columns.extra: {plain}")

    def check(self, known: Collection[str]) -> None:
        """Checks that the columns exist.

        Args:
          known: user columns of the dataset, without `extra/`.

        Raises:
          OptionError: one does not.
        """
        for name in self.slice_by:
            check_column(name, known, "evaluate.slice_by")
