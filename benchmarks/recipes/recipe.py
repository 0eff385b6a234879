"""Recipes and their measurement: our pipeline and the naive one feed the same model, alternately for each seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.input_sources import SPLIT, Sources, cifar_arrays
from benchmarks.recipes import training
from benchmarks.recipes.training import FROZEN_BASE, Epoch, Train

NAIVE, OURS = "naive", "feedline"
# Mean and standard deviation of the training images of CIFAR-10, and of ImageNet; 0-255.
CIFAR_STATISTICS = ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
PHOTO_STATISTICS = ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One recipe.

    Attributes:
      what: description.
      dataset: name in `input_sources.DATASETS`.
      ops: training ops on the host.
      side_px: side of the images.
      model: `frozen_base`, or a model of `trainer.models`.
      statistics: mean and standard deviation of the channels, 0-255.
      goal: published ratio of epoch times.
      tested: whether accuracy is measured on test images.
      learning_rate: peak of the learning rate, which decays to zero by a cosine.
    """

    what: str
    dataset: str
    ops: str
    side_px: int
    model: str
    statistics: tuple[tuple[float, float, float], tuple[float, float, float]]
    goal: float
    tested: bool
    learning_rate: float = 2e-3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Extent of the training.

    Attributes:
      epochs: epochs per run; the first one is not timed.
      seeds: runs per pipeline.
      batch: images per step.
      step_ms: duration of a simulated step; 0 trains the model on the cores of the input.
      model: model instead of that of the recipe; empty for that of the recipe.
      test_images: number of images for the accuracy.
    """

    epochs: int = 5
    seeds: int = 3
    batch: int = 64
    step_ms: float = 0.0
    model: str = ""
    test_images: int = 10_000


RECIPES: dict[str, Recipe] = {
    "27": Recipe(
        what="CIFAR-10 from scratch, pad 4, crop, flip, cutout 8",
        dataset="cifar",
        ops="decode|pad_reflect(4)|random_crop(32)|flip|cutout(8)",
        side_px=32,
        model="small_cnn",
        statistics=CIFAR_STATISTICS,
        goal=1.48,
        tested=True,
    ),
    "28": Recipe(
        what="224-pixel photographs, random crop, flip, frozen base",
        dataset="photos",
        ops="decode_random_crop(224)|flip",
        side_px=224,
        model=FROZEN_BASE,
        statistics=PHOTO_STATISTICS,
        goal=1.88,
        tested=False,
    ),
}


def measure(number: str, sources: Sources, plan: Plan, say: Say = print) -> dict[str, dict[str, Any]]:
    """Measures one recipe.

    Args:
      number: name in `RECIPES`.
      sources: images and datasets.
      plan: extent of the training.
      say: prints a line of progress.

    Returns:
      one row: rate and base (images/s of an epoch), ratio, base_is, goal; epoch_seconds and wait_share of both
      pipelines; if the recipe is tested, accuracy of both and difference, the paired differences of the accuracies.
    """
    recipe = RECIPES[number]
    path = sources.dataset(recipe.dataset)
    steps = _records(path) // plan.batch
    if not steps:
        raise ValueError(f"there are fewer images than one batch of {plan.batch}; name more of them")
    runs: dict[str, list[list[Epoch]]] = {NAIVE: [], OURS: []}
    scores: dict[str, list[float]] = {NAIVE: [], OURS: []}
    for seed in range(plan.seeds):
        for pipeline in (NAIVE, OURS):
            model = None if plan.step_ms else _compiled(recipe, plan, pipeline, seed, steps)
            train = model.train_on_batch if model else training.simulated_step(plan.step_ms)
            epochs = _run(_batches(recipe, path, pipeline, plan, seed), train, steps, plan.epochs)
            runs[pipeline].append(epochs)
            if model and recipe.tested:
                scores[pipeline].append(_accuracy(model, recipe, sources, plan, pipeline))
            say(_progress(number, seed, pipeline, epochs, scores[pipeline]))
    step = (
        f"simulated accelerator, {plan.step_ms:g} ms a step"
        if plan.step_ms
        else "training step on the cores of the input"
    )
    return {f"recipe {number}, {step}": make_row(recipe, runs, scores, steps * plan.batch)}


def make_row(
    recipe: Recipe, runs: dict[str, list[list[Epoch]]], scores: dict[str, list[float]], images: int
) -> dict[str, Any]:
    """Returns the row of results.

    Args:
      recipe: measured recipe.
      runs: pipeline -> epochs of each seed.
      scores: pipeline -> accuracy of each seed; empty lists without accuracies.
      images: number of images per epoch.
    """
    timed_epochs = {pipeline: training.timed_epochs(seeds) for pipeline, seeds in runs.items()}
    seconds = {pipeline: training.median_seconds(epochs) for pipeline, epochs in timed_epochs.items()}
    row: dict[str, Any] = {
        "rate": images / seconds[OURS],
        "base": images / seconds[NAIVE],
        "ratio": seconds[NAIVE] / seconds[OURS],
        "base_is": f"naive pipeline, the same model; {recipe.what}",
        "goal": recipe.goal,
        "epoch_seconds": seconds,
        "wait_share": {pipeline: training.wait_share(epochs) for pipeline, epochs in timed_epochs.items()},
    }
    if all(scores.values()):
        differences = [ours - naive for ours, naive in zip(scores[OURS], scores[NAIVE], strict=True)]
        row["accuracy"] = {pipeline: training.interval(seeds) for pipeline, seeds in scores.items()}
        row["difference"] = training.interval(differences)
    return row


def _run(batches: Any, train: Train, steps: int, epochs: int) -> list[Epoch]:
    from trainer.training.callbacks import WaitMeter, timed

    meter = WaitMeter()
    iterator = iter(timed(batches, meter))
    return [training.run_epoch(iterator, meter.take, train, steps) for _ in range(epochs)]


def _batches(recipe: Recipe, path: str, pipeline: str, plan: Plan, seed: int) -> Any:
    """Returns an infinite dataset of (images, labels): images as floats that the host normalised, or as uint8."""
    from trainer.bench import naive_dataset
    from trainer.input_fn import FOREVER, make_dataset
    from trainer.options import InputOptions

    ops = recipe.ops if pipeline == OURS else f"{recipe.ops}|normalize({recipe.statistics[0]}, {recipe.statistics[1]})"
    options = InputOptions(image_side_px=recipe.side_px, batch_size=plan.batch, train_ops=ops, seed=seed)
    if pipeline == NAIVE:
        return naive_dataset(path, SPLIT, options)
    dataset = make_dataset(path, SPLIT, options, training=True, epochs=FOREVER)
    return dataset.map(lambda features, label: (features["image"], label))


def _compiled(recipe: Recipe, plan: Plan, pipeline: str, seed: int, steps: int) -> Any:
    import keras

    from benchmarks.recipes.models import make_model
    from trainer.models import ModelSpec

    mean, std = recipe.statistics
    spec = ModelSpec(side_px=recipe.side_px, classes=10, mean_rgb=mean, std_rgb=std)
    model = make_model(plan.model or recipe.model, spec, floats=pipeline == NAIVE, seed=seed)
    rate = keras.optimizers.schedules.CosineDecay(recipe.learning_rate, plan.epochs * steps)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="sparse_categorical_crossentropy")
    return model


def _accuracy(model: Any, recipe: Recipe, sources: Sources, plan: Plan, pipeline: str) -> float:
    images, labels = cifar_arrays(sources.cifar, plan.test_images, test=True)
    if pipeline == NAIVE:
        mean, std = (np.asarray(values, np.float32) for values in recipe.statistics)
        images = (images - mean) / std
    return float(np.mean(model.predict(images, batch_size=256, verbose=0).argmax(1) == labels))


def _records(path: str) -> int:
    from beam_jobs.dataset import manifest

    return manifest.load(path).split(SPLIT).records


def _progress(number: str, seed: int, pipeline: str, epochs: Sequence[Epoch], scores: Sequence[float]) -> str:
    timed = training.timed_epochs([epochs])
    accuracy = f", accuracy {scores[-1]:.1%}" if scores else ""
    times = f"{training.median_seconds(timed):.2f} s an epoch, {training.wait_share(timed):.1%} of it waiting"
    return f"recipe {number}, seed {seed}  {pipeline:<9}{times}{accuracy}"
