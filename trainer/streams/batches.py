"""The stages of all streams after reading, and the check of options that streams do not support."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from beam_jobs.images.decode import decode_rgb
from trainer.input.parse import IMAGE_SEED, LABEL, Features
from trainer.input_fn import check_memory, check_shape, evaluation_ops, tf_options
from trainer.ops import IMAGE, MixingOp, MultiCrop, Op, apply_ops, parse_ops
from trainer.options import InputOptions

# Option -> allowed values, and the reason.
_ALLOWED = {
    "shuffle": (("window", "none"), "its length is not known"),
    "cache": (("auto", "none"), "it is read once an epoch"),
    "balance": (("",), "its classes are not known in advance"),
    "columns": (((),), "its records have no user columns"),
    "targets": (((),), "its records have no targets"),
    "pad_batches": ((False,), "its length is not known"),
    "service": (("",), "it is read on this machine"),
    "max_corrupt_records": ((0,), "its damaged records are not known in advance"),
}


def check_stream_options(options: InputOptions) -> None:
    """Checks that no option needs a published dataset.

    Raises:
      OptionError: an option needs one.
    """
    for name, (allowed, reason) in _ALLOWED.items():
        if getattr(options, name) not in allowed:
            texts = " or ".join(repr(value) for value in allowed)
            raise OptionError(f"{name} is {getattr(options, name)!r}; a stream needs {texts}, because {reason}")


def batches(stream: tf.data.Dataset, options: InputOptions, training: bool) -> tf.data.Dataset:
    """Prepares images one by one and batches them, as `make_dataset` does.

    Args:
      stream: dataset of features of one image: `image` string scalar, JPEG or PNG; `key` string scalar; `draw`
        int32[2]; `label`.
      options: options of the pipeline.
      training: augment and drop an incomplete last batch.

    Returns:
      dataset of (features, label) as of `make_dataset`.

    Raises:
      OptionError: an op does not fit, the ops give another size than `image_side_px`, or the batches exceed the memory.
    """
    check_memory(options, options.batch_size)
    ops = parse_ops(options.train_spec) if training else evaluation_ops(options)
    if any(isinstance(op, MultiCrop) for op in ops):
        raise OptionError(f"ops {options.train_spec!r} contain multi_crop, which no stream supports; use random_crop")
    if any(isinstance(op, MixingOp) for op in ops):
        raise OptionError(f"ops {options.train_spec!r} contain mixup or cutmix; for a stream, put them into device_ops")
    stream = stream.map(partial(_prepare, ops=ops), options.thread_count, deterministic=True)
    stream = stream.batch(options.batch_size, drop_remainder=training)
    check_shape(stream.element_spec[0][IMAGE].shape[1:], options, training)
    return stream.prefetch(options.prefetch_batches).with_options(tf_options(options))


def _prepare(parsed: Features, ops: tuple[Op, ...]) -> tuple[Features, tf.Tensor]:
    features = dict(parsed)
    label = features.pop(LABEL)
    height, width = _read_size(features[IMAGE])
    features = apply_ops(ops, {**features, record.HEIGHT: height, record.WIDTH: width}, features[IMAGE_SEED])
    for name in (record.HEIGHT, record.WIDTH):
        features.pop(name)
    return features, label


def _read_size(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns height and width, int64, from the header of an image."""
    shape = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.extract_jpeg_shape(encoded),
        lambda: tf.cond(
            tf.strings.substr(encoded, 0, 8) == b"\x89PNG\r\n\x1a\n",
            # PNG specification, 11.2.2: the first chunk begins with width and height, big endian.
            lambda: tf.reverse(tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False), [0]),
            lambda: tf.shape(decode_rgb(encoded)),
        ),
    )
    return tf.cast(shape[0], tf.int64), tf.cast(shape[1], tf.int64)
