"""Settings of the C library that suit an input pipeline: freed buffers are kept for the next ones.

Every batch frees and takes tens of megabytes. By default glibc gives them back to the system and asks for them again,
and the page faults of that cost as much as reading stored pixels; and it keeps up to eight pools of freed memory a
core, so that a process holds a multiple of what its buffers hold. See `mallopt(3)`.
"""

from __future__ import annotations

import ctypes
import sys

from beam_jobs.common.system import cores

# Numbers of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_POOLED_BYTES = 32 << 20  # the most that glibc takes on 64 bits
_KEPT_BYTES = 1 << 30


def keep_buffers() -> bool:
    """Sets the allocator of this process; call it once, before TensorFlow starts its threads.

    Returns:
      whether the C library took all of it. Other libraries than glibc are left alone.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (_ARENA_MAX, cores()),
        (_MMAP_THRESHOLD, _LARGEST_POOLED_BYTES),
        (_TRIM_THRESHOLD, _KEPT_BYTES),
    )
    taken = [mallopt(name, value) for name, value in wanted]
    return all(taken)
