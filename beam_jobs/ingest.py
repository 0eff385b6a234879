"""The ingest: scan, examine, plan, write, publish.

Two Beam jobs examine and write the images; between them, this process plans the shards. The stages exchange files in
`OUT/_work`, so a killed stage can run again, on any runner: finished work is identified by the digest of its inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs import storage
from beam_jobs.common.strings import WARNING, plural, size
from beam_jobs.common.system import Progress, Watch, no_watch, worker_threads
from beam_jobs.dataset import lookup, manifest, remarks, schemas
from beam_jobs.dataset.manifest import Manifest, Remarks
from beam_jobs.errors import Fault, FeedlineError, OptionError, SourceChanged, TooManyRejects
from beam_jobs.options import About, IngestOptions
from beam_jobs.planning.plan import NO_IMAGES, ExistingImages, Plan, make_plan
from beam_jobs.rejects import Reject
from beam_jobs.runners.beam_job import JobFile, MakePipeline, ServicePipelines, local_pipeline, run_job, runs_on_cluster
from beam_jobs.sources.base import HiddenNames
from beam_jobs.sources.factory import Source, open_source
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages import append, examine, reject_table, replace, resume, work_dir, write, writers
from beam_jobs.stages.append import ExistingDataset
from beam_jobs.stages.examine import ExamineTask, facts_path, rejects_path
from beam_jobs.stages.publish import RunProperties, check_unpublished, dataset_options, producer, publish
from beam_jobs.stages.scan import Bucket, Scan, scan
from beam_jobs.stages.transforms import ExamineBuckets, WriteShards, tally_running_job
from beam_jobs.stages.write import (
    Failure,
    ShardTask,
    WriteTask,
    is_written,
    read_failures,
    remove_failure_notes,
    shard_tasks,
    unit_name,
)
from beam_jobs.storage import disk
from beam_jobs.storage.lock import InUse
from beam_jobs.types import ImageRef

_LISTED_REJECTS = 3
_NAME_CHARACTERS = 300  # longest name in a message; a cell of a table may have a megabyte
_POLL_S = 2.0  # between attempts to lock an output that another process with the same command writes

Report = Callable[[str], None]


def run(
    options: IngestOptions,
    make_pipeline: MakePipeline = local_pipeline,
    report: Report | None = None,
    work: str = "",
    watch: Watch = no_watch,
    leave: Callable[[str], bool] | None = None,
) -> Manifest:
    """Ingests a source of images into a published dataset.

    Equal inputs and options give byte-identical shards on any runner and with any number of threads. If a run is
    killed, the next run reuses its finished work.

    Examples:
      >>> from beam_jobs import IngestOptions, run
      >>> manifest = run(IngestOptions(source="photos", out="published"))
      >>> manifest.counts.found, manifest.counts.written, dict(manifest.counts.rejects)
      (49, 48, {'not_an_image': 1})

    Args:
      options: options of the ingest.
      make_pipeline: creates the Beam pipelines of both jobs.
      report: called with one line of text for each finished stage.
      work: directory of the files that the stages exchange, on the filesystem of `out`; `OUT/_work` when empty.
      watch: shows the progress of both jobs.
      leave: called after Ctrl-C with a text that names a job on a service; returns whether the job continues there, so
        that the next run with the same options can follow it. None cancels the job.

    Returns:
      manifest of the published dataset.

    Raises:
      UsageError: the source or output cannot be used; nothing was written.
      DataError: the images failed a check; nothing was published.
      DiskError: the disk of the output is full, read-only or missing; nothing was published.
    """
    report = report or (lambda _: None)
    source = open_source(options, on_cluster=functools.partial(runs_on_cluster, make_pipeline))
    if not storage.is_remote(options.out):
        options = dataclasses.replace(options, out=os.path.abspath(options.out))  # for workers in other directories
    if work and not storage.is_remote(work):
        work = os.path.abspath(work)

    def build(out: str) -> Manifest:
        """Runs the ingest into `out`: the output, or a temporary directory that replaces an existing dataset."""
        path = work or storage.join(out, work_dir.DIRECTORY)
        build_options, file = dataclasses.replace(options, out=out), _job_file(options, path, leave)
        return _Ingest(source, build_options, path, make_pipeline, report, watch, existing, check_lock, file).run()

    _check_before_writing(options)
    job_file = _job_file(options, work or storage.join(options.out, work_dir.DIRECTORY), leave, beside=True)
    # If `work` is given, several runs of a pipeline share that directory, and each run writes a different output.
    with _locked(work or options.out, options.out, job_file, make_pipeline, watch, report) as (check_lock, published):
        if published:
            return published
        replace.recover(options.out)
        existing = None
        if options.append or options.retry_rejects:
            existing = append.load_existing(options, source.label_kind, dataset_options(options))
            if options.about == About():
                options = dataclasses.replace(options, about=existing.about)
            if not any(True for _ in append.new_entries(source.entries(), existing, options.retry_rejects)):
                report(f"nothing to add: {options.out} already lists every image of {options.source}")
                if options.about != existing.about:
                    report("the description was not changed, because it is stored only together with new images")
                return existing.manifest
        if not (options.overwrite or existing):
            return build(options.out)
        with disk.explain_errors("replacing the dataset", options.out):
            return replace.replace_dataset(options.out, build)


def _job_file(options: IngestOptions, work: str, leave: Callable[[str], bool] | None, beside: bool = False) -> JobFile:
    """Returns the file of the running job; `beside`: another process has started the job and may still run."""
    command = [options.digest(), options.source, options.append, options.overwrite, options.retry_rejects]
    return JobFile(
        path=storage.join(work, work_dir.JOB_NAME),
        command=json.dumps(command),
        leave=leave,
        tally=functools.partial(tally_running_job, work),
        is_starter_running=beside,
    )


@contextlib.contextmanager
def _locked(
    path: str, out: str, job_file: JobFile, make_pipeline: MakePipeline, watch: Watch, report: Report
) -> Iterator[tuple[Callable[[], None], Manifest | None]]:
    """Locks a directory. If a process with the same command has the lock and runs jobs on a service, waits for its end.

    Args:
      path: directory to lock: the output, or the work directory.
      out: directory of the dataset.
      job_file: file with the address of the job of the other process.
      make_pipeline: finds that job on its service.
      watch: shows the progress of that job.
      report: called with lines of text.

    Yields:
      the check that `work_dir.exclusive` yields, and the manifest that the other process published meanwhile, or None.

    Raises:
      OptionError: another ingest has the lock, or the store cannot be written.
    """
    command, earlier_manifest, has_waited = json.dumps([job_file.command, out]), None, False
    while True:
        with contextlib.ExitStack() as stack:
            try:
                check_lock = stack.enter_context(work_dir.exclusive(path, None if has_waited else report, command))
            except InUse as error:
                if error.command != command or not isinstance(make_pipeline, ServicePipelines):
                    raise
                if not has_waited:
                    report(f"waiting   for another process with the same command: {error}")
                    earlier_manifest, has_waited = _load_published(out), True
                with contextlib.suppress(FeedlineError):  # the service may answer the next request
                    job_file.follow(make_pipeline, watch, report)
                time.sleep(_POLL_S)
                continue
            published = _load_published(out) if has_waited else None
            yield check_lock, published if published != earlier_manifest else None
            return


def _load_published(out: str) -> Manifest | None:
    return manifest.load(out) if work_dir.is_published(out) else None


def _check_before_writing(options: IngestOptions) -> None:
    """Raises `OptionError` for unusable directories, before the lock of the output is written."""
    if options.spill_dir and not os.path.isdir(options.spill_dir):
        raise OptionError(f"spill_dir is {options.spill_dir!r}, which is not a directory on this machine; create it")
    if options.spill_dir and (refusal := disk.refusal(options.spill_dir)):
        raise OptionError(f"spill_dir is {options.spill_dir!r}: {refusal.reason}; give another directory")
    if options.append or options.retry_rejects or options.overwrite:
        replace.check_replaceable(options.out)
        if not options.overwrite:
            append.check_published(options)
    # An existing dataset is refused after locking, which also removes the lock of a run killed after publishing.
    elif not work_dir.is_published(options.out):
        work_dir.check_out(options.source, options.out)


@dataclass(frozen=True)
class _Ingest:
    """One ingest into one directory, with one method per stage."""

    source: Source
    options: IngestOptions
    work: str
    make_pipeline: MakePipeline
    report: Report
    watch: Watch
    existing: ExistingDataset | None
    check_lock: Callable[[], None]
    job_file: JobFile

    def run(self) -> Manifest:
        work_dir.check_out(self.options.source, self.options.out)
        self.job_file.follow(self.make_pipeline, self._watch_stage, self.report)
        try:
            return self._run()
        except Exception:
            work_dir.restore_marker(self.options.out, self.work)
            raise

    def _run(self) -> Manifest:
        # The salt contains the columns, because facts of an earlier release may lack some of them.
        salt = f"{self.options.digest()} {sorted(producer().items())} {schemas.EXAMINED.names}"
        hidden = HiddenNames()
        with self._stage("scanning"):
            listing = self._scan(salt, hidden)
        needed_bytes = work_dir.min_bytes_to_examine(self.options, listing, self.work)
        disk.check_room(self.options.out, needed_bytes, "the dataset")
        with self._stage("examining", lambda: work_dir.min_bytes_to_examine(self.options, listing, self.work)):
            good_images = self._examine(listing)
        existing, existing_images = self.existing, self.existing.manifest.counts.written if self.existing else 0
        if existing and not good_images:
            self.report("nothing to add: every image was rejected; the dataset is unchanged")
            storage.remove_tree(self.options.out)
            return existing.manifest
        writers.start(good_images, self._writing_threads)
        with self._stage("planning"), work_dir.progress_file(self.work, "planning", Progress(good_images)):
            paths = [facts_path(self.work, bucket) for bucket in listing.buckets]
            retried_keys = self._retried_keys(paths)
            options = self.options.resolve(good_images + existing_images)
            plan = make_plan(
                paths,
                options,
                storage.join(self.work, "plan"),
                self.source.label_kind,
                ExistingImages(existing.images, existing.manifest.labels) if existing else NO_IMAGES,
                self._spill,
                functools.partial(self._add_rejects, listing.found),
            )
        plan_remarks = remarks.collect_remarks(plan, self.source, self.options, hidden, existing_images)
        self._report_plan(plan, plan_remarks)
        shard_counts = existing.shard_counts() if existing else None
        tasks = shard_tasks(plan, f"{salt} {manifest.FORMAT_VERSION}", shard_counts)
        disk.check_room(self.options.out, work_dir.bytes_to_write(self.options, plan), "the shards")
        with self._stage("writing", lambda: max(work_dir.BLOCK_BYTES, work_dir.bytes_to_write(self.options, plan))):
            self._write(plan, tasks, listing.buckets)
        run_properties = RunProperties(
            images=listing.found,
            label_kind=self.source.label_kind,
            work=self.work,
            spill=self._spill,
            existing=existing,
            keys=retried_keys,
            remarks=plan_remarks,
        )
        published_work = Progress(sum(split.images for split in plan.splits))
        with self._stage("publishing"), work_dir.progress_file(self.work, "publishing", published_work):
            rejects = schemas.read_groups(self._rejects_path)
            result = publish(options, plan, tasks, rejects, run_properties)
        work_dir.remove(self.work)
        return result

    @contextlib.contextmanager
    def _stage(self, activity: str, needed: Callable[[], int] = lambda: 0) -> Iterator[None]:
        with disk.explain_errors(activity, self.options.out, self.work, needed=needed):
            self.check_lock()
            yield

    @contextlib.contextmanager
    def _watch_stage(self, stage: str, total: Progress, read: Callable[[], Progress]) -> Iterator[None]:
        starting = Progress(note="starting decoders" if stage == "examining" else "starting")

        def read_or_start() -> Progress:
            progress = read()
            return progress if progress.images else starting

        with work_dir.progress_file(self.work, stage, total, read), self.watch(stage, total, read_or_start):
            yield

    def _entries(self, hidden: HiddenNames) -> Iterator[ImageRef | Reject]:
        entries = self.source.entries(hidden.add)
        if not self.existing:
            return entries
        return append.new_entries(entries, self.existing, self.options.retry_rejects)

    def _retried_keys(self, facts_paths: list[str]) -> np.ndarray:
        """Returns the digests of the keys of rejects that this run examined again; without retries an empty array."""
        is_retry = self.options.retry_rejects
        facts = (schemas.read(path, ["key"]) for path in facts_paths)
        tables = itertools.chain(schemas.read_groups(self._rejects_path), facts) if is_retry else ()
        return append.key_digests(tables)

    @property
    def _rejects_path(self) -> str:
        return storage.join(self.work, manifest.REJECTS_NAME)

    @property
    def _spill(self) -> str:
        return self.options.spill_dir or ("" if storage.is_remote(self.work) else self.work)

    def _write_rejects(self, tables: Iterable[pa.Table]) -> dict[str, int]:
        return reject_table.write_sorted(self._rejects_path, tables, spill=self._spill)

    def _add_rejects(self, images: int, path: str) -> None:
        """Adds the rejects of the plan to the table of rejects, and checks its ratio to `images` again."""
        tables = itertools.chain(schemas.read_groups(path), schemas.read_groups(self._rejects_path))
        self._check_rejects(self._write_rejects(tables), images)

    def _report_plan(self, plan: Plan, plan_remarks: Remarks) -> None:
        if self.options.duplicates == "report":
            for keys in plan.duplicate_sets:
                self.report(f"copies    {', '.join(keys)}")
        for warning in plan_remarks.warnings:
            self.report(f"{WARNING}{warning}")
        if plan.leaks:
            self.report(f"{WARNING}{lookup.leak_sentence(plan.leaks)}")

    @property
    def _reader(self) -> Reader:
        base = self.source.base if storage.is_remote(self.source.base) else os.path.abspath(self.source.base)
        http = self.options.http
        if isinstance(self.make_pipeline, ServicePipelines):  # each process has its own limit
            http = dataclasses.replace(http, per_host=max(1, http.per_host // self.make_pipeline.processes))
        return Reader(base=base, max_bytes=self.options.limits.max_bytes, work=self.work, http=http)

    @property
    def _writing_threads(self) -> int:
        """Number of threads that write local shards; 0 if a service writes the shards, or they are in a store."""
        is_local = not (storage.is_remote(self.options.out) or isinstance(self.make_pipeline, ServicePipelines))
        return worker_threads(self.options.threads) if is_local else 0

    def _scan(self, salt: str, hidden: HiddenNames) -> Scan:
        started = time.monotonic()
        refs = storage.join(self.work, "refs")
        options = self.options
        work_dir.create(options.out, self.work)
        try:
            with work_dir.progress_file(self.work, "scanning", Progress()):
                listing = scan(self._entries(hidden), refs, options.bucket_images, options.splits, salt)
        except Exception:
            work_dir.remove_scan(refs)
            raise
        examine.sweep(self.work)
        self.report(f"scanned   {plural(listing.found, 'image')}, {size(listing.bytes)} {_duration(started)}")
        return listing

    def _examine(self, listing: Scan) -> int:
        """Examines the images, and returns the number of good images."""
        started = time.monotonic()
        task = ExamineTask(
            reader=self._reader,
            limits=self.options.limits,
            pixels=self.options.pixels,
            facts=self.options.facts,
            threads=self.options.threads,
            seed=self.options.seed,
        )
        self._examine_in_passes(listing, task)
        good = sum(examine.count_good(self.work, bucket) for bucket in listing.buckets)
        paths = itertools.chain(listing.reject_files, (rejects_path(self.work, bucket) for bucket in listing.buckets))
        reasons = self._write_rejects(map(schemas.read, paths))
        self.report(f"examined  {good:,} good, {sum(reasons.values()):,} rejected {_duration(started, good)}")
        try:
            self._check_rejects(reasons, listing.found)
        except TooManyRejects:
            for bucket in listing.buckets:
                examine.invalidate_transient(self.work, bucket)
            raise
        return good

    def _examine_in_passes(self, listing: Scan, task: ExamineTask) -> None:
        fault_dir = storage.join(self.work, examine.UNREAD)
        reject_unreadable = self.options.unreadable == "reject"
        old_faults = resume.read_fault_notes(fault_dir)  # of an earlier run that rejected unreadable images
        for bucket in listing.buckets:
            if bucket.name in old_faults:
                examine.invalidate(self.work, bucket)

        def run_pass(buckets: Sequence[Bucket], is_last: bool) -> None:
            self.check_lock()
            storage.remove_tree(fault_dir)
            total = Progress(listing.found - listing.reject_count, listing.bytes)
            if len(buckets) < len(listing.buckets):
                total = _total(bucket.path for bucket in buckets)
            pass_task = dataclasses.replace(task, reject_unreadable=reject_unreadable and is_last)
            transform = ExamineBuckets(self._write_units(buckets), pass_task, buckets)
            run_job("examining", total, transform, self.make_pipeline, self._watch_stage, self.job_file)

        def select_failed(buckets: Sequence[Bucket]) -> list[Bucket]:
            faults = resume.read_fault_notes(fault_dir)
            faulty_buckets = (bucket for bucket in buckets if bucket.name in faults)
            return [bucket for bucket in faulty_buckets if not examine.is_finished(self.work, bucket)]

        if failed_buckets := resume.run_passes(listing.buckets, run_pass, select_failed, self.report):
            faults_by_bucket = resume.read_fault_notes(fault_dir)
            faults = [fault for bucket in failed_buckets for fault in faults_by_bucket[bucket.name]]
            raise resume.unfinished_error(faults, "" if reject_unreadable else ", or give --unreadable reject")

    def _write_units(self, units: Iterable[Any]) -> str:
        return resume.write_units(storage.join(self.work, "units"), units)

    def _check_rejects(self, reasons: Mapping[str, int], images: int) -> None:
        rejected, allowed = sum(reasons.values()), self.options.max_reject_ratio
        if self.options.retry_rejects or (rejected <= allowed * images and rejected < images):
            return
        reason_counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        examples = "; ".join(
            f"{row['uri'][:_NAME_CHARACTERS]}: {row['reason']} ({row['detail']})"
            for row in reject_table.first_rows(self._rejects_path, _LISTED_REJECTS)
        )
        noun = "new images" if self.existing else "images"
        remedy = "remove them, or raise --max-reject-ratio"
        if rejected == images:
            remedy = "replace them: a dataset needs at least one good image"
        raise TooManyRejects(
            f"{rejected} of {images} {noun} are bad ({rejected / images:.1%}), max_reject_ratio is {allowed:.1%}: "
            f"{reason_counts}. First: {examples}. All bad images are listed in {self._rejects_path}. Repair or {remedy}"
        )

    def _write(self, plan: Plan, tasks: list[ShardTask], buckets: Sequence[Bucket]) -> None:
        started = time.monotonic()
        check_unpublished(self.options.out)
        write.sweep(self.work, tasks)
        task = WriteTask(
            reader=self._reader,
            out=self.options.out,
            label_kind=self.source.label_kind,
            labels=plan.labels,
            pixels=self.options.pixels,
            channel_statistics=self.options.facts == "all",
            threads=self.options.threads,
            seed=self.options.seed,
        )
        images = sum(split.images for split in plan.splits)
        task = dataclasses.replace(task, processes=writers.process_count(task, images, tasks, self._writing_threads))
        if failures := self._write_in_passes(tasks, task):
            changed = [failure for failure in failures if not failure.passing]
            if changed or self.options.unreadable == "reject":
                # The facts of a changed image describe an earlier file, even if size and time are equal. An image that
                # became unreadable must be rejected before the next plan.
                self._invalidate_buckets(buckets, {failure.key for failure in changed or failures})
            if changed:
                more_text = f" (and {len(changed) - 1} more shards)" if len(changed) > 1 else ""
                raise SourceChanged(changed[0].text + more_text)
            raise resume.unfinished_error([Fault(failure.key, failure.text) for failure in failures], "")
        time_text = _duration(started, images)
        self.report(f"wrote     {plural(images, 'record')} in {plural(len(tasks), 'shard')} {time_text}")

    def _write_in_passes(self, tasks: list[ShardTask], task: WriteTask) -> list[Failure]:
        def run_pass(shards: Sequence[ShardTask], _: bool) -> None:
            self.check_lock()
            remove_failure_notes(self.work)
            total = sum(shard.rows.images for shard in shards)
            transform = WriteShards(self._write_units(shards), task, shards)
            run_job("writing", Progress(total), transform, self.make_pipeline, self._watch_stage, self.job_file)

        def select_failed(shards: Sequence[ShardTask]) -> list[ShardTask]:
            is_passing = {failure.unit: failure.passing for failure in read_failures(self.work)}
            if not all(is_passing.values()):
                return []  # another pass cannot help, so nothing can be published
            return [shard for shard in shards if unit_name(shard) in is_passing and not is_written(shard, task)]

        unwritten = {unit_name(shard) for shard in resume.run_passes(tasks, run_pass, select_failed, self.report)}
        return [failure for failure in read_failures(self.work) if not failure.passing or failure.unit in unwritten]

    def _invalidate_buckets(self, buckets: Sequence[Bucket], keys: set[str]) -> None:
        """Marks the buckets that contain images with these keys, so that the next run examines them again."""
        for bucket in buckets:
            if keys.intersection(schemas.read(bucket.path)["key"].to_pylist()):
                examine.invalidate(self.work, bucket)


def _total(paths: Iterable[str]) -> Progress:
    """Returns the number of images in tables of a scan, and the sum of their sizes in bytes."""
    sizes = [schemas.read(path)["bytes"].to_pylist() for path in paths]
    return Progress(sum(map(len, sizes)), sum(map(sum, sizes)))


def _duration(started: float, images: int = 0) -> str:
    seconds = max(time.monotonic() - started, 1e-9)
    return f"in {seconds:.1f} s" + (f" ({images / seconds:,.0f} images/s)" if images else "")
