"""Shards in, a trained model out. `input_fn.make_dataset` feeds any Keras model and needs no TFX."""
