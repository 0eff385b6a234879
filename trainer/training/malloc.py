"""Settings of the memory allocator of the C library, by which it reuses the freed buffers of an input pipeline.

Every batch frees and allocates tens of megabytes. By default glibc returns this memory to the system and requests it
again; the page faults take as long as reading stored pixels. It also has up to eight memory pools per core, so that a
process uses several times the size of its buffers. See `mallopt(3)`.
"""

from __future__ import annotations

import ctypes
import sys

from beam_jobs.common.system import cores

# Parameter numbers of `mallopt`, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_POOLED_BYTES = 32 << 20  # larger buffers are not reused; the largest value that glibc accepts on 64 bits
_TRIM_BYTES = 1 << 30  # free memory at the end of the heap that glibc does not return to the system


def keep_buffers() -> bool:
    """Makes the allocator of this process reuse freed buffers; call it once, before TensorFlow starts its threads.

    Returns:
      whether the C library accepted all options; False if it is not glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((_ARENA_MAX, cores()), (_MMAP_THRESHOLD, _LARGEST_POOLED_BYTES), (_TRIM_THRESHOLD, _TRIM_BYTES))
    statuses = [mallopt(option, value) for option, value in options]  # 1 for success, else 0
    return all(statuses)
