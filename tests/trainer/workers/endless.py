"""One worker of a training that never ends: `endless.py`; it writes a line an epoch."""

from __future__ import annotations

import sys

from beam_jobs.errors import FeedlineError


def main() -> None:
    from trainer.training.strategy import distribute, make_strategy

    strategy = make_strategy("multi_worker")  # before any module makes a tensor
    import keras
    import tensorflow as tf

    from trainer.training.fit import fit

    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    batch = (tf.zeros([4, 2]), tf.zeros([4, 1]))
    data = distribute(strategy, lambda _: tf.data.Dataset.from_tensors(batch).repeat())
    told = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: sys.stdout.write(f"epoch {epoch}\n"))
    fit(strategy, model, data, epochs=range(1 << 30), steps_per_epoch=10, callbacks=[told])


if __name__ == "__main__":
    try:
        main()
    except FeedlineError as error:
        sys.exit(f"FeedlineError: {error}")
