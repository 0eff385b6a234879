"""Runs a target under atheris, or over the files of its corpus."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
WORK = Path(__file__).parents[2] / "build" / "fuzz"
# An input that takes longer, or more memory than that above what the process has at its start, is a find.
_INPUT_SECONDS = 20
_GROWTH_MB = 900
_SEARCHES = "FEEDLINE_FUZZ_SEARCHES"  # set in the process that searches, which libFuzzer ends as it likes
_FINDS = ("crash-*", "timeout-*", "oom-*", "leak-*")

Target = Callable[[bytes], None]


def instrumented(module: str) -> AbstractContextManager[object]:
    """Counts the branches of what is imported within, where the module is the program; otherwise does nothing."""
    if module != "__main__":
        return contextlib.nullcontext()
    import atheris

    return atheris.instrument_imports(include=["beam_jobs", "trainer"], enable_loader_override=False)


def corpus(name: str) -> list[Path]:
    """Returns the kept files of a target, sorted."""
    return sorted((CORPUS / name).iterdir())


def main(target: Target) -> None:
    """Searches for a time; a find ends it, with the input in `build/fuzz/NAME/`. `NAME.json` tells how it went."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{name}", description=target.__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices")
    parser.add_argument("--max-len", type=int, default=16_384, help="bytes of the largest input")
    given = parser.parse_args()
    if _SEARCHES not in os.environ:
        sys.exit(_recorded(name))
    import atheris

    found = WORK / name / "found"
    found.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("error", RuntimeWarning)  # protobuf warns where it reads a part and takes it for the whole
    target(corpus(name)[0].read_bytes())  # what is imported at the first use takes longer than any input may
    options = {
        "max_total_time": given.seconds,
        "seed": given.seed,
        "max_len": given.max_len,
        "timeout": _INPUT_SECONDS,
        "rss_limit_mb": _memory_mb() + _GROWTH_MB,
        "artifact_prefix": f"{WORK / name}/",
        "print_final_stats": 1,
    }
    flags = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, str(found), str(CORPUS / name)], target)
    atheris.Fuzz()


def _memory_mb() -> int:
    """Returns the most memory that this process has had, which libFuzzer compares with its limit."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _recorded(name: str) -> int:
    """Searches in a process of its own, writes down how that went, and returns its exit code."""
    before, started = _finds(name), time.monotonic()
    command = [sys.executable, *(f"-W{option}" for option in sys.warnoptions), "-m", f"tests.fuzz.{name}"]
    executed = coverage = 0
    with subprocess.Popen(
        [*command, *sys.argv[1:]],
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, _SEARCHES: "1"},
    ) as process:
        for line in process.stderr:
            sys.stderr.write(line)
            if told := re.match(r"#(\d+)\s.*\bcov: (\d+)", line):
                executed, coverage = map(int, told.groups())
    record = {
        "target": name,
        "seconds": round(time.monotonic() - started),
        "executions": executed,
        "coverage": coverage,
        "finds": sorted(_finds(name) - before),
        "code": process.returncode,
    }
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return process.returncode


def _finds(name: str) -> set[str]:
    return {path.name for pattern in _FINDS for path in (WORK / name).glob(pattern)}
