from __future__ import annotations

import signal

import pytest

from tests.command import python

CODE = """
import os, signal
from pipeline.runs import signals
signals.check()
signals.install()
try:
    os.kill(os.getpid(), signal.{name})
except KeyboardInterrupt:
    print("struck", signals.requested(), signals.code())
try:
    signals.check()
except KeyboardInterrupt:
    print("remembered")
signals.install()
signals.check()
print("forgotten", signals.requested())
"""
# Threads that never end, as one that reads from a server that says nothing, and something to tidy up.
LEAVING = """
import atexit, concurrent.futures, os, signal, sys, threading, time
from pipeline import cli
from pipeline.runs import signals
atexit.register(print, "tidied up")
class Command:
    def main(*_, **__):
        threading.Thread(target=time.sleep, args=(600,)).start()
        concurrent.futures.ThreadPoolExecutor().submit(time.sleep, 600)
        os.kill(os.getpid(), signal.SIGTERM)
cli.cli = Command
sys.stdout.write("unflushed ")
cli.main([])
"""
# The handler, when images are decoded.
DECODING = """
import os, signal, time
from beam_jobs.common import child_python
from beam_jobs.images import sandbox
from pipeline.runs import signals
assert sandbox._own.stop in child_python.stop_functions
ended = []
child_python.stop_functions[:] = [lambda: ended.append(1)]
signals.install()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    while not ended:
        time.sleep(0.01)
print("ended")
"""
# A library swallows the interruption and fails of something else.
SWALLOWED = """
import os, signal
from pipeline import cli
class Command:
    def main(*_, **__):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("numpy.core.multiarray failed to import") from None
cli.cli = Command
cli.main([])
"""
# It comes before the first line of the command line that answers it, and once more while it is answered.
BETWEEN = """
import os, signal
from pipeline import entry
from pipeline.runs import signals
install = signals.install
def struck():
    install()
    os.kill(os.getpid(), signal.{name})
signals.install = struck
entry.main()
"""
# It comes while the first imports run, before there is a handler for it.
IMPORTING = """
import os, signal, sys
from pipeline import entry
class Finder:
    def find_spec(self, name, *_):
        if name == "pipeline.runs.signals":
            os.kill(os.getpid(), signal.{name})
sys.meta_path.insert(0, Finder())
sys.argv = ["feedline", "doctor"]  # it takes longer than the signal
entry.main()
"""
TWICE = """
import os, signal
from pipeline import cli
from pipeline.cli import errors
class Command:
    def main(*_, **__):
        os.kill(os.getpid(), signal.{name})
answer = errors.interruption
def struck(remark):
    errors.interruption = answer
    os.kill(os.getpid(), signal.{name})
cli.cli, errors.interruption = Command, struck
cli.main([])
"""
# The signal comes where nobody can answer it, and the interpreter drops what a handler raises.
KEPT = """
import os, signal, time
from pipeline.runs import signals
signals.hold()
os.kill(os.getpid(), signal.SIGINT)
print("kept", signals.requested(), signals.code())
try:
    signals.install()
    time.sleep(60)
except KeyboardInterrupt:
    print("struck")
"""
DROPPED = """
import os, signal, time
from pipeline.runs import signals
class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
signals.install()
try:
    one = Finalised()
    del one
    time.sleep(60)
except KeyboardInterrupt:
    print("struck")
"""
# What is imported when the program begins to take signals.
LIGHT = """
import os, sys
from pipeline import entry
from pipeline.runs import signals
def hold():
    print(sorted({"click", "beam_jobs", "psutil", "pipeline.cli"} & sys.modules.keys()), flush=True)
    os._exit(0)
signals.hold = hold
entry.main()
"""
CODES = [("SIGINT", 130), ("SIGTERM", 143)]


@pytest.mark.parametrize(("name", "code"), CODES)
def test_a_signal_strikes_and_is_remembered_until_the_next_start(name, code):
    run = python(CODE.format(name=name))
    assert run.stdout.splitlines() == [f"struck True {code}", "remembered", "forgotten False"], run.stderr


def test_who_is_asked_to_stop_waits_for_no_thread_and_leaves_with_the_code_of_the_signal():
    run = python(LEAVING)
    assert run.returncode == 143
    assert run.stdout.split() == ["unflushed", "tidied", "up"]
    assert "interrupted; finished work is kept, run the same command again to continue" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("struck", "name", "code"), [(BETWEEN, *CODES[0]), (TWICE, *CODES[1])], ids=["between two lines", "twice"]
)
def test_the_line_is_said_wherever_the_signal_strikes(struck, name, code):
    run = python(struck.format(name=name))
    assert run.returncode == code
    assert run.stderr.splitlines() == [
        "feedline: error: interrupted; finished work is kept, run the same command again to continue"
    ]


@pytest.mark.parametrize(("name", "code"), CODES)
def test_a_signal_waits_for_the_first_imports(name, code):
    run = python(IMPORTING.format(name=name))
    assert run.returncode == code, run.stderr
    assert run.stderr.endswith("run the same command again to continue\n")
    assert "Traceback" not in run.stderr


def test_decoders_are_ended_at_once():
    assert python(DECODING).stdout == "ended\n"


def test_an_interruption_that_a_library_makes_an_error_of_is_one():
    run = python(SWALLOWED)
    assert run.returncode == 128 + signal.SIGTERM
    assert run.stderr.strip().endswith("run the same command again to continue")


def test_a_signal_that_came_too_early_strikes_when_it_can_be_answered():
    run = python(KEPT)
    assert run.stdout.splitlines() == ["kept True 130", "struck"], run.stderr


def test_a_signal_that_the_interpreter_drops_comes_again_and_is_not_printed():
    run = python(DROPPED)
    assert (run.stdout, run.stderr) == ("struck\n", "")


def test_the_program_takes_signals_before_it_imports_what_takes_time():
    run = python(LIGHT)
    assert run.stdout == "[]\n", run.stderr


@pytest.mark.parametrize(("name", "printed"), [("AtomicFunction", False), ("Other", True)])
def test_failures_of_functions_that_tensorflow_frees_are_not_printed(name, printed):
    done = python(f"""
from pipeline.runs import signals

class {name}:
    def __del__(self):
        raise RuntimeError("its module is gone")

signals.install()
{name}()
""")
    assert (done.returncode, "its module is gone" in done.stderr) == (0, printed)


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_an_interruption_left_half_made_is_not_printed_when_it_is_freed(interrupted):
    done = python(f"""
import os, signal
from pipeline.runs import signals

class Half:
    def __del__(self):
        raise RuntimeError("it has no such attribute")

signals.install()
try:
    if {interrupted}:
        os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    pass
Half()
""")
    assert ("it has no such attribute" in done.stderr) is not interrupted
