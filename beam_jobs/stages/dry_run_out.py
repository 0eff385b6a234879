"""Whether a dataset could be written where it should go, found out without writing any of it."""

from __future__ import annotations

from beam_jobs import storage
from beam_jobs.dataset import manifest
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.stages import generations
from beam_jobs.stages.publish import taken
from beam_jobs.stages.work_dir import check_out
from beam_jobs.storage import writable


def check(options: IngestOptions) -> None:
    """Checks the output of an ingest as far as can be seen. Whether a store lets us write, only writing tells.

    Raises:
      OptionError: it holds something, cannot be written or cannot be looked at.
    """
    adding = options.append or options.retry_rejects
    if adding or options.overwrite:
        generations.check(options.out)
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
    if refused := writable.refusal(out):
        raise OptionError(f"{out} cannot be written: {refused.reason}; {refused.repair or 'choose another --out'}")
