"""Decoders that do what some bytes say: abort, spin, sleep, eat memory; broken from outside, by a `sitecustomize`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs.images import sandbox

# Python imports a module of this name at its start; this one waits for the import of the decoder to break its parts.
_SITE = """
import gc, os, signal, sys, time

class Breaker:
    def find_spec(self, name, path=None, target=None):
        if name != "beam_jobs.images.sandbox.worker":
            return None
        sys.meta_path.remove(self)
        from beam_jobs.images import decode, process, thumbnail
        for module, name in ((process, "examine"), (thumbnail, "render"), (decode, "decode_checked")):
            setattr(module, name, broken(getattr(module, name)))
        from beam_jobs.sources.image_reader import Reader
        read = Reader.read
        Reader.read = lambda self, uri, *rest: ACTS.get(uri.encode(), int)() or read(self, uri, *rest)
        return None

def broken(function):
    def acts(data, *rest, **named):
        for marker, act in ACTS.items():
            if marker in data:
                act()
        return function(data, *rest, **named)
    return acts

def spin():
    while True:
        pass

def once(number):
    path = os.path.join(os.path.dirname(__file__), number.name)
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), number)

def eat():
    kept = []
    while True:
        kept.append(bytearray(64 << 20))

def meet():
    folder, end = os.path.dirname(__file__), time.monotonic() + 20
    open(os.path.join(folder, f"met{os.getpid()}"), "w").close()
    while sum(name.startswith("met") for name in os.listdir(folder)) < 4 and time.monotonic() < end:
        time.sleep(0.01)

def bug():
    raise KeyError("a bug")

ACTS = {
    b"<abort>": os.abort,
    b"<segv>": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    b"<spin>": spin,
    b"<sleep>": lambda: time.sleep(3600),
    b"<stop>": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    b"<once>": lambda: once(signal.SIGKILL),
    b"<late>": lambda: time.sleep(2),
    b"<stopped>": lambda: once(signal.SIGSTOP),
    b"<eat>": eat,
    b"<meet>": meet,
    b"<bug>": bug,
    b"<garbage>": lambda: gc.isenabled() or bug(),
    b"<exit>": lambda: os._exit(3),
    b"<exit 0>": lambda: os._exit(0),
}
sys.meta_path.insert(0, Breaker())
"""


@contextlib.contextmanager
def broken_decoders(folder: Path) -> Iterator[None]:
    """Has the decoders of this process, and of commands it starts, act on markers such as `<abort>` in the bytes."""
    (folder / "sitecustomize.py").write_text(_SITE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        sandbox.close()
        yield
    sandbox.close()
