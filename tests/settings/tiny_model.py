"""A model of the smallest kind, as a user would name one of their own, and a training of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import keras

from pipeline.config import PipelineConfig
from tests.trainer import train_once
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
    job = train_once.job_of(str(dataset), TrainerConfig(input=config.input, train=config.train), "eval")
    channels = job.dataset.channels
    assert channels
    return dataclasses.replace(job, mean_rgb=channels.mean_rgb, std_rgb=channels.std_rgb)
