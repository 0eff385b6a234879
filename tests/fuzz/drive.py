"""Runs a target under atheris, or over the files of its corpus."""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
WORK = Path(__file__).parents[2] / "build" / "fuzz"
_INPUT_SECONDS = 30  # one input that takes longer is a find
_RSS_MB = 4096

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
    """Searches for a time; a find ends it, with the input in `build/fuzz/NAME/`."""
    import atheris

    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{name}", description=target.__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices")
    parser.add_argument("--max-len", type=int, default=16_384, help="bytes of the largest input")
    given = parser.parse_args()
    found = WORK / name / "found"
    found.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": given.seconds,
        "seed": given.seed,
        "max_len": given.max_len,
        "timeout": _INPUT_SECONDS,
        "rss_limit_mb": _RSS_MB,
        "artifact_prefix": f"{WORK / name}/",
        "print_final_stats": 1,
    }
    warnings.simplefilter("error", RuntimeWarning)  # protobuf warns where it reads a part and takes it for the whole
    target(corpus(name)[0].read_bytes())  # what is imported at the first use takes longer than any input may
    flags = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, str(found), str(CORPUS / name)], target)
    atheris.Fuzz()
