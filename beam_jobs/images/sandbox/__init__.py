"""Images examined in processes of their own, so that a decoder that crashes, hangs or eats memory costs one image.

The threads of the ingest read; decoders decode, one for each thread that computes. A decoder that dies is replaced and
what it worked on is tried again, alone; an image that ends its decoder each time is rejected, and so is one that takes
more than its time.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from beam_jobs.common import child_python
from beam_jobs.errors import BadImage, RejectReason
from beam_jobs.images.geometry import Geometry
from beam_jobs.images.sandbox.pool import Died, Pool, TooSlow
from beam_jobs.images.thumbnail import Thumbnail, ThumbnailOptions
from beam_jobs.options import ImageLimits, PixelOptions
from beam_jobs.types import ImageFacts

_CRASHES = 3  # attempts that an image has; a machine out of memory can crash what is innocent
_OTHERS = 20  # that it has where the decoder ended of something for which it need not be the reason

_pool = Pool()


def examine(
    images: Sequence[bytes], limits: ImageLimits, pixels: PixelOptions, facts: str, processes: int
) -> list[tuple[bytes, ImageFacts] | BadImage]:
    """Examines images as `process.examine` does, in another process.

    Args:
      images: files as read.
      limits: what an image may be, and how long it may take.
      pixels: what becomes of the pixels.
      facts: `all` or `basic`.
      processes: how many decoders may work at a time, for all threads together.

    Returns:
      for each image the bytes to store (the very object when they need no change) and the facts, or why it cannot be
      used.
    """
    asked = {
        "do": "image",
        "limits": dataclasses.asdict(limits),
        "pixels": dataclasses.asdict(pixels),
        "facts": facts,
    }
    return _Request(_pool, asked, limits.max_seconds, processes, _examined).answers(images)


def normalise_mask(
    data: bytes, geometry: Geometry, limits: ImageLimits, processes: int
) -> tuple[bytes, tuple[int, ...]]:
    """Checks and moves a mask as `annotations.normalise_mask` does, in another process.

    Raises:
      BadImage: it is no mask of this image, or takes too long.
    """
    asked = {"do": "mask", "geometry": dataclasses.asdict(geometry), "limits": dataclasses.asdict(limits)}
    request = _Request(_pool, asked, limits.max_seconds, processes, _normalised)
    (answer,) = request.answers([data])
    if isinstance(answer, BadImage):
        raise answer
    return answer


def _normalised(data: bytes, answer: dict[str, Any], changed: bytes | None) -> tuple[bytes, tuple[int, ...]]:
    return changed or data, tuple(map(int, answer["values"]))


def thumbnail(data: bytes, limits: ImageLimits, options: ThumbnailOptions, processes: int = 1) -> Thumbnail:
    """Draws an image as `thumbnail.draw` does, in another process.

    Raises:
      BadImage: it is over a limit, it cannot be decoded, or it takes too long.
    """
    asked = {"do": "thumbnail", "limits": dataclasses.asdict(limits), "options": dataclasses.asdict(options)}
    (answer,) = _Request(_pool, asked, limits.max_seconds, processes, _drawn).answers([data])
    if isinstance(answer, BadImage):
        raise answer
    return answer


def _drawn(_: bytes, answer: dict[str, Any], encoded: bytes | None) -> Thumbnail:
    if encoded is None:
        raise ValueError("a picture without bytes")
    return Thumbnail(encoded=encoded, width=int(answer["width"]), height=int(answer["height"]))


def sizes(images: Sequence[bytes], limits: ImageLimits, processes: int) -> list[tuple[int, int] | BadImage]:
    """Decodes stored JPEG and PNG files as training does, in another process.

    Args:
      images: the files.
      limits: what an image may be, and how long it may take.
      processes: how many decoders may work at a time, for all threads together.

    Returns:
      for each file height and width of its pixels, or why it cannot be decoded.
    """
    asked = {"do": "size", "limits": dataclasses.asdict(limits)}
    return _Request(_pool, asked, limits.max_seconds, processes, _size).answers(images)


def _size(_: bytes, answer: dict[str, Any], __: bytes | None) -> tuple[int, int]:
    return int(answer["height"]), int(answer["width"])


def stop() -> None:
    """Ends all decoders, also those that work; a call that waits for one, and each later call, raises `Closed`."""
    _pool.close()


def close() -> None:
    """Ends all decoders, also those that work; later calls start new ones."""
    global _pool
    old, _pool = _pool, Pool()
    old.close()


@dataclass(frozen=True)
class _Request:
    """What decoders are asked.

    Attributes:
      pool: of the decoders.
      asked: the header of the question.
      seconds: of computing time an image may take.
      processes: decoders that may work at a time.
      read: turns an image, the facts about it and its new bytes, if it needs any, into a result.
    """

    pool: Pool
    asked: dict[str, Any]
    seconds: float
    processes: int
    read: Callable[[bytes, dict[str, Any], bytes | None], Any]

    def answers(self, images: Sequence[bytes]) -> list[Any]:
        """Returns a result each; after the first trouble each goes alone, so that it is known whose trouble it is."""
        found: list[Any] = []
        try:
            self._ask(images, found)
        except (Died, TooSlow):
            found.extend(self._alone(data) for data in images[len(found) :])
        return found

    def _alone(self, data: bytes) -> Any:
        crashes = others = 0
        while True:
            found: list[Any] = []
            try:
                self._ask([data], found)
                return found[0]
            except TooSlow as slow:
                return BadImage(RejectReason.TOO_SLOW, str(slow))
            except Died as died:
                others += died.blameless
                crashes += not died.blameless
                if crashes == _CRASHES or others == _OTHERS:
                    return _crash(f"{died}, {crashes + others} times")

    def _ask(self, images: Sequence[bytes], found: list[Any]) -> None:
        """Has one decoder answer; what it has answered is in `found`, also when it dies of a later image."""
        with self.pool.decoder(self.processes) as decoder:
            decoder.ask(self.asked, images)
            while len(found) < len(images):
                header, bodies = decoder.answer(self.seconds)
                try:
                    found += self._read_all(images[len(found) :], header["answers"], bodies)
                except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
                    raise Died("it answered nonsense") from error

    def _read_all(self, images: Sequence[bytes], answers: list[dict[str, Any]], bodies: list[bytes]) -> list[Any]:
        if not 0 < len(answers) <= len(images):
            raise ValueError("another number of answers than of images")
        rest = iter(bodies)
        found = []
        for data, answer in zip(images, answers, strict=False):
            changed = next(rest) if answer["changed"] else None
            if "bad" in answer:
                reason, detail = answer["bad"]
                found.append(BadImage(RejectReason(reason), detail))
            else:
                found.append(_crash(answer["crash"]) if "crash" in answer else self.read(data, answer, changed))
        return found


def _examined(data: bytes, answer: dict[str, Any], changed: bytes | None) -> tuple[bytes, ImageFacts]:
    values = answer["facts"]
    means = {name: tuple(values[name]) for name in ("mean_rgb", "var_rgb")}  # JSON has no tuples
    return data if changed is None else changed, ImageFacts(**{**values, **means})


def _crash(cause: str) -> BadImage:
    return BadImage(RejectReason.DECODER_CRASHED, f"the decoder broke down: {cause}")


def _forget() -> None:
    global _pool  # noqa: PLW0603
    _pool = Pool()


# A forked process must not talk to the decoders of its parent; sockets and processes stay with the parent.
os.register_at_fork(after_in_child=_forget)
# An image that takes long must not hold up the end of the process.
child_python.stops.append(stop)
