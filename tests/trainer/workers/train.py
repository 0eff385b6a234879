"""One process of a training: `train.py STRATEGY DATASET LOGS RESULT STEPS_PER_EXECUTION`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(name: str, path: str, logs: str, result: str, steps_per_execution: str) -> None:
    import tensorflow as tf

    if name == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from tests.trainer.workers import task
    from trainer.training.strategy import make_strategy

    strategy = make_strategy(name)  # before any module makes a tensor
    found = task.train(strategy, path, logs, int(steps_per_execution))
    if name == "mirrored":
        found["ops"] = task.train_ops(strategy, path)
        found["means"] = task.observed_means(strategy)
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
