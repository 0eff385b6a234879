"""Throughput and bottleneck of the input pipeline on this machine, and the option to change. See `docs/bench.md`."""

from trainer.bench.baselines import Rates, compare, naive_dataset, tutorial_dataset

__all__ = ["Rates", "compare", "naive_dataset", "tutorial_dataset"]
