from __future__ import annotations

import subprocess
import sys

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
    run = subprocess.run([sys.executable, "-c", CODE.format(call=call)], capture_output=True, text=True, check=True)
    return int(run.stdout)


def test_freed_buffers_are_kept_for_the_next_ones():
    # `bytearray` takes zeroed memory; what comes from the pool is zeroed in place, without a fault.
    assert faults(call=True) < PAGES
    assert faults(call=False) > 10 * PAGES
