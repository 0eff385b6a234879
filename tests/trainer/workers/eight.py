"""A training with every option of an accelerator: `eight.py DATASET RESULT`, on eight logical CPU devices."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(path: str, result: str) -> None:
    import keras
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
    from tests.trainer.train_once import job_of
    from trainer.job import fit
    from trainer.options import InputOptions, TrainerConfig, TrainOptions
    from trainer.training.strategy import make_strategy

    train = {"mixed_precision": "bfloat16", "steps_per_execution": 3, "epochs": 2, "optimizer": "sgd", "jit": "never"}
    config = TrainerConfig(
        input=InputOptions(image_side_px=8, batch_size=16, threads=1, cache="none"),
        train=TrainOptions(strategy="mirrored", prefetch_to_device=2, **train),
    )
    executions = []
    told = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: executions.append(batch))
    words: list[str] = []
    model, progress = fit(
        job_of(path, config, "eval"), callbacks=(told,), strategy=make_strategy("mirrored"), say=words.append
    )
    found = {
        "history": progress.history,
        "step": progress.step,
        "executions": executions,
        "words": "\n".join(words),
        "dtypes": sorted({f"{layer.compute_dtype} {layer.variable_dtype}" for layer in model.layers if layer.weights}),
    }
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
