"""What a recipe is and how it is measured: our pipeline and the naive one feed the same model, seed by seed in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.input_sources import SPLIT, Sources, cifar_arrays
from benchmarks.recipes import training
from benchmarks.recipes.training import FROZEN_BASE, Epoch, Train

NAIVE, OURS = "naive", "feedline"
# Of the training images of CIFAR-10, and of ImageNet; 0-255.
CIFAR_STATISTICS = ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
PHOTO_STATISTICS = ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One headline.

    Attributes:
      what: in words.
      dataset: name in `input_sources.DATASETS`.
      ops: of training, on the host.
      side_px: of the images.
      model: `frozen_base`, or a model of `trainer.models`.
      statistics: mean and standard deviation of the channels, 0-255.
      goal: ratio of epoch times that was published.
      tested: whether there are images to measure the accuracy on.
      learning_rate: peak; a cosine takes it to zero.
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
    """How much to train.

    Attributes:
      epochs: of each run; the first counts for accuracy and not for time.
      seeds: runs of each pipeline.
      batch: images a step.
      step_ms: length of a simulated step; 0 trains the model on the cores that also feed it.
      model: takes the place of the recipe's; empty keeps that.
      test_images: for the accuracy.
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
      number: of `RECIPES`.
      sources: what to train on.
      plan: how much.
      say: takes a line of progress.

    Returns:
      one row: rate and base (images/s of an epoch), ratio, base_is, goal; and of both pipelines epoch_seconds,
      wait_share and, where the recipe is tested, accuracy; difference is that of the accuracies, seed by seed.
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
    step = f"simulated accelerator, {plan.step_ms:g} ms a step" if plan.step_ms else "step on the same cores"
    return {f"recipe {number}, {step}": row_of(recipe, runs, scores, steps * plan.batch)}


def row_of(
    recipe: Recipe, runs: dict[str, list[list[Epoch]]], scores: dict[str, list[float]], images: int
) -> dict[str, Any]:
    """Returns the row of results.

    Args:
      recipe: what was measured.
      runs: pipeline -> the epochs of every seed.
      scores: pipeline -> the accuracy of every seed; empty lists where there is none.
      images: in an epoch.
    """
    settled = {pipeline: training.settled(several) for pipeline, several in runs.items()}
    seconds = {pipeline: training.median_seconds(epochs) for pipeline, epochs in settled.items()}
    row: dict[str, Any] = {
        "rate": images / seconds[OURS],
        "base": images / seconds[NAIVE],
        "ratio": seconds[NAIVE] / seconds[OURS],
        "base_is": f"naive pipeline, the same model; {recipe.what}",
        "goal": recipe.goal,
        "epoch_seconds": seconds,
        "wait_share": {pipeline: training.wait_share(epochs) for pipeline, epochs in settled.items()},
    }
    if all(scores.values()):
        apart = [ours - naive for ours, naive in zip(scores[OURS], scores[NAIVE], strict=True)]
        row["accuracy"] = {pipeline: training.interval(several) for pipeline, several in scores.items()}
        row["difference"] = training.interval(apart)
    return row


def _run(batches: Any, train: Train, steps: int, epochs: int) -> list[Epoch]:
    from trainer.training.callbacks import WaitMeter, timed

    meter = WaitMeter()
    iterator = iter(timed(batches, meter))
    return [training.run_epoch(iterator, meter.take, train, steps) for _ in range(epochs)]


def _batches(recipe: Recipe, path: str, pipeline: str, plan: Plan, seed: int) -> Any:
    """Returns a dataset of (images, labels) without end: floats that the host normalised, or bytes."""
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
    kept = training.settled([epochs])
    accuracy = f", accuracy {scores[-1]:.1%}" if scores else ""
    times = f"{training.median_seconds(kept):.2f} s an epoch, {training.wait_share(kept):.1%} of it waiting"
    return f"recipe {number}, seed {seed}  {pipeline:<9}{times}{accuracy}"
