"""A look at a source before anything is done with it: all of its listing, and a few of its images."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass

from beam_jobs.errors import BadImage, SourceError, Unreadable
from beam_jobs.images import sandbox
from beam_jobs.options import IngestOptions
from beam_jobs.sources import http_fetch
from beam_jobs.sources.byte_range import Slice
from beam_jobs.sources.hidden import HiddenNames
from beam_jobs.sources.image_reader import Reader
from beam_jobs.types import ImageRef, Reject

SAMPLE_IMAGES = 48
SAMPLE_BYTES = 64_000_000  # read of the sample, and at most one image more


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What the listing of the source tells.

    Attributes:
      images: to ingest.
      sized: images whose size it tells; that of the others is that of the sample.
      bytes: of the files of those.
      rejects: what would be rejected unopened.
      hidden: names that are passed over, see `manifest.Remarks`.
      hidden_names: the first of them.
      picked: a random sample of the images, the same in every run.
    """

    images: int
    sized: int
    bytes: int
    rejects: int
    hidden: int
    hidden_names: tuple[str, ...]
    picked: tuple[ImageRef, ...]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What some images of the source are like.

    Attributes:
      images: looked at.
      rejected: of them.
      bytes: mean size of a file.
      stored: mean size of what would be stored of a good one, in bytes.
      megapixels: mean of the good ones, as they are read.
    """

    images: int
    rejected: int
    bytes: float
    stored: float
    megapixels: float


def listed(entries: Iterable[ImageRef | Reject], hidden: HiddenNames) -> Listing:
    """Counts the entries of a source, one in memory at a time, and picks some of its images.

    Args:
      entries: of the source.
      hidden: what the source passes over on the way, complete when the entries end.
    """
    chosen = random.Random(0)  # noqa: S311
    picked: list[ImageRef] = []
    count = sized = total = rejects = 0
    for entry in entries:
        if isinstance(entry, Reject):
            rejects += 1
            continue
        count += 1
        sized += entry.bytes > 0
        total += entry.bytes
        if len(picked) < SAMPLE_IMAGES:
            picked.append(entry)
        elif (place := chosen.randrange(count)) < SAMPLE_IMAGES:
            picked[place] = entry
    return Listing(
        images=count,
        sized=sized,
        bytes=total,
        rejects=rejects,
        hidden=hidden.count,
        hidden_names=tuple(hidden.examples),
        picked=tuple(picked),
    )


def looked_at(picked: Iterable[ImageRef], reader: Reader, options: IngestOptions) -> Sample:
    """Reads and examines images, until there are enough bytes of them.

    Args:
      picked: images of the source.
      reader: reads them.
      options: what becomes of them.

    Raises:
      SourceError: none of them can be used.
    """
    sizes: list[int] = []
    good: list[tuple[int, int]] = []
    reasons: list[str] = []
    for ref in picked:
        if _is_packed(ref):
            continue
        try:
            data = reader.read(ref.uri, ref.slice)
            sizes.append(len(data))
            (examined,) = sandbox.examine([data], options.limits, options.pixels, options.facts, processes=1)
            if isinstance(examined, BadImage):
                raise examined
            encoded, facts = examined
            good.append((len(encoded), facts.source_height * facts.source_width))
        except BadImage as bad:
            reasons.append(f"{http_fetch.unsigned(ref.uri)}: {bad.reason.value} ({bad.detail})")
        except Unreadable as fault:
            reasons.append(f"{http_fetch.unsigned(ref.uri)}: unreadable ({fault})")
        if sum(sizes) >= SAMPLE_BYTES:
            break
    if reasons and not good:
        raise SourceError(f"none of {len(reasons)} sampled images can be used; first: {reasons[0]}")
    return Sample(
        images=len(good) + len(reasons),
        rejected=len(reasons),
        bytes=_mean(sizes),
        stored=_mean(stored for stored, _ in good),
        megapixels=_mean(pixels for _, pixels in good) / 1e6,
    )


def _is_packed(ref: ImageRef) -> bool:
    """Returns whether a whole archive would have to be unpacked to read one image."""
    return bool(ref.slice) and bool(Slice.parse(ref.slice).packing)


def _mean(values: Iterable[float]) -> float:
    first, second = itertools.tee(values)
    total = sum(first)
    return total / count if (count := sum(1 for _ in second)) else 0.0
