"""Recipes and their measurement: our pipeline and the naive one feed the same model, alternately for each seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.input_sources import SPLIT, Sources, cifar_arrays
from benchmarks.recipes import training
from benchmarks.recipes.training import FROZEN_BASE, HALF_RESNET, Epoch, Log, Train

NAIVE, OURS = "naive", "feedline"
# Mean and standard deviation of the training images of CIFAR-10, and of ImageNet; 0-255.
CIFAR_STATISTICS = ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
PHOTO_STATISTICS = ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))
_ADAM = {"optimizer": "adamw", "weight_decay": 0.0, "warmup_epochs": 0.0}
# D. Page, "How to train your ResNet" (2018): a peak of 0.4 for 512 images, so 0.1 for 128. His weight decay of 5e-4 is
# part of the gradient, which the momentum multiplies by 10; that of `TrainOptions` is not.
_PAGE = {
    "optimizer": "sgd",
    "nesterov": True,
    "learning_rate": 0.1,
    "warmup_epochs": 4.0,
    "schedule": "linear",
    "weight_decay": 5e-3,
    "label_smoothing": 0.1,
}

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One recipe.

    Attributes:
      what: description.
      dataset: name in `input_sources.DATASETS`.
      ops: training ops on the host.
      side_px: side of the images.
      model: `frozen_base`, `half_resnet`, or a model of `trainer.models`.
      statistics: mean and standard deviation of the channels, 0-255.
      goal: published ratio of epoch times.
      tested: whether accuracy is measured on test images.
      options: options of `TrainOptions` for optimizer and loss.
    """

    what: str
    dataset: str
    ops: str
    side_px: int
    model: str
    statistics: tuple[tuple[float, float, float], tuple[float, float, float]]
    goal: float
    tested: bool
    options: Mapping[str, Any] = field(default_factory=lambda: _ADAM)


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


_CIFAR = Recipe(
    what="CIFAR-10 from scratch, pad 4, crop, flip, cutout 8",
    dataset="cifar",
    ops="decode|pad_reflect(4)|random_crop(32)|flip|cutout(8)",
    side_px=32,
    model="small_cnn",
    statistics=CIFAR_STATISTICS,
    goal=1.48,
    tested=True,
)
RECIPES: dict[str, Recipe] = {
    "27": _CIFAR,
    "27-whole": dataclasses.replace(_CIFAR, model=HALF_RESNET, options=_PAGE),
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


def measure(
    number: str, sources: Sources, plan: Plan, say: Say = print, log_path: Path | None = None
) -> dict[str, dict[str, Any]]:
    """Measures one recipe.

    Args:
      number: name in `RECIPES`.
      sources: images and datasets.
      plan: extent of the training.
      say: prints a line of progress.
      log_path: file that gets each epoch; runs that an earlier call completed are taken from it.

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
    log = Log(log_path)
    for seed in range(plan.seeds):
        for pipeline in (OURS, NAIVE):
            kind = (number, plan.model, pipeline, f"{plan.step_ms:g} ms a step" if plan.step_ms else "", f"seed {seed}")
            run = f"{', '.join(filter(None, kind))}, {plan.epochs} epochs of {steps} steps of {plan.batch} images"
            known = None if plan.step_ms else log.find(run)
            if known:
                epochs, accuracy = known
                scores[pipeline].append(accuracy)
            else:
                model = None if plan.step_ms else _compiled(recipe, plan, pipeline, seed, steps)
                train = partial(_train, model) if model else training.simulated_step(plan.step_ms)
                batches = _batches(recipe, path, pipeline, plan, seed)
                epochs = _run(batches, train, steps, plan.epochs, partial(log.add, run))
                if model and recipe.tested:
                    scores[pipeline].append(_accuracy(model, recipe, sources, plan, pipeline))
                    log.add(run, accuracy=scores[pipeline][-1])
            runs[pipeline].append(epochs)
            say(_progress(number, seed, pipeline, epochs, scores[pipeline]))
    step = (
        f"simulated accelerator, {plan.step_ms:g} ms a step"
        if plan.step_ms
        else "training step on the cores of the input"
    )
    return {f"recipe {number}, {step}": make_row(recipe, runs, scores, steps * plan.batch, plan.test_images)}


def make_row(
    recipe: Recipe, runs: dict[str, list[list[Epoch]]], scores: dict[str, list[float]], images: int, test_images: int
) -> dict[str, Any]:
    """Returns the row of results.

    Args:
      recipe: measured recipe.
      runs: pipeline -> epochs of each seed.
      scores: pipeline -> accuracy of each seed; empty lists without accuracies.
      images: number of images per epoch.
      test_images: number of images for the accuracy; the source of the intervals of a single seed.
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
    if all(len(seeds) == 1 for seeds in scores.values()):
        naive, ours, difference = training.of_images([seeds[0] for seeds in scores.values()], test_images)
        row |= {"accuracy": {NAIVE: naive, OURS: ours}, "difference": difference}
    elif all(scores.values()):
        differences = [ours - naive for ours, naive in zip(scores[OURS], scores[NAIVE], strict=True)]
        row["accuracy"] = {pipeline: training.interval(seeds) for pipeline, seeds in scores.items()}
        row["difference"] = training.interval(differences)
    return row


def _run(batches: Any, train: Train, steps: int, epochs: int, add: Callable[..., None]) -> list[Epoch]:
    from trainer.training.callbacks import WaitMeter, measure_waits

    meter = WaitMeter()
    iterator = iter(measure_waits(batches, meter))
    found: list[Epoch] = []
    for number in range(1, epochs + 1):
        found.append(training.run_epoch(iterator, meter.take, train, steps))
        add(epoch=number, **vars(found[-1]))
    return found


def _batches(recipe: Recipe, path: str, pipeline: str, plan: Plan, seed: int) -> Any:
    """Returns an infinite dataset of (images as floats that the host normalised, labels), or (features, labels)."""
    from trainer.bench import naive_dataset
    from trainer.input_fn import FOREVER, make_dataset
    from trainer.options import InputOptions

    ops = recipe.ops if pipeline == OURS else f"{recipe.ops}|normalize({recipe.statistics[0]}, {recipe.statistics[1]})"
    options = InputOptions(image_side_px=recipe.side_px, batch_size=plan.batch, train_ops=ops, seed=seed)
    if pipeline == NAIVE:
        return naive_dataset(path, SPLIT, options)
    return make_dataset(path, SPLIT, options, training=True, epochs=FOREVER)


def _compiled(recipe: Recipe, plan: Plan, pipeline: str, seed: int, steps: int) -> Any:
    import keras

    from benchmarks.recipes.models import make_model
    from trainer.models import ModelSpec
    from trainer.options import TrainOptions
    from trainer.training.losses import make_loss
    from trainer.training.optimizers import make_optimizer

    mean, std = recipe.statistics
    spec = ModelSpec(side_px=recipe.side_px, classes=10, mean_rgb=mean, std_rgb=std)
    model = make_model(plan.model or recipe.model, spec, floats=pipeline == NAIVE, seed=seed)
    options = TrainOptions(epochs=plan.epochs, **recipe.options)
    loss = make_loss(options, multi_label=False, weights=None)
    model.compile(
        optimizer=make_optimizer(options, steps),
        loss=lambda labels, outputs: loss(keras.ops.one_hot(labels, spec.classes), outputs),
        jit_compile=False,  # XLA takes twice as long on a CPU
    )
    return model


def _train(model: Any, features: Any, labels: Any) -> float:
    images = features["image"] if isinstance(features, dict) else features
    model.reset_metrics()  # Keras returns the mean of all steps since
    return model.train_on_batch(images, labels)


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
