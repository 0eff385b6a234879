"""Estimates the work and the resources of an ingest without running it.

The source is listed as in the scan, and a small sample of its images is read and examined as in the workers. Nothing is
written.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from beam_jobs import storage
from beam_jobs.common import system
from beam_jobs.dataset import shards
from beam_jobs.dataset.manifest import Remarks
from beam_jobs.errors import BadImage, OptionError, SourceError, Unreadable
from beam_jobs.images import sandbox
from beam_jobs.options import IngestOptions
from beam_jobs.planning.image_tables import RECORD_OVERHEAD_BYTES
from beam_jobs.rejects import Reject
from beam_jobs.runners import Engine, cost_estimate
from beam_jobs.runners.cost_estimate import ResourceEstimate, Work, duration, size
from beam_jobs.sources import http_fetch
from beam_jobs.sources.base import HiddenNames
from beam_jobs.sources.factory import Source, open_source
from beam_jobs.sources.image_reader import Reader, Slice
from beam_jobs.stages import append, replace
from beam_jobs.stages.publish import dataset_options
from beam_jobs.stages.work_dir import check_out, is_published, occupied_message
from beam_jobs.storage import disk
from beam_jobs.types import ImageRef

SAMPLE_IMAGES = 48
SAMPLE_BYTES = 64_000_000  # reading stops after the image that reaches this sum


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Result of listing the source.

    Attributes:
      images: number of images to ingest.
      sized: number of images with a known size; other images get the mean size of the sample.
      bytes: sum of the known sizes, in bytes.
      rejects: number of entries that would be rejected without reading the file.
      hidden: number of ignored names, see `manifest.Remarks`.
      hidden_names: the first ignored names, folders first.
      candidates: a random sample of the images, equal in every run.
    """

    images: int
    sized: int
    bytes: int
    rejects: int
    hidden: int
    hidden_names: tuple[str, ...]
    candidates: tuple[ImageRef, ...]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Statistics of a sample of the images.

    Attributes:
      images: number of examined images.
      rejected: number of rejected images among them.
      bytes: mean size of a file, in bytes.
      stored: mean size of a good image as it would be stored, in bytes.
      megapixels: mean size of a good image as it is read, in megapixels.
    """

    images: int
    rejected: int
    bytes: float
    stored: float
    megapixels: float


def list_source(entries: Iterable[ImageRef | Reject], hidden: HiddenNames) -> Listing:
    """Counts the entries of a source in constant memory, and selects a sample of its images.

    Args:
      entries: entries of the source.
      hidden: ignored names, to which the source adds while its entries are read.
    """
    random_generator = random.Random(0)  # noqa: S311
    candidates: list[ImageRef] = []
    count = sized = total_bytes = rejects = 0
    for entry in entries:
        if isinstance(entry, Reject):
            rejects += 1
            continue
        count += 1
        sized += entry.bytes > 0
        total_bytes += entry.bytes
        if len(candidates) < SAMPLE_IMAGES:
            candidates.append(entry)
        elif (index := random_generator.randrange(count)) < SAMPLE_IMAGES:  # equal probabilities
            candidates[index] = entry
    return Listing(
        images=count,
        sized=sized,
        bytes=total_bytes,
        rejects=rejects,
        hidden=hidden.count,
        hidden_names=tuple(hidden.examples),
        candidates=tuple(candidates),
    )


def examine_sample(candidates: Iterable[ImageRef], reader: Reader, options: IngestOptions) -> Sample:
    """Reads and examines images of the source, up to `SAMPLE_BYTES`.

    Raises:
      SourceError: no image of the sample can be used.
    """
    sizes: list[int] = []
    good_sizes: list[tuple[int, int]] = []  # bytes as stored, pixels of the source image
    failures: list[str] = []
    for ref in candidates:
        if ref.slice and Slice.parse(ref.slice).compression:
            continue  # reading the image requires unpacking a complete archive
        try:
            data = reader.read(ref.uri, ref.slice)
            sizes.append(len(data))
            (result,) = sandbox.examine([data], options.limits, options.pixels, options.facts, processes=1)
            if isinstance(result, Exception):
                raise result
            facts = sandbox.unpack_facts(result.facts)
            good_sizes.append((facts.bytes, facts.source_height * facts.source_width))
        except BadImage as bad:
            failures.append(f"{http_fetch.remove_signature(ref.uri)}: {bad.reason.value} ({bad.detail})")
        except Unreadable as fault:
            failures.append(f"{http_fetch.remove_signature(ref.uri)}: unreadable ({fault})")
        if sum(sizes) >= SAMPLE_BYTES:
            break
    if failures and not good_sizes:
        raise SourceError(f"none of the {len(failures)} sampled images can be used; first: {failures[0]}")
    return Sample(
        images=len(good_sizes) + len(failures),
        rejected=len(failures),
        bytes=_mean(sizes),
        stored=_mean(stored for stored, _ in good_sizes),
        megapixels=_mean(pixels for _, pixels in good_sizes) / 1e6,
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


_BYTES_PER_PIXEL = 0.3  # of a photograph as JPEG, used if no image could be examined


@runtime_checkable
class ResourceEstimator(Protocol):
    """An engine that estimates the resources of work."""

    def check(self, ingest: IngestOptions) -> None:
        """Raises `OptionError` if the engine cannot run this ingest."""

    def estimate_resources(self, work: Work) -> ResourceEstimate:
        """Returns the resources that the work takes."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate of an ingest.

    Attributes:
      options: options of the ingest.
      engine: name of the engine.
      listing: listing of the source.
      sample: statistics of a sample of its images.
      work: work to do.
      resources: resources that the work takes on the engine.
    """

    options: IngestOptions
    engine: str
    listing: Listing
    sample: Sample
    work: Work
    resources: ResourceEstimate

    def lines(self) -> list[str]:
        """Returns the estimate as text, one line per item."""
        work, sample = self.work, self.sample
        sample_text = f"{sample.images} images read, {sample.megapixels:.2g} Mpx each, {sample.rejected} of them bad"
        if not sample.images:
            sample_text = "no image can be read without unpacking its archive; sizes are rough estimates"
        shard_texts = ", ".join(f"{name} {count:,}" for name, count in work.shards.items())
        plan_time = f"{duration(work.images * cost_estimate.PLAN_SECONDS_PER_IMAGE)} and "
        items = {
            "source": f"{self.options.source}: {work.images:,} images, {size(work.read_bytes)}{self._size_remark()}",
            "rejects": f"{self.listing.rejects:,}, found without reading images" if self.listing.rejects else "",
            "hidden": Remarks(hidden=self.listing.hidden, hidden_names=self.listing.hidden_names).hidden_text,
            "sample": sample_text,
            "work": f"batches to examine {work.buckets:,}; shards to write: {shard_texts}",
            "out": f"{self.options.out}: about {size(work.written_bytes)}",
            # A rename of a shard in a store is a copy and a delete.
            "deleted": f"about {size(work.written_bytes)} of copies, kept and billed by a bucket with soft deletion"
            if storage.is_remote(self.options.out)
            else "",
            "plan": plan_time + f"{size(work.images * cost_estimate.PLAN_BYTES_PER_IMAGE)} of memory, on this machine",
            "compute": f"{duration(work.core_seconds)} of one core",
            "engine": self.engine,
            **self.resources.lines,
        }
        return [f"{name:<10} {text}" for name, text in items.items() if text]

    def to_json(self) -> dict[str, Any]:
        """Returns the estimate as plain JSON values; the names of numbers contain their unit."""
        work = {**vars(self.work), "shards": dict(self.work.shards)}
        return {
            "source": self.options.source,
            "out": self.options.out,
            "engine": self.engine,
            "listing": {name: value for name, value in vars(self.listing).items() if name != "candidates"},
            "sample": dict(vars(self.sample)),
            "work": work,
            "estimate": dict(self.resources.values),
        }

    def _size_remark(self) -> str:
        unknown = self.listing.images - self.listing.sized
        return f" (the sizes of {unknown:,} are estimated from the sample)" if unknown else ""


def estimate(options: IngestOptions, engine: Engine) -> Estimate:
    """Estimates an ingest: reads a few images, and writes nothing.

    Raises:
      UsageError: the ingest cannot run, or its source cannot be read.
    """
    if isinstance(engine, ResourceEstimator):
        engine.check(options)
    check_output(options)
    source = open_source(options, on_cluster=lambda: engine.name != "local")
    hidden = HiddenNames()
    listing = list_source(_entries_to_ingest(source, options, hidden), hidden)
    sample = examine_sample(listing.candidates, _reader(source, options), options)
    work = _work(options, listing, sample, source)
    if isinstance(engine, ResourceEstimator):
        resources = engine.estimate_resources(work)
    else:
        cores = min(options.thread_count, system.cores())
        resources = cost_estimate.estimate_core_resources(work, cores, cost_estimate.LOCAL_START_SECONDS)
    return Estimate(options=options, engine=engine.name, listing=listing, sample=sample, work=work, resources=resources)


def _entries_to_ingest(source: Source, options: IngestOptions, hidden: HiddenNames) -> Iterator[ImageRef | Reject]:
    entries = source.entries(hidden.add)
    if options.append or options.retry_rejects:
        existing = append.load_existing(options, source.label_kind, dataset_options(options))
        return append.new_entries(entries, existing, options.retry_rejects)
    return entries


def _reader(source: Source, options: IngestOptions) -> Reader:
    base = source.base if storage.is_remote(source.base) else os.path.abspath(source.base)
    return Reader(base=base, max_bytes=options.limits.max_bytes, http=options.http)


def _work(options: IngestOptions, listing: Listing, sample: Sample, source: Source) -> Work:
    if not listing.images:
        raise SourceError(f"{options.source} has no image to ingest")
    read_bytes = listing.bytes + int((listing.images - listing.sized) * sample.bytes)
    mean_bytes = read_bytes / listing.images
    megapixels = sample.megapixels or mean_bytes / _BYTES_PER_PIXEL / 1e6
    good_share = 1 - sample.rejected / sample.images if sample.images else 1.0
    good_images = max(1, round(listing.images * good_share))
    written_bytes = int(good_images * (_stored_bytes(options, sample, mean_bytes) + RECORD_OVERHEAD_BYTES))
    is_http = [http_fetch.is_url(ref.uri) for ref in listing.candidates]
    is_remote = storage.is_remote(source.base) or any(storage.is_remote(ref.uri) for ref in listing.candidates)
    requests = 2 * listing.images if is_remote and not all(is_http) else 0  # to examine and to write
    core_seconds = listing.images * cost_estimate.core_seconds(options, megapixels)
    core_seconds += requests * cost_estimate.REQUEST_SECONDS
    return Work(
        images=listing.images,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        buckets=-(-listing.images // options.bucket_images),
        shards=_shard_counts(options, good_images, written_bytes),
        core_seconds=core_seconds,
        requests=requests,
        remote=is_remote or any(is_http),
    )


def _stored_bytes(options: IngestOptions, sample: Sample, mean_bytes: float) -> float:
    """Returns the mean size of a stored image, in bytes; `mean_bytes` is that of a source image."""
    pixels = options.pixels
    if pixels.policy == "raw":
        return 3.0 * pixels.side_px**2
    if not sample.images:
        return mean_bytes if pixels.policy == "copy" else min(mean_bytes, pixels.side_px**2 * _BYTES_PER_PIXEL)
    # The mean size of all files is known, so copied files need only a ratio from the sample.
    return mean_bytes * sample.stored / sample.bytes if pixels.policy == "copy" else sample.stored


def _shard_counts(options: IngestOptions, good_images: int, written_bytes: int) -> Mapping[str, int]:
    counts = {}
    for name, share in options.shares.items():
        records = max(1, round(good_images * share))
        counts[name] = options.shards or shards.shard_count(int(written_bytes * share), records, options.shard_mb * 1e6)
    return counts


def check_output(options: IngestOptions) -> None:
    """Checks the output of an ingest without writing; permission to write to a store cannot be checked.

    Raises:
      OptionError: the output contains other files, or cannot be written or accessed.
    """
    is_addition = options.append or options.retry_rejects
    if is_addition or options.overwrite:
        replace.check_replaceable(options.out)
    if not is_published(options.out):
        check_out(options.source, options.out)
    elif not (is_addition or options.overwrite):
        raise OptionError(occupied_message(options.out))
    if storage.is_remote(options.out):
        _check_store(options.out)
    elif refusal := disk.refusal(options.out):
        advice = refusal.repair or "choose another --out"
        raise OptionError(f"{options.out} cannot be written: {refusal.reason}; {advice}")


def _check_store(out: str) -> None:
    try:
        next(storage.list_objects(out), None)
    except FileNotFoundError as error:
        raise OptionError(f"{out} cannot be written: {error.strerror or error}; choose another --out") from error
    except OSError:  # without permission to list, writing may be permitted
        return
