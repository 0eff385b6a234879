"""Compares the resident memory during one epoch, in a separate process, with the byte budget of the options."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SHUFFLE_MB = 16.0  # a quarter of the default, so that the window is much smaller than a short epoch
SIDE_PX = 224
GROWTH_GOAL = 0.05  # maximum growth from the second to the last quarter of an epoch
BUDGET_GOAL = 1.15


def measure(path: str, batch: int) -> dict[str, Any]:
    """Reads one epoch in a new process and returns its resident memory.

    Args:
      path: directory of a dataset that is a few times as large as `SHUFFLE_MB`.
      batch: images per batch.

    Returns:
      images; start_mb, after all imports and a first batch of another pipeline; second_quarter_mb and last_quarter_mb,
      medians; growth, relative, between these; peak_above_mb, the maximum minus the start; budget_mb; of_budget, the
      ratio of peak_above_mb and budget_mb; and the goals of growth and of_budget.
    """
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.input_memory", path, "--batch", str(batch)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])


def line(name: str, row: Mapping[str, Any]) -> str:
    """Returns the row of results as text."""
    levels = (
        f"{row['start_mb']:,.0f} MB at the start, then {row['second_quarter_mb']:,.0f} to {row['last_quarter_mb']:,.0f}"
    )
    above = f"at most {row['peak_above_mb']:,.0f} more, {row['of_budget']:.2f} of a budget of {row['budget_mb']:,.0f}"
    goals = f"(goals {row['growth_goal']:.0%}, {row['of_budget_goal']})"
    return f"{name:<60}{levels}: growth {row['growth']:.1%}, {above} {goals}"


def summary(start: int, samples: Sequence[int], images: int, budget: float) -> dict[str, Any]:
    """Returns the row of results.

    Args:
      start: resident bytes before the epoch.
      samples: resident bytes after each batch.
      images: number of images.
      budget: maximum size of all buffers in bytes, as `describe` reports it.
    """
    quarter = max(1, len(samples) // 4)
    second, last = statistics.median(samples[quarter : 2 * quarter] or samples), statistics.median(samples[-quarter:])
    above = max(samples) - start
    return {
        "images": images,
        "start_mb": start / 1e6,
        "second_quarter_mb": second / 1e6,
        "last_quarter_mb": last / 1e6,
        "growth": (last - second) / second,
        "growth_goal": GROWTH_GOAL,
        "peak_above_mb": above / 1e6,
        "budget_mb": budget / 1e6,
        "of_budget": above / budget,
        "of_budget_goal": BUDGET_GOAL,
    }


def _work(path: str, batch: int) -> dict[str, Any]:
    import psutil

    from trainer.training.malloc import keep_buffers

    keep_buffers()  # as `run_fn` does
    from benchmarks.input_sources import SPLIT
    from trainer.input.plan import make_plan, memory_bytes
    from trainer.input_fn import make_dataset
    from trainer.options import InputOptions

    options = InputOptions(image_side_px=SIDE_PX, batch_size=batch, shuffle_mb=SHUFFLE_MB, cache="none")
    process = psutil.Process()
    # Excludes memory that libraries allocate once and never free.
    next(iter(make_dataset(path, SPLIT, options, training=False)))
    start = process.memory_info().rss
    samples, images = [], 0
    for _, label in make_dataset(path, SPLIT, options, training=True):
        images += int(label.shape[0])
        samples.append(process.memory_info().rss)
    budget = sum(memory_bytes(make_plan(path, SPLIT, options, training=True)).values())
    return summary(start, samples, images, budget)


def main(show: Callable[[str], object] = print) -> None:
    """Runs the measured process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--batch", type=int, default=64)
    arguments = parser.parse_args()
    show(json.dumps(_work(arguments.path, arguments.batch)))


if __name__ == "__main__":
    main()
