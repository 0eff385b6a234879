"""Object stores behind the verbs of `storage`: Beam's filesystems, with the clients of S3 and Google Storage kept.

Beam makes a client for every operation: for S3 0.16 s of CPU an image, for Google Storage a new connection. Here they
live on. Both read the environment variables and files that are customary for them, and the options of the pipeline
where it sets any, such as `--s3_endpoint_url`. Whatever a client raises leaves as an `OSError`.
"""

from __future__ import annotations

import errno
from typing import Any, BinaryIO

from apache_beam.io.filesystems import FileSystems
from apache_beam.io.localfilesystem import LocalFileSystem
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import stack
from beam_jobs.storage.object_stores.store import Listed, Store, Stream, os_errors

__all__ = ["Listed", "Store", "create", "open_read", "os_errors", "store_for"]


def store_for(path: str) -> Store:
    """Returns the store that a path lies in; its verbs raise what the client raises, so wrap them in `os_errors`.

    Raises:
      OSError: nothing here can reach such a path, or there are no credentials; the message says what to do.
    """
    scheme = FileSystems.get_scheme(path) or ""
    try:
        if scheme == "s3":
            from beam_jobs.storage.object_stores import s3

            return s3.store(_options())
        if scheme == "gs":
            from beam_jobs.storage.object_stores import gcs

            return gcs.store(_options())
        return Store(FileSystems.get_filesystem(path))
    except ImportError as error:
        extra = "aws" if scheme == "s3" else "gcp"
        remedy = stack.pip_install(f".[{extra}]")
        raise OSError(f"{scheme}:// cannot be reached ({error}); {remedy}") from error
    except ValueError as error:
        what = f"{scheme}:// is no filesystem that is known here; give a local path, s3:// or gs://"
        raise OSError(errno.EINVAL, what) from error


def open_read(path: str) -> BinaryIO:
    """Opens an object for reading bytes; jumps are allowed.

    Raises:
      OSError: it is missing or not readable; reading on raises nothing else either.
    """
    with os_errors(path):
        return Stream(store_for(path).open(path), path).buffered()


def create(path: str) -> BinaryIO:
    """Opens an object for writing bytes; it is there when the stream is closed.

    Raises:
      OSError: it cannot be written; writing on and closing raise nothing else either.
    """
    with os_errors(path):
        return Stream(store_for(path).create(path), path).buffered()


class PipelineOptionsFileSystem(LocalFileSystem):
    """A filesystem without files of its own: Beam gives the options of the pipeline to filesystems, in workers too."""

    def __init__(self, pipeline_options: Any) -> None:
        super().__init__(pipeline_options)
        self.options = pipeline_options

    @classmethod
    def scheme(cls) -> str:
        """Returns a scheme that no path has; Beam finds the class by it."""
        return "feedline-options"


def _options() -> Any:
    options = FileSystems.get_filesystem(f"{PipelineOptionsFileSystem.scheme()}://").options
    if options is None:
        options = PipelineOptions([])  # no pipeline has been made yet; without a list it would read our command line
        FileSystems.set_options(options)
    return options
