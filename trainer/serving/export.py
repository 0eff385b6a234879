"""The exported model, a function from the bytes of image files to class, name and probability.

Files for serving are unprocessed: they may be rotated, transparent or larger than stored images. The Python code of the
ingest cannot run in a graph, so this module implements the policies of the ingest and the EXIF orientation of
`beam_jobs.images.header_formats` with ops. The pixels equal those of the stored record, except that the average of an
area may be rounded to the neighbouring level, because the ingest adds in a different order.
`tests/trainer/serving/test_serving_table.py` measures the difference.
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
from trainer.ops.tf_ops import without_autograph
from trainer.serving.predict import DESCRIPTION_NAME, EVALUATE_SIGNATURE, PROBABILITIES, ServingSpec, write_json
from trainer.training.transfer import leaves

_MAX_STEPS = 65_536  # segments of a JPEG, chunks of a PNG; the ingest refuses files with more
_APP1, _SOS, _EOI = 0xE1, 0xDA, 0xD9  # JPEG markers: segment that may contain EXIF, start of scan, end of image
_PNG_START, _CHUNK_OVERHEAD = 8, 12  # bytes of the magic number; bytes of length, type and checksum of a chunk
_ENTRY_BYTES, _ENTRY_READ_BYTES = 12, 10  # an entry of an EXIF directory, and its bytes to the end of a 16-bit value
_PADDING = b"\x00" * 16  # appended to a file, so that numbers beyond its end are read as zeros


def read_orientation(encoded: tf.Tensor, kind: str) -> tf.Tensor:
    """Returns the EXIF orientation of a file, int32, 1-8; 1 if it has none or its EXIF block is broken.

    Args:
      encoded: string scalar.
      kind: `jpeg` or `png`.
    """
    block = _find_jpeg_exif(encoded) if kind == "jpeg" else _find_png_exif(encoded)
    return tf.cond(tf.strings.length(block) > 0, lambda: _parse_orientation(block), lambda: 1)


def turn_upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Returns uint8[height, width, 3] turned upright like `normalise.upright`; orientations 5 to 8 swap the sides."""
    is_mirrored = tf.reduce_any(tf.equal(orientation, [2, 4, 5, 7]))
    quarter_turns = tf.gather([0, 0, 0, 2, 2, 3, 1, 1, 3], orientation)  # clockwise; EXIF 2.32, tag 0x0112
    pixels = tf.cond(is_mirrored, lambda: tf.reverse(pixels, [1]), lambda: pixels)
    return tf.switch_case(
        quarter_turns,
        [
            lambda: pixels,
            lambda: tf.reverse(tf.transpose(pixels, [1, 0, 2]), [1]),
            lambda: tf.reverse(pixels, [0, 1]),
            lambda: tf.reverse(tf.transpose(pixels, [1, 0, 2]), [0]),
        ],
    )


def _find_jpeg_exif(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the first EXIF block of the APP1 segments before the first scan, or an empty string."""
    values = tf.io.decode_raw(encoded + _PADDING, tf.uint8)
    size = tf.strings.length(encoded)
    starts = tf.cast(tf.where((values[:-1] == 0xFF) & (values[1:] != 0) & (values[1:] != 0xFF))[:, 0], tf.int32)
    marker_positions = tf.concat([starts, [size]], 0)

    def step(position: tf.Tensor, block: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        start = marker_positions[tf.searchsorted(marker_positions, position[None])[0]]
        marker = tf.cast(values[start + 1], tf.int32)
        has_no_length = (marker == 0x01) | ((marker >= 0xD0) & (marker < 0xD9))
        end = start + 2 + tf.where(has_no_length, 0, _read_numbers(values, start + 2, 2))
        prefix = tf.strings.substr(encoded, tf.minimum(start + 4, size), len(header_formats.EXIF_PREFIX))
        is_exif = (marker == _APP1) & (prefix == header_formats.EXIF_PREFIX) & (end <= size)
        begin = start + 4 + len(header_formats.EXIF_PREFIX)
        block = tf.cond(is_exif, lambda: tf.strings.substr(encoded, begin, tf.maximum(end - begin, 0)), lambda: block)
        return end, block, ~is_exif & (marker != _SOS) & (marker != _EOI) & (end < size)

    initial_state = (tf.constant(2), tf.constant(""), size > 4)
    return tf.while_loop(lambda *state: state[-1], step, initial_state, maximum_iterations=_MAX_STEPS)[1]


def _find_png_exif(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the data of the last eXIf chunk, or an empty string."""
    values = tf.io.decode_raw(encoded + _PADDING, tf.uint8)
    size = tf.cast(tf.strings.length(encoded), tf.int64)

    def step(position: tf.Tensor, block: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        length = _read_numbers(values, position, 4)
        kind = tf.strings.substr(encoded, position + 4, 4)
        end = position + _CHUNK_OVERHEAD + length
        is_exif = (kind == b"eXIf") & (end <= size)
        block = tf.cond(is_exif, lambda: tf.strings.substr(encoded, position + 8, length), lambda: block)
        return end, block, (kind != b"IEND") & (end + 8 <= size)  # 8 bytes: length and type of the next chunk

    initial_state = (tf.constant(_PNG_START, tf.int64), tf.constant(""), size >= _PNG_START + 8)
    return tf.while_loop(lambda *state: state[-1], step, initial_state, maximum_iterations=_MAX_STEPS)[1]


def _parse_orientation(block: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in the first directory of an EXIF block, like `header_formats.exif_orientation`."""
    values = tf.io.decode_raw(block + _PADDING, tf.uint8)
    size = tf.cast(tf.strings.length(block), tf.int64)
    byte_order_mark = tf.strings.substr(block, 0, tf.minimum(4, tf.strings.length(block)))
    is_little = byte_order_mark == b"II*\x00"

    def read(position: tf.Tensor, length: int) -> tf.Tensor:
        clipped = tf.clip_by_value(position, 0, size)
        little, big = (_read_numbers(values, clipped, length, little=flag) for flag in (True, False))
        return tf.where(is_little, little, big)

    directory = read(tf.constant(4, tf.int64), 4)
    count = tf.where((directory + 2 <= size) & (size >= 8), read(directory, 2), tf.constant(0, tf.int64))
    max_count = tf.maximum((size - _ENTRY_READ_BYTES - directory - 2) // _ENTRY_BYTES + 1, 0)  # within the block
    entries = directory + 2 + _ENTRY_BYTES * tf.range(tf.minimum(count, max_count), dtype=tf.int64)
    matches = tf.where(read(entries, 2) == header_formats.ORIENTATION_TAG)[:, 0]

    def read_value() -> tf.Tensor:
        entry = entries[matches[0]]
        value = read(entry + 8, 2)
        is_valid = (read(entry + 2, 2) == header_formats.EXIF_SHORT) & (value >= 1) & (value <= 8)
        return tf.cast(tf.where(is_valid, value, 1), tf.int32)

    is_exif = is_little | (byte_order_mark == b"MM\x00*")
    return tf.cond(is_exif & (tf.size(matches) > 0), read_value, lambda: 1)


def _read_numbers(values: tf.Tensor, position: tf.Tensor, length: int, little: bool = False) -> tf.Tensor:
    """Returns the unsigned numbers of `length` bytes at the given positions, in the integer type of the positions."""
    indices = position[..., None] + tf.range(length, dtype=position.dtype)
    powers = [256**power for power in range(length)]
    weights = tf.constant(powers if little else powers[::-1], position.dtype)
    return tf.reduce_sum(tf.cast(tf.gather(values, indices), position.dtype) * weights, -1)


REFUSAL = (
    "image_bytes holds a file that is neither JPEG nor PNG; convert it, or use `feedline predict`, which reads every "
    "format of the ingest"
)
_MAGIC = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_CMYK = 4  # number of channels
# Fixed-point arithmetic of `cv2.resize`, modules/imgproc/src/resize.cpp: weights have 11 bits; the sum over a row loses
# its lowest 4 bits, so that it fits into 16 bits.
_WEIGHT, _ROW_SHIFT, _COLUMN_SHIFT = 2048, 16, 65536
_EPSILON = 2.0**-52
_MIN_OVERLAP = 1e-3  # least fraction of an input pixel that the area average of OpenCV includes


@dataclass(frozen=True)
class DecodeSource(Decode):
    """Decodes a JPEG or PNG file to the pixels of its stored record: string scalar -> uint8[height, width, 3].

    Like the ingest, it turns the image upright, blends it with white, resizes it by the policy, and compresses a JPEG
    again where the ingest does so.

    Attributes:
      pixels: pixel options of the ingest.
    """

    pixels: PixelOptions = field(default_factory=PixelOptions)

    def __call__(self, features: Features, uniforms: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features with the decoded image.

        Raises:
          tf.errors.InvalidArgumentError: the file is neither JPEG nor PNG, or cannot be decoded.
        """
        encoded = features[IMAGE]
        has_magic = {name: tf.equal(tf.strings.substr(encoded, 0, len(magic)), magic) for name, magic in _MAGIC.items()}
        with tf.control_dependencies([tf.debugging.Assert(has_magic["jpeg"] | has_magic["png"], [REFUSAL])]):
            encoded = tf.identity(encoded)
        decoders = (lambda: _decode_jpeg(encoded, self.pixels), lambda: _decode_png(encoded, self.pixels))
        decoded = tf.cond(has_magic["jpeg"], *decoders)
        return {**features, IMAGE: tf.ensure_shape(decoded, [None, None, 3])}


def _decode_png(encoded: tf.Tensor, options: PixelOptions) -> tf.Tensor:
    pixels = turn_upright(_blend_with_white(tf.io.decode_png(encoded, channels=4)), read_orientation(encoded, "png"))
    new_size = _plan_size(options, tf.shape(pixels)[:2])
    return _crop(_resize(pixels, tf.cast(tf.shape(pixels)[:2], tf.float64), new_size), new_size, options)


def _decode_jpeg(encoded: tf.Tensor, options: PixelOptions) -> tf.Tensor:
    orientation = read_orientation(encoded, "jpeg")
    shape = tf.io.extract_jpeg_shape(encoded)
    is_swapped = orientation >= 5
    sides = tf.where(is_swapped, shape[1::-1], shape[:2])
    new_size = _plan_size(options, sides)

    def keep_size() -> tf.Tensor:
        decoded = decode_rgb(encoded)

        def recompress() -> tf.Tensor:
            return _recompress(turn_upright(decoded, orientation), process.FULL_SIZE_QUALITY, False)

        return tf.cond((orientation != 1) | (shape[2] == _CMYK), recompress, lambda: decoded)

    def reduce_size() -> tf.Tensor:
        ratios = [1, 2, 4, 8]
        reduction = tf.reduce_min(tf.cast(sides, tf.float64) / tf.cast(new_size, tf.float64))
        choice = tf.reduce_sum(tf.cast(reduction >= tf.constant(ratios[1:], tf.float64), tf.int32))
        decoded = tf.switch_case(choice, [lambda ratio=ratio: decode_rgb(encoded, ratio) for ratio in ratios])
        exact_size = tf.cast(shape[:2], tf.float64) / tf.cast(tf.gather(ratios, choice), tf.float64)
        resized = _resize(decoded, exact_size, tf.where(is_swapped, new_size[::-1], new_size))
        cropped = _crop(turn_upright(resized, orientation), new_size, options)
        return _recompress(cropped, options.quality, True) if options.policy == "resize" else cropped

    if options.policy == "copy":
        return keep_size()
    if options.policy == "raw":
        return reduce_size()
    return tf.cond(tf.reduce_all(new_size == sides), keep_size, reduce_size)


def _recompress(pixels: tf.Tensor, quality: int, subsample: bool) -> tf.Tensor:
    """Returns the pixels after encoding to JPEG like `normalise.encode` and decoding."""
    encoded = tf.io.encode_jpeg(pixels, format="rgb", quality=quality, chroma_downsampling=subsample)
    return decode_rgb(encoded)


def _blend_with_white(rgba: tf.Tensor) -> tf.Tensor:
    """Blends uint8[height, width, 4] with white to uint8[height, width, 3]; opaque pixels do not change."""
    values = tf.cast(rgba, tf.int32)
    alpha = values[..., 3:]
    return tf.cast((values[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)


def _plan_size(options: PixelOptions, sides: tf.Tensor) -> tf.Tensor:
    """Returns height and width, int32[2], of an upright image after the resize of `beam_jobs.images.normalise`."""
    if options.policy == "copy":
        return sides
    size = tf.cast(sides, tf.float64)
    fits_long_side = options.policy == "resize" and options.fit == "inside"
    factor = options.side_px / (tf.reduce_max(size) if fits_long_side else tf.reduce_min(size))
    if options.policy == "resize":
        factor = tf.minimum(tf.constant(1.0, tf.float64), factor)
    return tf.maximum(tf.cast(tf.round(size * factor), tf.int32), 1)


def _crop(pixels: tf.Tensor, size: tf.Tensor, options: PixelOptions) -> tf.Tensor:
    """Returns the centre crop of the policy `raw`; for other policies, all pixels."""
    if options.policy != "raw":
        return pixels
    side = options.side_px
    begin = (size - side) // 2
    return tf.ensure_shape(tf.slice(pixels, [begin[0], begin[1], 0], [side, side, 3]), [side, side, 3])


def _resize(pixels: tf.Tensor, exact_size: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns resized pixels like `beam_jobs.images.normalise`: area average if reduced by 2 or more, else bilinear.

    Args:
      pixels: uint8[height, width, 3].
      exact_size: float64[2], height and width of the image before they were rounded up to whole pixels.
      size: int32[2], height and width of the result.
    """
    factors = tf.cast(size, tf.float64) / exact_size
    sides = tf.shape(pixels)[:2]
    # OpenCV copies an image whose rounded size does not change, whatever the factors are.
    is_unchanged = tf.reduce_all(tf.cast(tf.round(tf.cast(sides, tf.float64) * factors), tf.int32) == sides)
    resized = tf.cond(
        tf.reduce_max(factors) <= 0.5,
        lambda: _resize_area(pixels, 1 / factors, size),
        lambda: tf.cond(is_unchanged, lambda: pixels, lambda: _resize_linear(pixels, 1 / factors, size)),
    )
    return resized[: size[0], : size[1]]


def _resize_area(pixels: tf.Tensor, scales: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the input pixels that each output pixel covers, weighted by area."""
    # For integer scales, OpenCV adds levels and divides the sum once; otherwise it adds weighted levels.
    is_integer = tf.reduce_all(tf.abs(scales - tf.round(scales)) < _EPSILON)
    scales = tf.where(is_integer, tf.round(scales), scales)
    means = tf.cast(pixels, tf.float32)
    for axis, equation in enumerate(("oi,ijc->ojc", "oi,jic->joc")):
        scale, length = scales[axis], tf.cast(tf.shape(pixels)[axis], tf.float64)
        start = tf.cast(tf.range(size[axis]), tf.float64)[:, None] * scale  # where an output pixel starts in the input
        pixel = tf.range(length, dtype=tf.float64)[None]
        overlap = tf.minimum(start + scale, pixel + 1) - tf.maximum(start, pixel)
        overlap = tf.where(overlap > _MIN_OVERLAP, overlap, tf.zeros_like(overlap))
        weights = tf.where(is_integer, overlap, overlap / tf.minimum(scale, length - start))
        means = tf.einsum(equation, tf.cast(weights, tf.float32), means)
    means = tf.where(is_integer, means * tf.cast(1 / tf.reduce_prod(scales), tf.float32), means)
    # OpenCV rounds .5 to the even level, but up in its special code for 2 x 2 pixels.
    rounds_up = tf.reduce_all(scales == 2)
    return tf.cast(tf.where(rounds_up, tf.floor(means + 0.5), tf.round(means)), tf.uint8)


def _resize_linear(pixels: tf.Tensor, scales: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns resized pixels like the bilinear interpolation of OpenCV in fixed-point arithmetic."""
    values = tf.cast(pixels, tf.int32)
    left, right, left_weight, right_weight = _neighbours(scales[1], size[1], tf.shape(pixels)[1], edge_weight=0.0)
    rows = tf.gather(values, left, axis=1) * left_weight[:, None]
    rows = (rows + tf.gather(values, right, axis=1) * right_weight[:, None]) // _ROW_SHIFT
    upper, lower, upper_weight, lower_weight = _neighbours(scales[0], size[0], tf.shape(pixels)[0], edge_weight=None)
    above = tf.gather(rows, upper) * upper_weight[:, None, None] // _COLUMN_SHIFT
    below = tf.gather(rows, lower) * lower_weight[:, None, None] // _COLUMN_SHIFT
    return tf.cast((above + below + 2) // 4, tf.uint8)


def _neighbours(scale: tf.Tensor, size: tf.Tensor, length: tf.Tensor, edge_weight: float | None) -> list[tf.Tensor]:
    """Returns first and second input pixel of each output pixel along an axis, and their weights, int32[size] each.

    Args:
      scale: input pixels per output pixel.
      size: number of output pixels.
      length: number of input pixels.
      edge_weight: weight of the second pixel if one of the two is beyond the edge, 0-1; None for the usual weight.
    """
    position = tf.cast((tf.range(tf.cast(size, tf.float64), dtype=tf.float64) + 0.5) * scale - 0.5, tf.float32)
    first = tf.floor(position)
    fraction = position - first
    first = tf.cast(first, tf.int32)
    if edge_weight is not None:
        fraction = tf.where((first < 0) | (first >= length - 1), edge_weight, fraction)
    weights = [tf.cast(tf.round(part * _WEIGHT), tf.int32) for part in (1 - fraction, fraction)]
    return [tf.clip_by_value(first, 0, length - 1), tf.clip_by_value(first + 1, 0, length - 1), *weights]


__all__ = ["DESCRIPTION_NAME", "EVALUATE_SIGNATURE", "PROBABILITIES", "ServingSpec", "decode_batch", "export"]

_MODEL_NAME, _ARGUMENTS_NAME = "model.keras", "arguments.pickle"  # input files of the process that exports
_EXPORT_CODE = "from trainer.serving.export import export_saved; sys.path += sys.argv[2:]; export_saved(sys.argv[1])"


def export(
    model: keras.Model,
    ops: tuple[Op, ...],
    labels: tuple[str, ...],
    side_px: int,
    path: str,
    record_ops: tuple[Op, ...] = (),
    spec: ServingSpec | None = None,
) -> None:
    """Writes a SavedModel with two signatures, its class names and its `ServingSpec`.

    `serving_default`: `image_bytes` string[batch], JPEG or PNG files of any size -> `class` int64[batch], `text`
    string[batch] (its name), `probability` float32[batch] of that class, and `probabilities` float32[batch, classes].
    The files are processed as in the ingest, see `DecodeSource`; files of another format are an error.
    `evaluate`: `examples` string[batch], serialised records -> `probabilities`.

    Examples:
      >>> from trainer import InputOptions, ModelSpec, build_model, export, parse_ops, predict_files
      >>> spec = ModelSpec(side_px=32, classes=2, mean_rgb=(125, 123, 114), std_rgb=(63, 62, 67))
      >>> ops = parse_ops(InputOptions(image_side_px=32).eval_spec)
      >>> export(build_model("small_cnn", spec), ops, ("cat", "dog"), 32, "exported")
      >>> predict_files("exported", ["photos/cat/000.jpg"])[0].text in ("cat", "dog")
      True

    Args:
      model: model uint8[batch, side, side, 3] -> probabilities float32[batch, classes].
      ops: ops of evaluation, with `decode` first.
      labels: class names by index.
      side_px: height and width of the images for the model, in pixels.
      path: directory to write.
      record_ops: ops of the signature `evaluate`, see `parse.adapt_ops_to_records`; empty for `ops`.
      spec: spec of the training dataset, `ServingSpec.of(dataset)`; by default with the policy `copy` and one label per
        image.

    Raises:
      OptionError: the backend of Keras is not TensorFlow, and the model cannot be exported with TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        args = {"ops": ops, "labels": labels, "side_px": side_px, "path": path, "record_ops": record_ops, "spec": spec}
        _export_with_tensorflow(model, args)
        return
    spec = spec or ServingSpec()
    class_names = tf.constant(labels)
    archive = keras.export.ExportArchive()
    archive.track(model)

    def predict(encoded: tf.Tensor, chain: tuple[Op, ...]) -> tf.Tensor:
        return model(decode_batch(encoded, chain, side_px), training=False)

    def serve(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = predict(image_bytes, (DecodeSource(spec.pixels), *ops[1:]))
        best = tf.argmax(probabilities, axis=-1)
        return {
            "class": best,
            "text": tf.gather(class_names, best),
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


@without_autograph
def decode_batch(encoded: tf.Tensor, ops: tuple[Op, ...], side_px: int) -> tf.Tensor:
    """Applies the ops of evaluation to a batch of encoded images.

    Args:
      encoded: string[batch], JPEG or PNG files.
      ops: a chain without random ops, with an op that decodes first.
      side_px: height and width of the result, in pixels.

    Returns:
      uint8[batch, side, side, 3].
    """
    no_seed = tf.zeros([2], tf.int32)  # without effect: no op is random
    return tf.map_fn(
        lambda image: apply_ops(ops, {IMAGE: image}, no_seed)[IMAGE],
        encoded,
        fn_output_signature=tf.TensorSpec([side_px, side_px, 3], tf.uint8),
    )


def export_saved(folder: str) -> None:
    """Exports a model from the files that `_export_with_tensorflow` wrote to a folder."""
    with open(os.path.join(folder, _ARGUMENTS_NAME), "rb") as stream:
        classes, arguments = pickle.load(stream)  # noqa: S301 - written by the parent process
    export(keras.saving.load_model(os.path.join(folder, _MODEL_NAME), classes, compile=False), **arguments)


def _export_with_tensorflow(model: keras.Model, arguments: dict[str, object]) -> None:
    """Exports in a new process with the TensorFlow backend, because the backend of this process cannot change."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(os.path.join(folder, _MODEL_NAME))
        with open(os.path.join(folder, _ARGUMENTS_NAME), "wb") as stream:
            # The model file does not contain user classes; they are pickled by reference to their module.
            user_classes = {
                kind.__name__: kind for kind in map(type, leaves(model)) if kind.__module__.partition(".")[0] != "keras"
            }
            pickle.dump((user_classes, arguments), stream)
        environment = {**child_python.environment(), "KERAS_BACKEND": "tensorflow"}
        command = child_python.command(_EXPORT_CODE, folder, *_list_import_folders(user_classes.values()))
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
        raise OptionError(f"the model {model.name} cannot be exported with TensorFlow: {lines[-1][:300]}")


def _list_import_folders(classes: Iterable[type]) -> Iterator[str]:
    """Yields the folders from which the modules of classes are imported, such as that of a script or notebook."""
    for kind in classes:
        top_module = sys.modules[kind.__module__.partition(".")[0]]
        if file := getattr(top_module, "__file__", None):
            yield os.path.dirname(os.path.dirname(file) if hasattr(top_module, "__path__") else file)
