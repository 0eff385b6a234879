"""Tests of what is left of the machine, or of the container."""

import os

import psutil
import pytest

from beam_jobs.common.system import cores, free_bytes
from tests.command import python


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "inactive_file 100\nactive_file 50\n"},
            450,
        ),
        ({"memory.max": "1000\n", "memory.current": "1700\n", "memory.stat": "anon 5\n"}, 0),
    ],
)
def test_the_free_memory_is_that_of_the_container(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr("beam_jobs.common.system._CGROUP", str(tmp_path))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert free_bytes() == expected


def test_without_a_limit_the_free_memory_is_that_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("beam_jobs.common.system._CGROUP", str(tmp_path))
    machine = psutil.virtual_memory().available
    assert free_bytes() == pytest.approx(machine, rel=0.2)
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes() == pytest.approx(machine, rel=0.2)


@pytest.mark.parametrize(("text", "most"), [("50000 100000", 1), ("150000 100000", 2), ("max 100000", 99), ("0 0", 99)])
def test_the_cores_are_those_of_the_container(tmp_path, monkeypatch, text, most):
    monkeypatch.setattr("beam_jobs.common.system._CGROUP", str(tmp_path))
    (tmp_path / "cpu.max").write_text(text)
    assert cores() == min(most, len(os.sched_getaffinity(0)))


def test_the_cores_are_those_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert cores() == len(allowed)


def test_garbage_is_collected_after_slow_imports_but_not_while_they_run_and_not_at_the_end():
    done = python("""
import gc
from beam_jobs.common.system import slow_imports
from pipeline.runs import signals

class Cycle:
    def __init__(self, name):
        self.name, self.itself = name, self

    def __del__(self):
        print(self.name)

def litter(name):
    Cycle(name)
    return [[] for _ in range(100_000)]

try:
    with slow_imports():
        litter("of an import")
        raise ImportError
except ImportError:
    litter("of the work")
    print("the end")
    Cycle("of the end")
""")
    assert done.stdout.splitlines() == ["of the work", "the end"], done.stderr
