"""The exported model: encoded image bytes in, class, name and probability out, through ingest and evaluation.

Served files have not been through the ingest: a photograph may lie on its side, be transparent, or be larger than what
the model was trained on. The Python code of the ingest cannot run in a graph, so this module does the same with ops,
policy by policy, the EXIF orientation as `beam_jobs.images.headers` reads it.
What it gives is equal to the pixels of the stored record, except where an area average lies between two levels: there
the ingest adds up in another order, and may round to the other one. `tests/trainer/serving/test_serving_table.py`
measures it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from beam_jobs.common import child_python
from beam_jobs.dataset import record
from beam_jobs.errors import OptionError
from beam_jobs.images import header_formats, process
from beam_jobs.images.decode import decode_rgb
from beam_jobs.options import PixelOptions
from trainer.ops import IMAGE, Decode, Features, Op, apply_ops
from trainer.ops.tf_ops import as_written
from trainer.serving.predict import DESCRIPTION_NAME, EVALUATE_SIGNATURE, PROBABILITIES, ServingSpec, write_json
from trainer.training.transfer import leaves

_MAX_STEPS = 65_536  # segments of a JPEG, chunks of a PNG; the ingest refuses files with more
_APP1, _SOS, _EOI = 0xE1, 0xDA, 0xD9
_PNG_START, _PNG_FRAME = 8, 12  # magic bytes; length, type and checksum of a chunk
_ENTRY, _ENTRY_READ = 12, 10  # bytes of an entry of an EXIF directory; those up to the end of a short value
_PAD = b"\x00" * 16  # so that numbers beyond the end are zeros


def orientation_of(encoded: tf.Tensor, kind: str) -> tf.Tensor:
    """Returns the EXIF orientation of a file, int32, 1-8; 1 where it has none or its EXIF block is broken.

    Args:
      encoded: string scalar.
      kind: `jpeg` or `png`.
    """
    block = _jpeg_block(encoded) if kind == "jpeg" else _png_block(encoded)
    return tf.cond(tf.strings.length(block) > 0, lambda: _orientation(block), lambda: 1)


def upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turns an image as `normalise.upright` does: uint8[height, width, 3], with the sides swapped from 5 on."""
    mirrored = tf.reduce_any(tf.equal(orientation, [2, 4, 5, 7]))
    quarters = tf.gather([0, 0, 0, 2, 2, 3, 1, 1, 3], orientation)  # clockwise, by orientation; EXIF 2.32, tag 0x0112
    pixels = tf.cond(mirrored, lambda: tf.reverse(pixels, [1]), lambda: pixels)
    return tf.switch_case(
        quarters,
        [
            lambda: pixels,
            lambda: tf.reverse(tf.transpose(pixels, [1, 0, 2]), [1]),
            lambda: tf.reverse(pixels, [0, 1]),
            lambda: tf.reverse(tf.transpose(pixels, [1, 0, 2]), [0]),
        ],
    )


def _jpeg_block(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the EXIF block of the first APP1 segment with one, before the first scan; empty without."""
    values = tf.io.decode_raw(encoded + _PAD, tf.uint8)
    size = tf.strings.length(encoded)
    markers = tf.cast(tf.where((values[:-1] == 0xFF) & (values[1:] != 0) & (values[1:] != 0xFF))[:, 0], tf.int32)
    markers = tf.concat([markers, [size]], 0)

    def step(position: tf.Tensor, block: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        start = markers[tf.searchsorted(markers, position[None])[0]]
        marker = tf.cast(values[start + 1], tf.int32)
        bare = (marker == 0x01) | ((marker >= 0xD0) & (marker < 0xD9))
        end = start + 2 + tf.where(bare, 0, _exif_number(values, start + 2, 2))
        prefix = tf.strings.substr(encoded, tf.minimum(start + 4, size), len(header_formats.EXIF_PREFIX))
        found = (marker == _APP1) & (prefix == header_formats.EXIF_PREFIX) & (end <= size)
        begin = start + 4 + len(header_formats.EXIF_PREFIX)
        block = tf.cond(found, lambda: tf.strings.substr(encoded, begin, tf.maximum(end - begin, 0)), lambda: block)
        return end, block, ~found & (marker != _SOS) & (marker != _EOI) & (end < size)

    start = (tf.constant(2), tf.constant(""), size > 4)
    return tf.while_loop(lambda *state: state[-1], step, start, maximum_iterations=_MAX_STEPS)[1]


def _png_block(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the data of the last eXIf chunk; empty without."""
    values = tf.io.decode_raw(encoded + _PAD, tf.uint8)
    size = tf.cast(tf.strings.length(encoded), tf.int64)

    def step(position: tf.Tensor, block: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        length = _exif_number(values, position, 4)
        kind = tf.strings.substr(encoded, position + 4, 4)
        end = position + _PNG_FRAME + length
        found = (kind == b"eXIf") & (end <= size)
        block = tf.cond(found, lambda: tf.strings.substr(encoded, position + 8, length), lambda: block)
        return end, block, (kind != b"IEND") & (end + 8 <= size)

    start = (tf.constant(_PNG_START, tf.int64), tf.constant(""), size >= _PNG_START + 8)
    return tf.while_loop(lambda *state: state[-1], step, start, maximum_iterations=_MAX_STEPS)[1]


def _orientation(block: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in the first directory of an EXIF block, as `formats.exif.orientation` does."""
    values = tf.io.decode_raw(block + _PAD, tf.uint8)
    size = tf.cast(tf.strings.length(block), tf.int64)
    mark = tf.strings.substr(block, 0, tf.minimum(4, tf.strings.length(block)))
    little = mark == b"II*\x00"

    def read(position: tf.Tensor, length: int) -> tf.Tensor:
        inside = tf.clip_by_value(position, 0, size)
        return tf.where(little, _exif_number(values, inside, length, little=True), _exif_number(values, inside, length))

    first = read(tf.constant(4, tf.int64), 4)
    count = tf.where((first + 2 <= size) & (size >= 8), read(first, 2), tf.constant(0, tf.int64))
    whole = tf.maximum((size - _ENTRY_READ - first - 2) // _ENTRY + 1, 0)
    entries = first + 2 + _ENTRY * tf.range(tf.minimum(count, whole), dtype=tf.int64)
    named = tf.where(read(entries, 2) == header_formats.ORIENTATION_TAG)[:, 0]

    def value() -> tf.Tensor:
        entry = entries[named[0]]
        found = read(entry + 8, 2)
        fits = (read(entry + 2, 2) == header_formats.EXIF_SHORT) & (found >= 1) & (found <= 8)
        return tf.cast(tf.where(fits, found, 1), tf.int32)

    known = little | (mark == b"MM\x00*")
    return tf.cond(known & (tf.size(named) > 0), value, lambda: 1)


def _exif_number(values: tf.Tensor, position: tf.Tensor, length: int, little: bool = False) -> tf.Tensor:
    """Returns the unsigned numbers of `length` bytes at positions, of the integer type of these."""
    places = position[..., None] + tf.range(length, dtype=position.dtype)
    powers = [256**power for power in range(length)]
    weights = tf.constant(powers if little else powers[::-1], position.dtype)
    return tf.reduce_sum(tf.cast(tf.gather(values, places), position.dtype) * weights, -1)


REFUSAL = (
    "image_bytes holds a file that is neither JPEG nor PNG; convert it, or use `feedline predict`, which reads every "
    "format that the ingest does"
)
_MAGIC = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_CMYK = 4  # channels
# Fixed point arithmetic of `cv2.resize`, modules/imgproc/src/resize.cpp: weights of 11 bits, of which the sum over a
# row loses 4, so that the sum over rows fits.
_WEIGHT, _ROW_SHIFT, _COLUMN_SHIFT = 2048, 16, 65536
_EPSILON = 2.0**-52
_LEAST_OVERLAP = 1e-3  # of an input pixel, in the area average of OpenCV


@dataclass(frozen=True)
class DecodeSource(Decode):
    """Decodes a JPEG or PNG file as its stored record decodes: string scalar -> uint8[height, width, 3].

    The image is upright, transparency lies on white, the size is that of the policy, and a JPEG that the ingest
    compresses again is compressed again.

    Attributes:
      pixels: what the ingest did to the pixels.
    """

    pixels: PixelOptions = field(default_factory=PixelOptions)

    def __call__(self, features: Features, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """See the class.

        Raises:
          tf.errors.InvalidArgumentError: the file is neither JPEG nor PNG, or cannot be decoded.
        """
        encoded = features[IMAGE]
        starts = {name: tf.equal(tf.strings.substr(encoded, 0, len(magic)), magic) for name, magic in _MAGIC.items()}
        with tf.control_dependencies([tf.debugging.Assert(starts["jpeg"] | starts["png"], [REFUSAL])]):
            encoded = tf.identity(encoded)
        decoded = tf.cond(starts["jpeg"], lambda: _of_jpeg(encoded, self.pixels), lambda: _of_png(encoded, self.pixels))
        return {**features, IMAGE: tf.ensure_shape(decoded, [None, None, 3])}


def _of_png(encoded: tf.Tensor, policy: PixelOptions) -> tf.Tensor:
    pixels = upright(_on_white(tf.io.decode_png(encoded, channels=4)), orientation_of(encoded, "png"))
    plan = _plan(policy, tf.shape(pixels)[:2])
    return _cropped(_resized(pixels, tf.cast(tf.shape(pixels)[:2], tf.float64), plan), plan, policy)


def _of_jpeg(encoded: tf.Tensor, policy: PixelOptions) -> tf.Tensor:
    orientation = orientation_of(encoded, "jpeg")
    shape = tf.io.extract_jpeg_shape(encoded)
    turned = orientation >= 5
    sides = tf.where(turned, shape[1::-1], shape[:2])
    plan = _plan(policy, sides)

    def whole() -> tf.Tensor:
        decoded = decode_rgb(encoded)
        changed = (orientation != 1) | (shape[2] == _CMYK)
        return tf.cond(
            changed, lambda: _again(upright(decoded, orientation), process.FULL_SIZE_QUALITY, False), lambda: decoded
        )

    def smaller() -> tf.Tensor:
        ratios = [1, 2, 4, 8]
        room = tf.reduce_min(tf.cast(sides, tf.float64) / tf.cast(plan, tf.float64))
        choice = tf.reduce_sum(tf.cast(room >= tf.constant(ratios[1:], tf.float64), tf.int32))
        decoded = tf.switch_case(choice, [lambda ratio=ratio: decode_rgb(encoded, ratio) for ratio in ratios])
        covered = tf.cast(shape[:2], tf.float64) / tf.cast(tf.gather(ratios, choice), tf.float64)
        stored = _resized(decoded, covered, tf.where(turned, plan[::-1], plan))
        stored = _cropped(upright(stored, orientation), plan, policy)
        return _again(stored, policy.quality, True) if policy.policy == "resize" else stored

    if policy.policy == "copy":
        return whole()
    if policy.policy == "raw":
        return smaller()
    return tf.cond(tf.reduce_all(plan == sides), whole, smaller)


def _again(pixels: tf.Tensor, quality: int, subsample: bool) -> tf.Tensor:
    """Returns pixels as they come back from the JPEG that `normalise.encode` makes of them."""
    encoded = tf.io.encode_jpeg(pixels, format="rgb", quality=quality, chroma_downsampling=subsample)
    return decode_rgb(encoded)


def _on_white(rgba: tf.Tensor) -> tf.Tensor:
    """Returns uint8[height, width, 3] of uint8[height, width, 4]; opaque pixels stay as they are."""
    values = tf.cast(rgba, tf.int32)
    alpha = values[..., 3:]
    return tf.cast((values[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)


def _plan(policy: PixelOptions, sides: tf.Tensor) -> tf.Tensor:
    """Returns height and width after the resize of `beam_jobs.images.geometry`, int32[2], of an upright image."""
    if policy.policy == "copy":
        return sides
    size = tf.cast(sides, tf.float64)
    long = policy.policy == "resize" and policy.fit == "inside"
    factor = policy.side_px / (tf.reduce_max(size) if long else tf.reduce_min(size))
    if policy.policy == "resize":
        factor = tf.minimum(tf.constant(1.0, tf.float64), factor)
    return tf.maximum(tf.cast(tf.round(size * factor), tf.int32), 1)


def _cropped(pixels: tf.Tensor, size: tf.Tensor, policy: PixelOptions) -> tf.Tensor:
    """Returns the centre that the policy `raw` stores; everything of other policies."""
    if policy.policy != "raw":
        return pixels
    side = policy.side_px
    begin = (size - side) // 2
    return tf.ensure_shape(tf.slice(pixels, [begin[0], begin[1], 0], [side, side, 3]), [side, side, 3])


def _resized(pixels: tf.Tensor, covered: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Does what `beam_jobs.images.normalise` does: the area average from a factor of 2 on, else bilinear.

    Args:
      pixels: uint8[height, width, 3].
      covered: float64[2], rows and columns of it that the image takes up.
      size: int32[2], height and width to return.
    """
    factors = tf.cast(size, tf.float64) / covered
    sides = tf.shape(pixels)[:2]
    # OpenCV copies an image whose size does not change, whatever the factors.
    unchanged = tf.reduce_all(tf.cast(tf.round(tf.cast(sides, tf.float64) * factors), tf.int32) == sides)
    resized = tf.cond(
        tf.reduce_max(factors) <= 0.5,
        lambda: _area(pixels, 1 / factors, size),
        lambda: tf.cond(unchanged, lambda: pixels, lambda: _linear(pixels, 1 / factors, size)),
    )
    return resized[: size[0], : size[1]]


def _area(pixels: tf.Tensor, scales: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the mean over the input pixels that each output pixel covers, a share of a pixel by its area."""
    # Over whole pixels OpenCV adds up levels and divides once; elsewhere it adds up shares.
    whole = tf.reduce_all(tf.abs(scales - tf.round(scales)) < _EPSILON)
    scales = tf.where(whole, tf.round(scales), scales)
    means = tf.cast(pixels, tf.float32)
    for axis, equation in enumerate(("oi,ijc->ojc", "oi,jic->joc")):
        scale, length = scales[axis], tf.cast(tf.shape(pixels)[axis], tf.float64)
        first = tf.cast(tf.range(size[axis]), tf.float64)[:, None] * scale
        cells = tf.range(length, dtype=tf.float64)[None]
        overlap = tf.minimum(first + scale, cells + 1) - tf.maximum(first, cells)
        overlap = tf.where(overlap > _LEAST_OVERLAP, overlap, tf.zeros_like(overlap))
        weights = tf.where(whole, overlap, overlap / tf.minimum(scale, length - first))
        means = tf.einsum(equation, tf.cast(weights, tf.float32), means)
    means = tf.where(whole, means * tf.cast(1 / tf.reduce_prod(scales), tf.float32), means)
    # Halves go to the even level, but for 2 x 2 pixels OpenCV has code of its own, which rounds them up.
    halves_up = tf.reduce_all(scales == 2)
    return tf.cast(tf.where(halves_up, tf.floor(means + 0.5), tf.round(means)), tf.uint8)


def _linear(pixels: tf.Tensor, scales: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the bilinear interpolation of OpenCV, in its fixed point arithmetic."""
    values = tf.cast(pixels, tf.int32)
    left, right, of_left, of_right = _neighbours(scales[1], size[1], tf.shape(pixels)[1], at_edge=0.0)
    rows = tf.gather(values, left, axis=1) * of_left[:, None] + tf.gather(values, right, axis=1) * of_right[:, None]
    rows = rows // _ROW_SHIFT
    upper, lower, of_upper, of_lower = _neighbours(scales[0], size[0], tf.shape(pixels)[0], at_edge=None)
    above = tf.gather(rows, upper) * of_upper[:, None, None] // _COLUMN_SHIFT
    below = tf.gather(rows, lower) * of_lower[:, None, None] // _COLUMN_SHIFT
    return tf.cast((above + below + 2) // 4, tf.uint8)


def _neighbours(scale: tf.Tensor, size: tf.Tensor, length: tf.Tensor, at_edge: float | None) -> list[tf.Tensor]:
    """Returns the two input pixels of each output pixel and their weights, int32[size] each.

    Args:
      scale: input pixels an output pixel.
      size: output pixels.
      length: input pixels.
      at_edge: share of the second one where there is none; as it comes out when None.
    """
    place = tf.cast((tf.range(tf.cast(size, tf.float64), dtype=tf.float64) + 0.5) * scale - 0.5, tf.float32)
    first = tf.floor(place)
    share = place - first
    first = tf.cast(first, tf.int32)
    if at_edge is not None:
        share = tf.where((first < 0) | (first >= length - 1), at_edge, share)
    weights = [tf.cast(tf.round(part * _WEIGHT), tf.int32) for part in (1 - share, share)]
    return [tf.clip_by_value(first, 0, length - 1), tf.clip_by_value(first + 1, 0, length - 1), *weights]


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
