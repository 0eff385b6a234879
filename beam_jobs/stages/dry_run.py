"""What an ingest would do, and what that takes, without doing it.

The source is listed, as the scan would, and a small sample of its images is read and examined, as the workers would.
Nothing is written.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from beam_jobs import storage
from beam_jobs.common import system
from beam_jobs.dataset import manifest, shards
from beam_jobs.dataset.manifest import Remarks
from beam_jobs.errors import BadImage, OptionError, SourceError, Unreadable
from beam_jobs.images import sandbox
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import RECORD_OVERHEAD_BYTES
from beam_jobs.runners import Engine, cost_estimate
from beam_jobs.runners.cost_estimate import Bill, Work, duration, size
from beam_jobs.sources import http_fetch
from beam_jobs.sources.base import HiddenNames
from beam_jobs.sources.factory import Source, open_source
from beam_jobs.sources.image_reader import Reader, Slice
from beam_jobs.stages import generations
from beam_jobs.stages.publish import described, taken
from beam_jobs.stages.work_dir import check_out
from beam_jobs.storage import disk
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
        bytes=_mean_of(sizes),
        stored=_mean_of(stored for stored, _ in good),
        megapixels=_mean_of(pixels for _, pixels in good) / 1e6,
    )


def _is_packed(ref: ImageRef) -> bool:
    """Returns whether a whole archive would have to be unpacked to read one image."""
    return bool(ref.slice) and bool(Slice.parse(ref.slice).packing)


def _mean_of(values: Iterable[float]) -> float:
    first, second = itertools.tee(values)
    total = sum(first)
    return total / count if (count := sum(1 for _ in second)) else 0.0


_BYTES_PER_PIXEL = 0.3  # of a photograph as JPEG, where no image could be looked at


@runtime_checkable
class Billed(Protocol):
    """An engine that knows what work takes on it."""

    def check(self, ingest: IngestOptions) -> None:
        """Raises `OptionError` if it could not run this ingest."""

    def bill(self, work: Work) -> Bill:
        """Returns what some work takes."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run would do.

    Attributes:
      options: of the ingest.
      engine: name of the engine.
      listing: of the source.
      sample: of its images.
      work: to do.
      bill: of the engine for it.
    """

    options: IngestOptions
    engine: str
    listing: Listing
    sample: Sample
    work: Work
    bill: Bill

    def lines(self) -> list[str]:
        """Returns the estimate for people, a line an item."""
        work, sample = self.work, self.sample
        looked = f"{sample.images} images read, {sample.megapixels:.2g} Mpx each, {sample.rejected} of them bad"
        if not sample.images:
            looked = "no image can be read without unpacking its archive; sizes are guessed"
        written = ", ".join(f"{name} {count:,}" for name, count in work.shards.items())
        planning = f"{duration(work.images * cost_estimate.PLAN_SECONDS_PER_IMAGE)} and "
        items = {
            "source": f"{self.options.source}: {work.images:,} images, {size(work.read_bytes)}{self._how_sized()}",
            "rejects": f"{self.listing.rejects:,} by the listing alone" if self.listing.rejects else "",
            "hidden": Remarks(hidden=self.listing.hidden, hidden_names=self.listing.hidden_names).hidden_text,
            "sample": looked,
            "work": f"buckets to examine {work.buckets:,}; shards to write: {written}",
            "out": f"{self.options.out}: about {size(work.written_bytes)}",
            "plan": planning + f"{size(work.images * cost_estimate.PLAN_BYTES_PER_IMAGE)} of memory, on this machine",
            "compute": f"{duration(work.core_seconds)} of one core",
            "engine": self.engine,
            **self.bill.lines,
        }
        return [f"{name:<10} {text}" for name, text in items.items() if text]

    def to_json(self) -> dict[str, Any]:
        """Returns the estimate as plain JSON values, numbers in the unit that their name says."""
        work = {**vars(self.work), "shards": dict(self.work.shards)}
        return {
            "source": self.options.source,
            "out": self.options.out,
            "engine": self.engine,
            "listing": {name: value for name, value in vars(self.listing).items() if name != "picked"},
            "sample": dict(vars(self.sample)),
            "work": work,
            "estimate": dict(self.bill.values),
        }

    def _how_sized(self) -> str:
        unknown = self.listing.images - self.listing.sized
        return f" (the size of {unknown:,} taken from the sample)" if unknown else ""


def estimate(options: IngestOptions, engine: Engine) -> Estimate:
    """Estimates an ingest: nothing is written, and few images are read.

    Args:
      options: of the ingest.
      engine: what it would run on.

    Raises:
      UsageError: the ingest could not run, or its source cannot be read.
    """
    if isinstance(engine, Billed):
        engine.check(options)
    check(options)
    source = open_source(options)
    hidden = HiddenNames()
    listing = listed(_entries(source, options, hidden), hidden)
    sample = looked_at(listing.picked, _reader(source, options), options)
    work = _work(options, listing, sample, source)
    bill = engine.bill(work) if isinstance(engine, Billed) else _here(work, options.thread_count)
    name = type(engine).__module__.rpartition(".")[2]
    return Estimate(options=options, engine=name, listing=listing, sample=sample, work=work, bill=bill)


def _entries(source: Source, options: IngestOptions, hidden: HiddenNames) -> Iterator[ImageRef | Reject]:
    entries = source.entries(hidden.add)
    if options.append or options.retry_rejects:
        existing = generations.load_existing(options, source.label_kind, described(options))
        return generations.fresh_images(entries, existing, options.retry_rejects)
    return entries


def _reader(source: Source, options: IngestOptions) -> Reader:
    base = source.base if storage.is_remote(source.base) else os.path.abspath(source.base)
    return Reader(base=base, max_bytes=options.limits.max_bytes, http=options.http)


def _work(options: IngestOptions, listing: Listing, sample: Sample, source: Source) -> Work:
    if not listing.images:
        raise SourceError(f"{options.source} holds no image to ingest")
    read = listing.bytes + int((listing.images - listing.sized) * sample.bytes)
    mean = read / listing.images
    megapixels = sample.megapixels or mean / _BYTES_PER_PIXEL / 1e6
    kept = 1 - sample.rejected / sample.images if sample.images else 1.0
    good = max(1, round(listing.images * kept))
    written = int(good * (_stored(options, sample, mean) + RECORD_OVERHEAD_BYTES))
    to_server = [http_fetch.is_url(ref.uri) for ref in listing.picked]
    remote = storage.is_remote(source.base) or any(storage.is_remote(ref.uri) for ref in listing.picked)
    requests = 2 * listing.images if remote and not all(to_server) else 0
    seconds = (
        listing.images * cost_estimate.core_seconds(options, megapixels) + requests * cost_estimate.REQUEST_SECONDS
    )
    return Work(
        images=listing.images,
        read_bytes=read,
        written_bytes=written,
        buckets=-(-listing.images // options.bucket_images),
        shards=_shards(options, good, written),
        core_seconds=seconds,
        requests=requests,
        remote=remote or any(to_server),
    )


def _stored(options: IngestOptions, sample: Sample, mean: float) -> float:
    """Returns the mean bytes that are stored of an image."""
    pixels = options.pixels
    if pixels.policy == "raw":
        return 3.0 * pixels.side_px**2
    if not sample.images:
        return mean if pixels.policy == "copy" else min(mean, pixels.side_px**2 * _BYTES_PER_PIXEL)
    # Copied files are as large as all files are, not as those of the sample happen to be.
    return mean * sample.stored / sample.bytes if pixels.policy == "copy" else sample.stored


def _shards(options: IngestOptions, count: int, written: int) -> Mapping[str, int]:
    found = {}
    for name, share in options.shares.items():
        records = max(1, round(count * share))
        found[name] = options.shards or shards.shard_count(int(written * share), records, options.shard_mb * 1e6)
    return found


def _here(work: Work, threads: int) -> Bill:
    return cost_estimate.core_bill(work, min(threads, system.cores()), cost_estimate.LOCAL_START_SECONDS)


def check(options: IngestOptions) -> None:
    """Checks the output of an ingest as far as can be seen. Whether a store lets us write, only writing tells.

    Raises:
      OptionError: it holds something, cannot be written or cannot be looked at.
    """
    adding = options.append or options.retry_rejects
    if adding or options.overwrite:
        generations.check_replaceable(options.out)
    if not _is_published(options.out):
        check_out(options)
    elif not (adding or options.overwrite):
        raise OptionError(taken(options.out))
    if storage.is_remote(options.out):
        _check_bucket(options.out)
    else:
        _check_folder(options.out)


def _is_published(out: str) -> bool:
    try:
        return manifest.is_published(out)
    except OSError as error:
        raise OptionError(f"{out} cannot be looked at: {error}; correct --out, or what its store asks for") from error


def _check_bucket(out: str) -> None:
    try:
        next(storage.walk_files(out), None)
    except FileNotFoundError as error:
        raise OptionError(f"{out} cannot be written: {error.strerror or error}; choose another --out") from error
    except OSError:  # not allowed to list, which does not mean not allowed to write
        return


def _check_folder(out: str) -> None:
    if refused := disk.refusal(out):
        raise OptionError(f"{out} cannot be written: {refused.reason}; {refused.repair or 'choose another --out'}")
