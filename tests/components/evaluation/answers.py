"""Records that carry the answer a model is to give, and that model: an evaluation one can compute by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from beam_jobs.dataset import record

ANSWER = "answer"
PROBABILITIES = "probabilities"
SIGNATURE = "evaluate"


class Parrot(tf.Module):
    """Answers with some classes of what the records say."""

    def __init__(self, held: int, answered: slice) -> None:
        super().__init__()
        self._held = held
        self._answered = answered

    def evaluate(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, {ANSWER: tf.io.FixedLenFeature([self._held], tf.float32)})
        return {PROBABILITIES: parsed[ANSWER][:, self._answered]}


def write_parrot(path: Path, held: int, answered: slice = slice(None)) -> Path:
    """Saves a model for records that hold answers of `held` classes; it gives all of them or a part."""
    parrot = Parrot(held, answered)
    function = tf.function(parrot.evaluate, input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    tf.saved_model.save(parrot, str(path), signatures={SIGNATURE: function})
    return path


def write_answers(
    directory: Path,
    labels: Sequence[int],
    answers: np.ndarray,
    extra: Sequence[Mapping[str, Sequence[bytes]]] = (),
    weights: Sequence[float] = (),
) -> Path:
    """Writes the eval split of a dataset: class indices, float32[images, classes], user columns and weights."""
    split = directory / "Split-eval"
    split.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(split / "shard-00000-of-00001.tfrecord")) as writer:
        for place, (label, answer) in enumerate(zip(labels, answers, strict=True)):
            features = {
                record.LABEL: ("int64", [int(label)]),
                record.TEXT: ("bytes", [name_of(label).encode()]),
                ANSWER: ("float", [float(value) for value in answer]),
            }
            for name, values in (extra[place] if extra else {}).items():
                features[record.EXTRA_PREFIX + name] = ("bytes", list(values))
            if weights:
                features[record.WEIGHT] = ("float", [weights[place]])
            writer.write(record.encode_example(features))
    return directory


def name_of(label: int) -> str:
    """The name of a class; those with higher indices come first in the alphabet."""
    return f"class {1000 - label}"


def softmax(scores: np.ndarray) -> np.ndarray:
    """float32[images, classes] that sum to 1 in each row."""
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return (shares / shares.sum(1, keepdims=True)).astype(np.float32)
