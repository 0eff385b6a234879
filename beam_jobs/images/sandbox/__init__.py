"""Decoding in separate processes, so that a decoder that crashes, hangs or fills the memory affects only one image.

Each computing thread uses one decoder process. A decoder reads and decodes local files; remote files are sent to it.
When a decoder dies, it is replaced and its images are sent again, one by one. An image that ends its decoder each time
is rejected, and so is an image that takes too long.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.common.process_pool import ChildDied, OwnPool, Pool, TooSlow
from beam_jobs.errors import BadImage, Unreadable
from beam_jobs.images.normalise import Geometry
from beam_jobs.images.thumbnail import Thumbnail, ThumbnailOptions
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.rejects import RejectReason
from beam_jobs.sources.image_reader import Reader
from beam_jobs.types import ImageFacts

_MAX_CRASHES = 3  # attempts for an image; a machine that runs out of memory crashes decoders of valid images, too
_MAX_INTERRUPTIONS = 20  # attempts for an image whose decoder ended for a reason that may not be the image

_own = OwnPool("beam_jobs.images.sandbox.worker", "the processes that decode images do not start: {}")

# The facts about an image as a decoder sends them: a row of fixed size, which needs no parser, ASCII texts first.
_TEXTS = (("format", "S8"), ("source_format", "S8"), ("sha256", "S64"), ("source_sha256", "S64"), ("normalised", "S80"))
_SIZES = ("height", "width", "source_height", "source_width", "channels", "bytes")
_NUMBERS = (*((name, "<i8") for name in (*_SIZES, "crc32c", "dhash")), ("mean_rgb", "<f8", 3), ("var_rgb", "<f8", 3))
FACTS = np.dtype([*_TEXTS, *_NUMBERS])
_TEXT_BYTES = np.dtype([*_TEXTS]).itemsize


def pack_facts(facts: ImageFacts) -> bytes:
    """Returns facts as a row of `FACTS`; the row does not contain the checksum of the mask."""
    values = vars(facts)
    return np.array(tuple(values[name] for name in FACTS.names or ()), FACTS).tobytes()


def unpack_facts(row: bytes) -> ImageFacts:
    """Returns the facts in a row of `FACTS`."""
    values: dict[str, Any] = dict(zip(FACTS.names or (), np.frombuffer(row, FACTS)[0].tolist(), strict=True))
    texts = {name: values[name].decode() for name, _ in _TEXTS}
    return ImageFacts(**{**values, **texts, **{name: tuple(values[name].tolist()) for name in ("mean_rgb", "var_rgb")}})


class Examination(NamedTuple):
    """The result for an accepted image.

    Attributes:
      facts: row of `FACTS`.
      stored: the bytes to store; None if these are the bytes of the source.
    """

    facts: bytes
    stored: bytes | None


def examine(
    images: Sequence[Any],
    limits: ImageLimits,
    pixels: PixelOptions,
    facts: str,
    processes: int,
    reader: Reader | None = None,
) -> list[Examination | BadImage | Unreadable]:
    """Examines images as `process.examine` does, in another process.

    Args:
      images: the bytes of the source files, or with a `reader` the uri and the slice of each image.
      limits: limits of bytes, pixels, sides and seconds.
      pixels: the policy for the stored pixels.
      facts: `all` or `basic`.
      processes: maximum number of busy decoders, for all threads together.
      reader: reads the images in the other process; they must be local, and in no compressed container.

    Returns:
      the result or the error of each image, in their order; `Unreadable` only with a `reader`.
    """
    header: dict[str, Any] = {"do": "image", "facts": facts}
    header |= {"limits": dataclasses.asdict(limits), "pixels": dataclasses.asdict(pixels)}
    if reader:
        header["reader"] = [os.path.abspath(reader.base), reader.max_bytes, os.path.abspath(reader.work)]
    return _Request(_own.pool, header, limits.max_seconds, processes, _read_examination).process_all(images)


def normalise_mask(
    data: bytes, geometry: Geometry, limits: ImageLimits, processes: int
) -> tuple[bytes, tuple[int, ...]]:
    """Checks, resizes and crops a mask as `annotations.normalise_mask` does, in another process.

    Raises:
      BadImage: `data` is not a mask of this image, or takes too long.
    """
    header = {"do": "mask", "geometry": dataclasses.asdict(geometry), "limits": dataclasses.asdict(limits)}
    request = _Request(_own.pool, header, limits.max_seconds, processes, _read_mask)
    (result,) = request.process_all([data])
    if isinstance(result, BadImage):
        raise result
    return result


def _read_mask(data: bytes, response: dict[str, Any], bodies: list[bytes]) -> tuple[bytes, tuple[int, ...]]:
    return bodies[0] if bodies else data, tuple(map(int, response["values"]))


def thumbnail(data: bytes, limits: ImageLimits, options: ThumbnailOptions, processes: int = 1) -> Thumbnail:
    """Renders an image as `thumbnail.render` does, in another process.

    Raises:
      BadImage: the image is over a limit, cannot be decoded, or takes too long.
    """
    header = {"do": "thumbnail", "limits": dataclasses.asdict(limits), "options": dataclasses.asdict(options)}
    (result,) = _Request(_own.pool, header, limits.max_seconds, processes, _read_thumbnail).process_all([data])
    if isinstance(result, BadImage):
        raise result
    return result


def _read_thumbnail(_: bytes, response: dict[str, Any], bodies: list[bytes]) -> Thumbnail:
    (encoded,) = bodies
    return Thumbnail(encoded=encoded, width=int(response["width"]), height=int(response["height"]))


def sizes(images: Sequence[bytes], limits: ImageLimits, processes: int) -> list[tuple[int, int] | BadImage]:
    """Decodes stored JPEG and PNG files as training does, in another process.

    Args:
      images: the bytes of the files.
      limits: limits of bytes, pixels, sides and seconds.
      processes: maximum number of busy decoders, for all threads together.

    Returns:
      height and width of each file, in pixels, or its error.
    """
    header = {"do": "size", "limits": dataclasses.asdict(limits)}
    return _Request(_own.pool, header, limits.max_seconds, processes, _read_size).process_all(images)


def _read_size(_: bytes, response: dict[str, Any], __: list[bytes]) -> tuple[int, int]:
    return int(response["height"]), int(response["width"])


def start() -> None:
    """Starts the decoders in the background, which takes seconds; otherwise the first request starts them."""
    _own.pool.start()


def close() -> None:
    """Ends all decoders, also busy ones; later calls start new ones."""
    _own.close()


@dataclass(frozen=True)
class _Request:
    """A request to the decoders.

    Attributes:
      pool: the decoders.
      header: the header of the request, in JSON values.
      seconds: limit of computing time for an image.
      processes: maximum number of busy decoders.
      read: function of an image, its response and the binary bodies of the response; returns the result of the image.
    """

    pool: Pool
    header: dict[str, Any]
    seconds: float
    processes: int
    read: Callable[[Any, dict[str, Any], list[bytes]], Any]

    def process_all(self, images: Sequence[Any]) -> list[Any]:
        """Returns a result for each image; after a failure, sends images one by one, to identify the image at fault."""
        results: list[Any] = []
        try:
            self._send(images, results)
        except (ChildDied, TooSlow):
            results.extend(map(self._process_one, images[len(results) :]))
        return results

    def _process_one(self, image: Any) -> Any:
        crashes = interruptions = 0
        while True:
            results: list[Any] = []
            try:
                self._send([image], results)
                return results[0]
            except TooSlow as slow:
                return BadImage(RejectReason.TOO_SLOW, str(slow))
            except ChildDied as died:
                interruptions += died.interrupted
                crashes += not died.interrupted
                if crashes == _MAX_CRASHES or interruptions == _MAX_INTERRUPTIONS:
                    return _crash(f"{died}, {crashes + interruptions} times")

    def _send(self, images: Sequence[Any], results: list[Any]) -> None:
        """Sends images to a decoder and appends the results to `results`, also the results before the decoder dies."""
        with self.pool.child(self.processes) as child:
            if "reader" in self.header:
                child.ask({**self.header, "places": images}, ())
                child.answer(self.seconds, may_wait=True)  # sent after the files were read: a disk may be slow
            else:
                child.ask(self.header, images)
            while len(results) < len(images):
                header, bodies = child.answer(self.seconds)
                try:
                    results += self._read_all(images[len(results) :], header["answers"], bodies)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise ChildDied("it sent an invalid answer") from error

    def _read_all(self, images: Sequence[Any], responses: list[dict[str, Any]], bodies: list[bytes]) -> list[Any]:
        if not 0 < len(responses) <= len(images):
            raise ValueError(f"{len(responses)} answers for {len(images)} images")
        remaining_bodies = iter(bodies)
        results: list[Any] = []
        for image, response in zip(images, responses, strict=False):
            parts = list(itertools.islice(remaining_bodies, response["bodies"]))
            if "bad" in response:
                reason, detail, size = response["bad"]
                results.append(BadImage(RejectReason(reason), detail, int(size)))
            elif "unreadable" in response:
                results.append(Unreadable(str(response["unreadable"])))
            else:
                results.append(_crash(response["crash"]) if "crash" in response else self.read(image, response, parts))
        return results


def _read_examination(_: object, __: dict[str, Any], bodies: list[bytes]) -> Examination:
    facts, *stored = bodies
    if len(facts) != FACTS.itemsize or not facts[:_TEXT_BYTES].isascii():
        raise ValueError("it is not a row of facts")
    return Examination(facts, stored[0] if stored else None)


def _crash(cause: str) -> BadImage:
    return BadImage(RejectReason.DECODER_CRASHED, f"the decoder failed: {cause}")
