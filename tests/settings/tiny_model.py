"""A model of the smallest kind, as a user would name one of their own, and a training of it."""

from __future__ import annotations

from pathlib import Path

import keras

from beam_jobs.dataset import manifest
from pipeline.config import PipelineConfig
from trainer.job import Job
from trainer.models import ModelSpec
from trainer.options import TrainerConfig


def build(spec: ModelSpec) -> keras.Model:
    """uint8[batch, side, side, 3] -> float32[batch, classes]; a convolution, batch normalisation and a dense layer."""
    inputs = keras.Input([spec.side_px, spec.side_px, 3], dtype="uint8")
    features = keras.layers.Rescaling(1 / 255)(inputs)
    features = keras.layers.Conv2D(4, 3, strides=2, name="first")(features)
    features = keras.layers.Conv2D(4, 1, activation="relu", name="second")(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(
        inputs, keras.layers.Dense(spec.classes, activation="softmax", dtype="float32", name="head")(features)
    )


def job_of(dataset: Path, config: PipelineConfig) -> Job:
    data = manifest.load(str(dataset))
    assert data.channels
    return Job(
        config=TrainerConfig(input=config.input, train=config.train),
        path=str(dataset),
        dataset=data,
        train_split="train",
        eval_split="eval",
        mean_rgb=data.channels.mean_rgb,
        std_rgb=data.channels.std_rgb,
    )
