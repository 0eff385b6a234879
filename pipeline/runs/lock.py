"""One run at a time in a root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from beam_jobs.errors import OptionError
from beam_jobs.storage import lock

LOCK_NAME = ".lock"


@contextlib.contextmanager
def locked(root: str) -> Iterator[None]:
    """Keeps other runs away from a root while the block runs.

    Raises:
      OptionError: another run uses it, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.locked(os.path.join(root, LOCK_NAME)))
        except lock.Locked as error:
            raise OptionError(
                f"root {root} is in use by another run: {error}; wait for its end, or choose another root"
            ) from None
        except OSError as error:
            raise OptionError(f"root {root} cannot be written: {error.strerror}; choose another --root") from error
        yield


def check_free(root: str) -> None:
    """Raises `OptionError` when another run uses a root. It may be taken a moment later; `locked` tells for sure."""
    if os.path.isfile(os.path.join(root, LOCK_NAME)):
        with locked(root):
            pass
