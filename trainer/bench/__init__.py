"""How fast images flow on this machine, what holds them up, and what to change. See `docs/bench.md`."""

from trainer.bench.baselines import Rates, compare, naive_dataset, tutorial_dataset

__all__ = ["Rates", "compare", "naive_dataset", "tutorial_dataset"]
