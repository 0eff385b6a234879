"""Random input: the kept files of every fuzz target, and seeded changes of them, without atheris."""

from __future__ import annotations

import importlib
import random
import zlib

import pytest

from tests.faults.bounded import bounded
from tests.faults.trials import least_memory_mib, memory_mib
from tests.fuzz.drive import corpus

_SECONDS = 60.0  # what takes longer hangs; nothing takes a tenth of a second
_MEMORY_MIB = 900  # by which the process may grow
_OUTCOME = "read, or refused with a `FeedlineError`"
TARGETS = {
    "archives": ("tar and zip archives", 4000, 300),
    "datasets": ("manifests and image tables", 4000, 300),
    "examples": ("TFRecord and TFDS files of other programs", 4000, 300),
    "headers": ("header check before decoding", 20_000, 2000),
    "images": ("examining images", 6000, 200),
    "records": ("shards and records", 6000, 400),
    "tables": ("CSV, JSON lines, Parquet and COCO", 4000, 300),
}


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_errors_of_the_product(fault, tries, name):
    about, full, few = TARGETS[name]
    target = importlib.import_module(f"tests.fuzz.{name}").target
    seeds = [path.read_bytes() for path in corpus(name)]
    kept = fault("fuzz", f"stored corpus: {about}", _OUTCOME)
    changed = fault("fuzz", f"random changes of the corpus: {about}", _OUTCOME)
    target(seeds[0])  # imports what the first use imports
    start = least_memory_mib()
    for path, data in zip(corpus(name), seeds, strict=True):
        _try(kept, target, path.name, data)
    draw = random.Random(zlib.crc32(name.encode()))
    for number in range(tries(full, few)):
        _try(changed, target, f"number {number}", _mutated(draw, draw.choice(seeds), seeds))
    grown = memory_mib("VmHWM") - start
    changed.tried(f"all of them: the process grew by {grown:,.0f} MiB", wrong=grown > _MEMORY_MIB)


def _try(row, target, about: str, data: bytes) -> None:
    ended = bounded(lambda: target(data), _SECONDS)
    said = repr(ended.error) if ended.error else ""  # any that the target lets out is a find
    row.tried(f"{about} {said} {data[:200].hex()}", hang=ended.hang, wrong=bool(said))


def _mutated(draw: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Returns the bytes after a few changes: bits, bytes, runs lost, doubled, or taken from another file."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 5)):
        place = draw.randrange(len(changed) + 1)
        end = min(len(changed), place + draw.choice((1, 1, 2, 4, 16, 64)))
        kind = draw.randrange(6)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[place:end] = draw.randbytes(end - place)
        elif kind == 2:
            del changed[place:end]
        elif kind == 3:
            changed[place:place] = changed[place:end]
        elif kind == 4:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            changed[place:end] = other[start : start + draw.choice((1, 4, 16, 256))]
        else:
            changed[place:end] = draw.choice((b"\x00", b"\xff", b"\x7f", b'"', b"\n", b"-1", b"NaN", b"1e999"))
    return bytes(changed)
