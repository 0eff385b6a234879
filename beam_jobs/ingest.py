"""The whole ingest: scan, examine, plan, write, publish.

Two Beam jobs with a plan between them. What passes between the stages lies in files under `OUT/_work`, so any stage
can be killed and run again, on any runner: finished buckets and shards are recognised by the digest of their inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import generations, manifest, shards, storage, tables
from beam_jobs.errors import FeedlineError, OptionError, SourceChanged, TooManyRejects
from beam_jobs.examine import ExamineTask, facts_path, rejects_path
from beam_jobs.manifest import Manifest
from beam_jobs.options import LOCAL_BEAM_ARGS, IngestOptions
from beam_jobs.plan import Plan, make_plan
from beam_jobs.publish import producer, publish, reason_counts, rejects_table
from beam_jobs.scan import Scan, scan
from beam_jobs.sources import Source, open_source
from beam_jobs.transforms import ExamineBuckets, WriteShards
from beam_jobs.write import ShardTask, WriteTask, failures, shard_tasks

WORK_DIR = "_work"
_MARKER_NAME = "feedline.json"  # in the work directory: without it, a directory of that name is somebody else's
_SHOWN_REJECTS = 3

MakePipeline = Callable[[], beam.Pipeline]
Report = Callable[[str], None]


def local_pipeline() -> beam.Pipeline:
    """Returns a pipeline on Beam's in-process runner."""
    return beam.Pipeline(options=PipelineOptions(list(LOCAL_BEAM_ARGS)))


def run(
    options: IngestOptions,
    make_pipeline: MakePipeline = local_pipeline,
    report: Report | None = None,
    work: str = "",
) -> Manifest:
    """Ingests a source of images into a published dataset.

    Equal inputs and options give byte-identical shards on any runner and with any number of threads. Killed half way,
    it continues where it was when run again.

    Example:
      manifest = run(IngestOptions(source="photos", out="dataset"))

    Args:
      options: what to ingest and how.
      make_pipeline: makes the Beam pipelines of the two jobs.
      report: takes one line of text a finished stage.
      work: directory of what passes between the stages, on the filesystem of `out`; `OUT/_work` when empty.

    Returns:
      the manifest of the published dataset.

    Raises:
      UsageError: the source or output cannot be used; nothing was written.
      DataError: the images failed a check; nothing was published.
    """
    say = report or _silent
    source = open_source(options)
    if not storage.is_remote(options.out):
        options = dataclasses.replace(options, out=os.path.abspath(options.out))  # workers may start elsewhere

    def build(out: str) -> Manifest:
        there = dataclasses.replace(options, out=out)
        return _build(source, there, work or storage.join(out, WORK_DIR), make_pipeline, say)

    return generations.replace_dataset(options.out, build) if options.overwrite else build(options.out)


def _build(source: Source, options: IngestOptions, work: str, make_pipeline: MakePipeline, say: Report) -> Manifest:
    _check_out(options)
    salt = f"{options.digest()} {sorted(producer().items())}"
    found = _scan(source, options, work, salt, say)
    facts, rejects = _examine(source, found, options, work, make_pipeline, say)
    plan = make_plan(facts, options)
    rejects = rejects_table(rejects, plan.rejects)
    _check_rejects(rejects, found.found, options, work)
    tasks = shard_tasks(plan, storage.join(work, "plan"), salt)
    _write(source, plan, tasks, options, work, make_pipeline, say)
    result = publish(options, plan, tasks, rejects, found.found, work)
    storage.remove_tree(work)
    return result


def _silent(line: str) -> None:
    """Takes the progress nobody asked for."""


def _check_out(options: IngestOptions) -> None:
    out = options.out
    if manifest.is_published(out):
        raise OptionError(f"{out} already holds a dataset; choose another --out, or replace it with --overwrite")
    if storage.is_remote(out):
        return
    source, target = os.path.realpath(options.source), os.path.realpath(out)
    if os.path.isdir(source) and os.path.commonpath([source, target]) == source:
        raise OptionError(f"{out} lies inside the source {options.source}; the next run would take it for images")
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        raise OptionError(f"{out} is a file; --out must be a new or empty directory")
    foreign = sorted(name for name in os.listdir(out) if not _is_ours(name))
    if foreign or (os.listdir(out) and not os.path.isfile(os.path.join(out, WORK_DIR, _MARKER_NAME))):
        held = f"holds {foreign[0]!r}" if foreign else "is not empty"
        raise OptionError(f"{out} {held} and is not the rest of an earlier ingest; choose another --out")


def _is_ours(name: str) -> bool:
    return name in (WORK_DIR, *manifest.TABLE_NAMES) or name.startswith(shards.SPLIT_PREFIX)


def _scan(source: Source, options: IngestOptions, work: str, salt: str, say: Report) -> Scan:
    started = time.monotonic()
    refs = storage.join(work, "refs")
    try:
        storage.write_bytes(storage.join(work, _MARKER_NAME), b'{"made_by": "feedline ingest"}')
    except OSError as error:
        raise OptionError(
            f"{options.out} cannot be written: {error.strerror or error}; choose another --out"
        ) from error
    try:
        found = scan(source.entries(), refs, options.bucket_images, options.splits, salt)
    except Exception:
        _take_back(refs)
        raise
    say(f"scanned   {found.found:,} files, {found.bytes / 1e6:,.1f} MB {_took(started)}")
    return found


def _take_back(refs: str) -> None:
    """Removes what a scan wrote before its source turned out to be wrong; the rest of an earlier ingest stays."""
    storage.remove_tree(refs)
    if storage.is_remote(refs):
        return
    work = os.path.dirname(refs)
    if os.listdir(work) == [_MARKER_NAME]:
        storage.remove_tree(work)
        with contextlib.suppress(OSError):  # it holds something else
            os.rmdir(os.path.dirname(work))


def _examine(
    source: Source, found: Scan, options: IngestOptions, work: str, make_pipeline: MakePipeline, say: Report
) -> tuple[pa.Table, pa.Table]:
    started = time.monotonic()
    task = ExamineTask(
        base=os.path.abspath(source.base),
        directory=storage.join(work, "examined"),
        limits=options.limits,
        threads=options.thread_count,
    )
    with _beam_errors("examining"), make_pipeline() as pipeline:
        pipeline | "ExamineBuckets" >> ExamineBuckets(found.buckets, task)
    facts = tables.concat((facts_path(task.directory, bucket) for bucket in found.buckets), tables.EXAMINED)
    stored = tables.concat((rejects_path(task.directory, bucket) for bucket in found.buckets), tables.REJECTS)
    rejects = rejects_table(stored, found.rejects)
    say(f"examined  {len(facts):,} good, {len(rejects):,} rejected {_took(started, len(facts))}")
    _check_rejects(rejects, found.found, options, work)
    return facts, rejects


def _check_rejects(rejects: pa.Table, found: int, options: IngestOptions, work: str) -> None:
    rejected = len(rejects)
    if rejected <= options.max_reject_ratio * found and rejected < found:
        return
    reasons = ", ".join(f"{count} {reason}" for reason, count in reason_counts(rejects).items())
    first = "; ".join(
        f"{row['uri']}: {row['reason']} ({row['detail']})" for row in rejects.slice(0, _SHOWN_REJECTS).to_pylist()
    )
    listed = storage.join(work, manifest.REJECTS_NAME)
    tables.write_table(listed, rejects)
    raise TooManyRejects(
        f"{rejected} of {found} images are bad ({rejected / found:.1%}), max_reject_ratio is "
        f"{options.max_reject_ratio:.1%}: {reasons}. First: {first}. All of them are in {listed}. "
        "Repair or remove them, or raise --max-reject-ratio"
    )


def _write(
    source: Source,
    plan: Plan,
    tasks: list[ShardTask],
    options: IngestOptions,
    work: str,
    make_pipeline: MakePipeline,
    say: Report,
) -> None:
    started = time.monotonic()
    storage.remove_tree(storage.join(work, "failed"))
    task = WriteTask(
        base=os.path.abspath(source.base),
        out=options.out,
        work=work,
        max_bytes=options.limits.max_bytes,
        threads=options.thread_count,
    )
    with _beam_errors("writing"), make_pipeline() as pipeline:
        pipeline | "WriteShards" >> WriteShards(tuple(tasks), task)
    if notes := failures(work):
        # The facts are those of another file, and size and time need not tell: they must not be taken up again.
        storage.remove_tree(storage.join(work, "examined"))
        more = f" (and {len(notes) - 1} more shards)" if len(notes) > 1 else ""
        raise SourceChanged(notes[0] + more)
    images = sum(len(split.images) for split in plan.splits)
    say(f"wrote     {images:,} records in {len(tasks)} shards {_took(started, images)}")


def _took(started: float, images: int = 0) -> str:
    seconds = max(time.monotonic() - started, 1e-9)
    return f"in {seconds:.1f} s" + (f" ({images / seconds:,.0f} images/s)" if images else "")


@contextlib.contextmanager
def _beam_errors(doing: str) -> Iterator[None]:
    """Turns whatever a runner raises into one line; the runner's own text is kept as the cause."""
    try:
        yield
    except FeedlineError:
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        lines = [line for line in str(error).splitlines() if line.strip()]
        last = lines[-1].strip() if lines else type(error).__name__
        raise FeedlineError(f"{doing} failed: {last}; what was finished is kept, run the same command again") from error


def _was_interrupted(error: BaseException | None) -> bool:
    # The in-process runner works in the main thread and wraps what it meets there, Ctrl-C included.
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
