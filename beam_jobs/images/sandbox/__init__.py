"""Decoding in separate processes, so that a decoder that crashes, hangs or fills the memory costs only one image.

The threads of the ingest read files; decoder processes decode them, one for each thread that computes. When a decoder
dies, it is replaced and its images are sent again, one by one. An image that ends its decoder each time is rejected,
and so is an image that takes too long.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from beam_jobs.common import child_python
from beam_jobs.errors import BadImage
from beam_jobs.images.normalise import Geometry
from beam_jobs.images.sandbox.pool import DecoderDied, Pool, TooSlow
from beam_jobs.images.thumbnail import Thumbnail, ThumbnailOptions
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.rejects import RejectReason
from beam_jobs.types import ImageFacts

_MAX_CRASHES = 3  # attempts for an image; a machine that runs out of memory crashes decoders of valid images, too
_MAX_INTERRUPTIONS = 20  # attempts for an image whose decoder ended for a reason that may not be the image

_pool = Pool()


def examine(
    images: Sequence[bytes], limits: ImageLimits, pixels: PixelOptions, facts: str, processes: int
) -> list[tuple[bytes, ImageFacts] | BadImage]:
    """Examines images as `process.examine` does, in another process.

    Args:
      images: the bytes of the source files.
      limits: limits of bytes, pixels, sides and seconds.
      pixels: the policy for the stored pixels.
      facts: `all` or `basic`.
      processes: maximum number of decoders at work, for all threads together.

    Returns:
      for each image the bytes to store (the same object when they need no change) and the facts, or the error.
    """
    header = {"do": "image", "limits": dataclasses.asdict(limits), "pixels": dataclasses.asdict(pixels), "facts": facts}
    return _Request(_pool, header, limits.max_seconds, processes, _read_examination).answer_all(images)


def normalise_mask(
    data: bytes, geometry: Geometry, limits: ImageLimits, processes: int
) -> tuple[bytes, tuple[int, ...]]:
    """Checks and moves a mask as `annotations.normalise_mask` does, in another process.

    Raises:
      BadImage: `data` is not a mask of this image, or takes too long.
    """
    header = {"do": "mask", "geometry": dataclasses.asdict(geometry), "limits": dataclasses.asdict(limits)}
    request = _Request(_pool, header, limits.max_seconds, processes, _read_mask)
    (answer,) = request.answer_all([data])
    if isinstance(answer, BadImage):
        raise answer
    return answer


def _read_mask(data: bytes, answer: dict[str, Any], new_bytes: bytes | None) -> tuple[bytes, tuple[int, ...]]:
    return new_bytes or data, tuple(map(int, answer["values"]))


def thumbnail(data: bytes, limits: ImageLimits, options: ThumbnailOptions, processes: int = 1) -> Thumbnail:
    """Renders an image as `thumbnail.render` does, in another process.

    Raises:
      BadImage: the image is over a limit, cannot be decoded, or takes too long.
    """
    header = {"do": "thumbnail", "limits": dataclasses.asdict(limits), "options": dataclasses.asdict(options)}
    (answer,) = _Request(_pool, header, limits.max_seconds, processes, _read_thumbnail).answer_all([data])
    if isinstance(answer, BadImage):
        raise answer
    return answer


def _read_thumbnail(_: bytes, answer: dict[str, Any], encoded: bytes | None) -> Thumbnail:
    if encoded is None:
        raise ValueError("a thumbnail without bytes")
    return Thumbnail(encoded=encoded, width=int(answer["width"]), height=int(answer["height"]))


def sizes(images: Sequence[bytes], limits: ImageLimits, processes: int) -> list[tuple[int, int] | BadImage]:
    """Decodes stored JPEG and PNG files as training does, in another process.

    Args:
      images: the bytes of the files.
      limits: limits of bytes, pixels, sides and seconds.
      processes: maximum number of decoders at work, for all threads together.

    Returns:
      height and width of each file, in pixels, or the error.
    """
    header = {"do": "size", "limits": dataclasses.asdict(limits)}
    return _Request(_pool, header, limits.max_seconds, processes, _read_size).answer_all(images)


def _read_size(_: bytes, answer: dict[str, Any], __: bytes | None) -> tuple[int, int]:
    return int(answer["height"]), int(answer["width"])


def start() -> None:
    """Begins to start the decoders, which takes seconds; the first call of another function would do it."""
    _pool.start()


def stop() -> None:
    """Ends all decoders, also busy ones; a call that waits for one, and each later call, raises `PoolClosed`."""
    _pool.close()


def close() -> None:
    """Ends all decoders, also busy ones; later calls start new ones."""
    global _pool
    old, _pool = _pool, Pool()
    old.close()


@dataclass(frozen=True)
class _Request:
    """A request to the decoders.

    Attributes:
      pool: the decoders.
      header: the header of the request, in JSON values.
      seconds: limit of computing time for an image.
      processes: maximum number of decoders at work.
      read: function of the bytes of an image, its answer and its new bytes (None: no change) that returns the result.
    """

    pool: Pool
    header: dict[str, Any]
    seconds: float
    processes: int
    read: Callable[[bytes, dict[str, Any], bytes | None], Any]

    def answer_all(self, images: Sequence[bytes]) -> list[Any]:
        """Returns a result for each image; after a failure they are sent one by one, to identify the image at fault."""
        results: list[Any] = []
        try:
            self._ask(images, results)
        except (DecoderDied, TooSlow):
            results.extend(self._answer_one(data) for data in images[len(results) :])
        return results

    def _answer_one(self, data: bytes) -> Any:
        crashes = interruptions = 0
        while True:
            results: list[Any] = []
            try:
                self._ask([data], results)
                return results[0]
            except TooSlow as slow:
                return BadImage(RejectReason.TOO_SLOW, str(slow))
            except DecoderDied as died:
                interruptions += died.interrupted
                crashes += not died.interrupted
                if crashes == _MAX_CRASHES or interruptions == _MAX_INTERRUPTIONS:
                    return _crash(f"{died}, {crashes + interruptions} times")

    def _ask(self, images: Sequence[bytes], results: list[Any]) -> None:
        """Sends images to a decoder and appends its answers to `results`, also when it dies at a later image."""
        with self.pool.decoder(self.processes) as decoder:
            decoder.ask(self.header, images)
            while len(results) < len(images):
                header, bodies = decoder.answer(self.seconds)
                try:
                    results += self._read_all(images[len(results) :], header["answers"], bodies)
                except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
                    raise DecoderDied("it sent an invalid answer") from error

    def _read_all(self, images: Sequence[bytes], answers: list[dict[str, Any]], bodies: list[bytes]) -> list[Any]:
        if not 0 < len(answers) <= len(images):
            raise ValueError(f"{len(answers)} answers for {len(images)} images")
        remaining_bodies = iter(bodies)
        results = []
        for data, answer in zip(images, answers, strict=False):
            new_bytes = next(remaining_bodies) if answer["changed"] else None
            if "bad" in answer:
                reason, detail = answer["bad"]
                results.append(BadImage(RejectReason(reason), detail))
            else:
                results.append(_crash(answer["crash"]) if "crash" in answer else self.read(data, answer, new_bytes))
        return results


def _read_examination(data: bytes, answer: dict[str, Any], new_bytes: bytes | None) -> tuple[bytes, ImageFacts]:
    values = answer["facts"]
    means = {name: tuple(values[name]) for name in ("mean_rgb", "var_rgb")}  # JSON has no tuples
    return data if new_bytes is None else new_bytes, ImageFacts(**{**values, **means})


def _crash(cause: str) -> BadImage:
    return BadImage(RejectReason.DECODER_CRASHED, f"the decoder broke down: {cause}")


def _replace_pool() -> None:
    global _pool  # noqa: PLW0603
    _pool = Pool()


# A forked process must not talk to the decoders of its parent; sockets and processes stay with the parent.
os.register_at_fork(after_in_child=_replace_pool)
# An image that takes long must not delay the end of the process.
child_python.stops.append(stop)
