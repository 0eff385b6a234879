from __future__ import annotations

import signal
import subprocess
import sys

CODE = """
import os, signal
from pipeline import interrupt
interrupt.check()
interrupt.install()
try:
    os.kill(os.getpid(), signal.{name})
except KeyboardInterrupt:
    print("struck")
try:
    interrupt.check()
except KeyboardInterrupt:
    print("remembered")
interrupt.install()
interrupt.check()
print("forgotten")
"""


def test_a_signal_strikes_and_is_remembered_until_the_next_start():
    for name in (signal.SIGINT.name, signal.SIGTERM.name):
        run = subprocess.run([sys.executable, "-c", CODE.format(name=name)], capture_output=True, text=True)
        assert run.stdout.split() == ["struck", "remembered", "forgotten"], run.stderr
