"""Settings of the C library for an input pipeline: the allocator reuses freed buffers.

Every batch frees and allocates tens of megabytes. By default glibc returns them to the system and requests them again,
at a cost in page faults like that of reading stored pixels. It also has up to eight memory pools per core, so that a
process occupies a multiple of the size of its buffers. See `mallopt(3)`.
"""

from __future__ import annotations

import ctypes
import sys

from beam_jobs.common.system import cores

# Numbers of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_POOLED_BYTES = 32 << 20  # the most that glibc takes on 64 bits
_TRIM_BYTES = 1 << 30


def keep_buffers() -> bool:
    """Sets the options of the allocator of this process; call it once, before TensorFlow starts its threads.

    Returns:
      whether the C library accepted all options; False for other libraries than glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((_ARENA_MAX, cores()), (_MMAP_THRESHOLD, _LARGEST_POOLED_BYTES), (_TRIM_THRESHOLD, _TRIM_BYTES))
    accepted = [mallopt(option, value) for option, value in options]
    return all(accepted)
