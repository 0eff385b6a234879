"""The EXIF orientation of files, read in a graph as `beam_jobs.images.header` reads it, and images turned by it."""

from __future__ import annotations

import tensorflow as tf

from beam_jobs.images.header import tiff

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
        end = start + 2 + tf.where(bare, 0, _number(values, start + 2, 2))
        prefix = tf.strings.substr(encoded, tf.minimum(start + 4, size), len(tiff.PREFIX))
        found = (marker == _APP1) & (prefix == tiff.PREFIX) & (end <= size)
        begin = start + 4 + len(tiff.PREFIX)
        block = tf.cond(found, lambda: tf.strings.substr(encoded, begin, tf.maximum(end - begin, 0)), lambda: block)
        return end, block, ~found & (marker != _SOS) & (marker != _EOI) & (end < size)

    start = (tf.constant(2), tf.constant(""), size > 4)
    return tf.while_loop(lambda *state: state[-1], step, start, maximum_iterations=_MAX_STEPS)[1]


def _png_block(encoded: tf.Tensor) -> tf.Tensor:
    """Returns the data of the last eXIf chunk; empty without."""
    values = tf.io.decode_raw(encoded + _PAD, tf.uint8)
    size = tf.cast(tf.strings.length(encoded), tf.int64)

    def step(position: tf.Tensor, block: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        length = _number(values, position, 4)
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
        return tf.where(little, _number(values, inside, length, little=True), _number(values, inside, length))

    first = read(tf.constant(4, tf.int64), 4)
    count = tf.where((first + 2 <= size) & (size >= 8), read(first, 2), tf.constant(0, tf.int64))
    whole = tf.maximum((size - _ENTRY_READ - first - 2) // _ENTRY + 1, 0)
    entries = first + 2 + _ENTRY * tf.range(tf.minimum(count, whole), dtype=tf.int64)
    named = tf.where(read(entries, 2) == tiff.TAG)[:, 0]

    def value() -> tf.Tensor:
        entry = entries[named[0]]
        found = read(entry + 8, 2)
        fits = (read(entry + 2, 2) == tiff.SHORT) & (found >= 1) & (found <= 8)
        return tf.cast(tf.where(fits, found, 1), tf.int32)

    known = little | (mark == b"MM\x00*")
    return tf.cond(known & (tf.size(named) > 0), value, lambda: 1)


def _number(values: tf.Tensor, position: tf.Tensor, length: int, little: bool = False) -> tf.Tensor:
    """Returns the unsigned numbers of `length` bytes at positions, of the integer type of these."""
    places = position[..., None] + tf.range(length, dtype=position.dtype)
    powers = [256**power for power in range(length)]
    weights = tf.constant(powers if little else powers[::-1], position.dtype)
    return tf.reduce_sum(tf.cast(tf.gather(values, places), position.dtype) * weights, -1)
