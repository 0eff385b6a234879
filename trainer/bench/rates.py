"""The input pipeline beside the naive one: the two figures that the summary of a run shows."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.bench.baselines import naive_dataset
from trainer.bench.meter import in_turn, of_dataset
from trainer.input.autograph import as_written
from trainer.input_fn import FOREVER, make_dataset
from trainer.options import InputOptions


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


@as_written
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
