"""What all streams share: the stages after reading, and the options that have no meaning for one."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from beam_jobs.images.decode import decode_rgb
from trainer.input.parse import DRAW, LABEL, Features
from trainer.input_fn import check_room, check_shape, evaluation_ops, tf_options
from trainer.ops import IMAGE, MixingOp, MultiCrop, Op, apply_ops, parse_ops
from trainer.options import InputOptions

# Option -> what it may be, and why nothing else.
_ALLOWED = {
    "shuffle": (("window", "none"), "its end is not known"),
    "cache": (("auto", "none"), "it is read once an epoch"),
    "balance": (("",), "its classes are not known before they come"),
    "columns": (((),), "its records have no user columns"),
    "targets": (((),), "its records have no targets"),
    "pad_batches": ((False,), "its end is not known"),
    "service": (("",), "it is read on this machine"),
    "max_corrupt_records": ((0,), "nothing names its damaged records beforehand"),
}


def check_stream_options(options: InputOptions) -> None:
    """Checks that nothing is asked for that only a published dataset can give.

    Raises:
      OptionError: something is.
    """
    for name, (allowed, reason) in _ALLOWED.items():
        if getattr(options, name) not in allowed:
            ways = " or ".join(repr(value) for value in allowed)
            raise OptionError(f"{name} is {getattr(options, name)!r}; for a stream it must be {ways}, because {reason}")


def batches(stream: tf.data.Dataset, options: InputOptions, training: bool) -> tf.data.Dataset:
    """Prepares images one by one and batches them, as `make_dataset` does.

    Args:
      stream: dataset of features of one image each: `image` string scalar, JPEG or PNG; `key` string scalar; `draw`
        int32[2]; `label`.
      options: how images become batches.
      training: augment and drop the ragged last batch.

    Returns:
      dataset of (features, label) as of `make_dataset`.

    Raises:
      OptionError: the ops are wrong, or leave images of another size than `image_side_px`; no memory holds the batches.
    """
    check_room(options, options.batch_size)
    ops = parse_ops(options.train_spec) if training else evaluation_ops(options)
    if any(isinstance(op, (MixingOp, MultiCrop)) for op in ops):
        raise OptionError(f"ops {options.train_spec!r} mix images or make several of one; for a stream use device_ops")
    stream = stream.map(partial(_prepare, ops=ops), options.thread_count, deterministic=True)
    stream = stream.batch(options.batch_size, drop_remainder=training)
    check_shape(stream.element_spec[0][IMAGE].shape[1:], options, training)
    return stream.prefetch(options.prefetch_batches).with_options(tf_options(options))


def _prepare(parsed: Features, ops: tuple[Op, ...]) -> tuple[Features, tf.Tensor]:
    features = dict(parsed)
    label = features.pop(LABEL)
    height, width = _size(features[IMAGE])
    features = apply_ops(ops, {**features, record.HEIGHT: height, record.WIDTH: width}, features[DRAW])
    for name in (record.HEIGHT, record.WIDTH):
        features.pop(name)
    return features, label


def _size(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns height and width, int64, from the header; our own records hold them, others do not."""
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
