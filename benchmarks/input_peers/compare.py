"""Runs the peers and Feedline alternately and compares their rates."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import input_turns
from benchmarks.input_peers.registry import FEEDLINE, NO_WHEEL, ONLY_PHOTOS, PEERS
from benchmarks.input_peers.script import BATCH
from benchmarks.peers.compare import Runner
from benchmarks.peers.environments import Skipped, python_for
from benchmarks.peers.registry import Peer

ROUNDS = 3
OURS = "feedline"
# Row -> task, kind of images in `input_sources`, timed images per image of `photos`, so that runs take about as long.
ROWS: Mapping[str, tuple[str, str, float]] = {
    "photos": ("photos", "photographs", 1),
    "large": ("photos", "large", 1 / 8),
    "cifar": ("cifar", "cifar", 10),
}

Say = Callable[[str], object]
Row = dict[str, Any]


def compare(
    sources: Mapping[str, Path],
    count: int,
    names: Iterable[str],
    cache: Path,
    rounds: int = ROUNDS,
    pythons: Mapping[str, Path] | None = None,
    say: Say = print,
) -> dict[str, Row]:
    """Compares Feedline with the named peers, with one process per run, alternately.

    Args:
      sources: name in `ROWS` -> class folders of its images.
      count: number of timed photographs per run, rounded up to complete batches; ten times as many images of 32x32, an
        eighth of large ones. A warm-up of a quarter of it precedes.
      names: names in `PEERS`.
      cache: directory of the environments.
      rounds: runs of each peer; results are medians.
      pythons: peer -> Python with the peer installed, instead of a new environment.
      say: prints a line of progress.

    Returns:
      "peer, row" -> rate (of Feedline, images/s), base (of the peer), ratio, base_is, version (of the peer) and rounds
      (rates of all rounds, of both). A peer that could not be measured has only `skipped`, the reason.
    """
    rows: dict[str, Row] = {}
    available, missing = _pythons(names, cache, pythons or {}, say)
    with tempfile.TemporaryDirectory() as scratch:
        for row, source in sources.items():
            task, _, weight = ROWS[row]
            images = -(-int(weight * count) // BATCH) * BATCH
            data = Path(scratch, row)
            runners = {
                name: _runner(name, PEERS[name], python, task, data)
                for name, python in available.items()
                if task == "photos" or name not in ONLY_PHOTOS
            }
            ours = _runner(OURS, Peer(module=FEEDLINE, base_is=""), Path(sys.executable), task, data)
            for number in range(1, rounds + 1):
                for name, runner in {OURS: ours, **runners}.items():
                    runner.run(source, Path(scratch), images)
                    say(f"{row}, round {number}/{rounds}  {name:<12} {_last(runner, images)}")
            rows |= {f"{name}, {row}": make_row(PEERS[name], runner, ours) for name, runner in runners.items()}
            rows |= {f"{name}, {row}": {"skipped": reason} for name, reason in missing.items()}
    return rows


def make_row(peer: Peer, runner: Runner, ours: Runner) -> Row:
    """Returns the row of one peer.

    Args:
      peer: the peer.
      runner: runs of the peer.
      ours: runs of Feedline in the same rounds.
    """
    if ours.reason:
        return {"skipped": f"Feedline itself failed: {ours.reason}"}
    if runner.reason:
        return {"skipped": runner.reason}
    return input_turns.make_row(peer.base_is, _rates(ours), _rates(runner)) | {"version": runner.version}


def table(rows: Mapping[str, Row]) -> str:
    """Returns the results as text, one line per peer and row."""
    lines = [f"{'peer, row':<20}{'images/s':>9}{'Feedline':>10}{'ratio':>7}   peer is"]
    for name, row in rows.items():
        if "skipped" in row:
            lines.append(f"{name:<20}skipped: {row['skipped']}")
        else:
            numbers = f"{row['base']:>9,.0f}{row['rate']:>10,.0f}{row['ratio']:>7.2f}"
            lines.append(f"{name:<20}{numbers}   {row['version']}, {row['base_is']}")
    return "\n".join(lines)


def _pythons(
    names: Iterable[str], cache: Path, pythons: Mapping[str, Path], say: Say
) -> tuple[dict[str, Path], dict[str, str]]:
    """Returns peer -> Python, and peer -> reason for the missing Python."""
    available: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            python = pythons.get(name) or _python(name, cache)
        except Skipped as skipped:
            missing[name] = str(skipped)
            say(f"{name} skipped: {skipped}")
            continue
        available[name] = python
    return available, missing


def _python(name: str, cache: Path) -> Path:
    if name in NO_WHEEL:
        raise Skipped(f"it has no wheel; build it as README.md says and name its Python: --python {name}=PATH")
    return python_for(f"input-{name}", PEERS[name], cache)


def _runner(name: str, peer: Peer, python: Path, task: str, data: Path) -> Runner:
    kind = ("--kind", peer.kind) if peer.kind else ()
    return Runner(command=(str(python), "-m", peer.module, "--task", task, "--data", str(data / name), *kind))


def _rates(runner: Runner) -> Sequence[float]:
    return [count / seconds for count, times in runner.seconds.items() for seconds in times]


def _last(runner: Runner, count: int) -> str:
    if runner.reason:
        return f"failed: {runner.reason}"
    return f"{count / runner.seconds[count][-1]:>9,.0f} images/s"
