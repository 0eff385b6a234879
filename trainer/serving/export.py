"""The exported model: encoded image bytes in, class, name and probability out, through ingest and evaluation."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator

import keras
import tensorflow as tf

from beam_jobs.common import child_python
from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from trainer.input.autograph import as_written
from trainer.ops import IMAGE, Op, apply_ops
from trainer.serving.decode import DecodeSource
from trainer.serving.spec import DESCRIPTION_NAME, EVALUATE_SIGNATURE, PROBABILITIES, ServingSpec, write_json
from trainer.training.transfer import leaves

__all__ = ["DESCRIPTION_NAME", "EVALUATE_SIGNATURE", "PROBABILITIES", "ServingSpec", "decode_batch", "export"]

_MODEL, _REST = "model.keras", "rest.pickle"  # what a process with another backend leaves to export
_EXPORT = "from trainer.serving.export import export_saved; sys.path += sys.argv[2:]; export_saved(sys.argv[1])"


def export(
    model: keras.Model,
    ops: tuple[Op, ...],
    labels: tuple[str, ...],
    side_px: int,
    path: str,
    record_ops: tuple[Op, ...] = (),
    spec: ServingSpec | None = None,
) -> None:
    """Writes a SavedModel with two signatures, and beside it its classes and its `ServingSpec`.

    `serving_default`: `image_bytes` string[batch], JPEG or PNG files as a camera made them -> `class` int64[batch],
    `text` string[batch], `probability` float32[batch] of that class and `probabilities` float32[batch, classes]. The
    files go through what the ingest does to them (see `decode_source`); of another format they are an error.
    `evaluate`: `examples` string[batch], serialised records -> `probabilities`.

    Examples:
      >>> from trainer import InputOptions, ModelSpec, build_model, export, parse_ops, predict_files
      >>> spec = ModelSpec(side_px=32, classes=2, mean_rgb=(125, 123, 114), std_rgb=(63, 62, 67))
      >>> ops = parse_ops(InputOptions(image_side_px=32).eval_spec)
      >>> export(build_model("small_cnn", spec), ops, ("cat", "dog"), 32, "exported")
      >>> predict_files("exported", ["photos/cat/000.jpg"])[0].text in ("cat", "dog")
      True

    Args:
      model: uint8[batch, side, side, 3] -> probabilities.
      ops: the ops of evaluation.
      labels: class names by index.
      side_px: height and width of the images.
      path: directory to write.
      record_ops: the ops that begin at what records hold, see `raw.stored_ops`; `ops` when empty.
      spec: of the dataset that the model was trained on, `ServingSpec.of(dataset)`; by default one of the policy `copy`
        and one label an image.

    Raises:
      OptionError: the backend of Keras is not TensorFlow, and the model cannot be loaded where it is.
    """
    if keras.backend.backend() != "tensorflow":
        rest = {"ops": ops, "labels": labels, "side_px": side_px, "path": path, "record_ops": record_ops, "spec": spec}
        _export_with_tensorflow(model, rest)
        return
    spec = spec or ServingSpec()
    names = tf.constant(labels)
    archive = keras.export.ExportArchive()
    archive.track(model)

    def predict(encoded: tf.Tensor, chain: tuple[Op, ...]) -> tf.Tensor:
        return model(decode_batch(encoded, chain, side_px), training=False)

    def serve(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = predict(image_bytes, (DecodeSource(spec.pixels), *ops[1:]))
        best = tf.argmax(probabilities, axis=-1)
        return {
            "class": best,
            "text": tf.gather(names, best),
            "probability": tf.reduce_max(probabilities, axis=-1),
            PROBABILITIES: probabilities,
        }

    def evaluate(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, record.feature_spec([record.ENCODED]))
        return {PROBABILITIES: predict(parsed[record.ENCODED], record_ops or ops)}

    archive.add_endpoint("serve", serve, input_signature=[tf.TensorSpec([None], tf.string, "image_bytes")])
    archive.add_endpoint(EVALUATE_SIGNATURE, evaluate, input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    archive.write_out(path, verbose=False)
    write_json(path, DESCRIPTION_NAME, {"labels": list(labels), "records": repr((record_ops or ops)[0])})
    spec.write(path)


@as_written
def decode_batch(encoded: tf.Tensor, ops: tuple[Op, ...], side_px: int) -> tf.Tensor:
    """Runs the ops of evaluation over a batch of encoded images.

    Args:
      encoded: string[batch], JPEG or PNG files.
      ops: a chain without random ops.
      side_px: height and width that the chain leaves.

    Returns:
      uint8[batch, side, side, 3].
    """
    no_chance = tf.zeros([2], tf.int32)
    return tf.map_fn(
        lambda image: apply_ops(ops, {IMAGE: image}, no_chance)[IMAGE],
        encoded,
        fn_output_signature=tf.TensorSpec([side_px, side_px, 3], tf.uint8),
    )


def export_saved(folder: str) -> None:
    """Exports what `_export_with_tensorflow` left in a folder."""
    with open(os.path.join(folder, _REST), "rb") as stream:
        classes, rest = pickle.load(stream)  # noqa: S301 - written a moment ago by the process that started this one
    export(keras.saving.load_model(os.path.join(folder, _MODEL), classes, compile=False), **rest)


def _export_with_tensorflow(model: keras.Model, rest: dict[str, object]) -> None:
    """Exports in a process with the TensorFlow backend: a backend is chosen once, when Keras is imported."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(os.path.join(folder, _MODEL))
        with open(os.path.join(folder, _REST), "wb") as stream:
            # Classes of the user's are not in the file of the model; by reference, each brings its module.
            own = {type(layer).__name__: type(layer) for layer in leaves(model) if not _is_of_keras(layer)}
            pickle.dump((own, rest), stream)
        environment = {**child_python.environment(), "KERAS_BACKEND": "tensorflow"}
        command = child_python.command(_EXPORT, folder, *_folders(own.values()))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        line = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit status {done.returncode}"
        raise OptionError(f"the model {model.name} cannot be exported with TensorFlow: {line[:300]}")


def _folders(classes: Iterable[type]) -> Iterator[str]:
    """Yields where the top packages of classes lie: a script or a notebook may have them from its own directory."""
    for kind in classes:
        top = sys.modules[kind.__module__.partition(".")[0]]
        if file := getattr(top, "__file__", None):
            yield os.path.dirname(os.path.dirname(file) if hasattr(top, "__path__") else file)


def _is_of_keras(layer: keras.layers.Layer) -> bool:
    return type(layer).__module__.partition(".")[0] == "keras"
