"""Measures the input pipeline on this machine and finds its bottleneck and the option to change: `docs/bench.md`."""

from trainer.bench.baselines import Rates, compare, naive_dataset, tutorial_dataset

__all__ = ["Rates", "compare", "naive_dataset", "tutorial_dataset"]
