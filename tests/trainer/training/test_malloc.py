from __future__ import annotations

from tests.command import python

CODE = """
import resource
from trainer.training.malloc import keep_buffers

if {call}:
    assert keep_buffers()
for turn in range(40):
    buffers = [bytearray(20 << 20) for _ in range(6)]  # more than glibc keeps by itself
    if turn == 9:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 6 * (20 << 20) // 4096  # of one turn


def faults(call: bool) -> int:
    return int(python(CODE.format(call=call), check=True).stdout)


def test_freed_buffers_are_kept_for_the_next_ones():
    # `bytearray` takes zeroed memory; what comes from the pool is zeroed in place, without a fault.
    assert faults(call=True) < PAGES
    assert faults(call=False) > 10 * PAGES
