"""Runs peers and Feedline alternately at two sizes and compares the slopes of time over images."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import serve
from benchmarks.peers.environments import ROOT, Skipped, last_line, python_for
from benchmarks.peers.registry import ALL_FACTS, FEEDLINE, PEERS, Peer
from benchmarks.peers.script import list_images

ROUNDS = 3
_RUN_SECONDS = 1800
# Silences libraries, and isolates the environments of peers from this one.
_SET = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
_UNSET = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")

Say = Callable[[str], None]
Row = dict[str, object]


@dataclass(kw_only=True)
class Runner:
    """One script in one environment, with the results of its runs.

    Attributes:
      command: command of the script, without source, output and count.
      seconds: number of images -> seconds of each round.
      version: version of the peer.
      reason: reason why a run failed; empty without a failure.
    """

    command: Sequence[str]
    seconds: dict[int, list[float]] = field(default_factory=dict)
    version: str = ""
    reason: str = ""

    def run(self, source: Path, scratch: Path, count: int) -> None:
        """Runs the script once, unless an earlier run failed."""
        if self.reason:
            return
        out = scratch / "run"
        arguments = ["--source", str(source), "--out", str(out), "--count", str(count)]
        try:
            line = _run_script([*self.command, *arguments])
            if line["images"] != count:
                raise Skipped(f"it wrote {line['images']} of {count} images")
            self.seconds.setdefault(count, []).append(line["seconds"])
            self.version = line["version"]
        except Skipped as skipped:
            self.reason = str(skipped)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def rate(self) -> float:
        """Returns images/s: the slope between the median times of the two sizes.

        Raises:
          Skipped: a run failed, or the larger size took no longer than the smaller size.
        """
        if self.reason:
            raise Skipped(self.reason)
        return slope(self.seconds)


def compare(
    source: Path, counts: tuple[int, int], names: Iterable[str], cache: Path, rounds: int = ROUNDS, say: Say = print
) -> dict[str, Row]:
    """Compares Feedline with the named peers.

    Args:
      source: class folders with at least as many images as the larger count.
      counts: two numbers of images, in ascending order.
      names: names in `PEERS`.
      cache: directory of the environments.
      rounds: runs of each script at each size; scripts alternate, so that other load affects all of them equally.
      say: prints a line of progress.

    Returns:
      peer -> rate (of Feedline, images/s), base (of the peer), ratio, base_is, version (of the peer) and seconds
      (images -> seconds of each round, of both); peers that read files also get rate and ratio with all facts. A peer
      that could not be measured has only `skipped`, the reason.
    """
    peers = {name: PEERS[name] for name in names}
    runners, rows = _prepare(peers, cache, say)
    ours = _ours(peers[name] for name in runners)
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(1, rounds + 1):
            for name, runner in {**ours, **runners}.items():
                for count in counts:
                    runner.run(source, Path(scratch), count)
                say(f"round {number}/{rounds}  {name:<12} {_times(runner, counts)}")
    rows |= {name: _row(peers[name], runner, ours) for name, runner in runners.items()}
    if any("rate" in rows[name] and peer.counterpart == "urls" for name, peer in peers.items()):
        _add_server_rate(rows, peers, source)
    return {name: rows[name] for name in peers}


def slope(seconds: Mapping[int, Sequence[float]]) -> float:
    """Returns the images/s between the smallest and the largest size, from the median times.

    Args:
      seconds: images -> seconds of each run.

    Raises:
      Skipped: the larger size took no longer than the smaller size.
    """
    small, large = min(seconds), max(seconds)
    difference = statistics.median(seconds[large]) - statistics.median(seconds[small])
    if difference <= 0:
        raise Skipped(f"{large} images took no longer than {small}; measure with more of them")
    return (large - small) / difference


def table(rows: Mapping[str, Row]) -> str:
    """Returns the results as text, one line per peer."""
    lines = [f"{'peer':<13}{'images/s':>9}{'Feedline':>10}{'ratio':>7}{'all facts':>11}{'ratio':>7}   peer is"]
    for name, row in rows.items():
        if "skipped" in row:
            lines.append(f"{name:<13}skipped: {row['skipped']}")
            continue
        numbers = f"{row['base']:>9,.0f}{row['rate']:>10,.0f}{row['ratio']:>7.2f}"
        facts = f"{row['rate_all_facts']:>11,.0f}{row['ratio_all_facts']:>7.2f}" if "rate_all_facts" in row else ""
        lines.append(f"{name:<13}{numbers}{facts:>18}   {row['version']}, {row['base_is']}")
    return "\n".join(lines)


def check_source(source: Path, count: int) -> None:
    """Raises `ValueError` unless a directory contains at least `count` files."""
    if not source.is_dir():
        raise ValueError(f"{source} is not a directory; name class folders of images")
    total = len(list_images(source))
    if total < count:
        raise ValueError(
            f"{source} holds {total} images, the larger count is {count}; name more images or lower counts"
        )


def _prepare(peers: Mapping[str, Peer], cache: Path, say: Say) -> tuple[dict[str, Runner], dict[str, Row]]:
    runners: dict[str, Runner] = {}
    rows: dict[str, Row] = {}
    for name, peer in peers.items():
        try:
            python = python_for(peer.module.rpartition("peer_")[2], peer, cache)
        except Skipped as skipped:
            rows[name] = {"skipped": str(skipped)}
            say(f"{name} skipped: {skipped}")
            continue
        kind = ("--kind", peer.kind) if peer.kind else ()
        runners[name] = Runner(command=(str(python), "-m", peer.module, *kind))
    return runners, rows


def _ours(peers: Iterable[Peer]) -> dict[str, Runner]:
    kinds = {peer.counterpart: None for peer in peers}
    if "copy-basic" in kinds:
        kinds[ALL_FACTS] = None
    return {kind: Runner(command=(sys.executable, "-m", FEEDLINE, "--kind", kind)) for kind in kinds}


def _row(peer: Peer, runner: Runner, ours: Mapping[str, Runner]) -> Row:
    counterpart = ours[peer.counterpart]
    try:
        base = runner.rate()
    except Skipped as skipped:
        return {"skipped": str(skipped)}
    try:
        rate = counterpart.rate()
        row: Row = {"rate": rate, "base": base, "ratio": rate / base, "base_is": peer.base_is}
        if peer.counterpart != "urls":
            rate = ours[ALL_FACTS].rate()
            row |= {"rate_all_facts": rate, "ratio_all_facts": rate / base}
    except Skipped as skipped:
        return {"skipped": f"Feedline itself failed beside it ({base:,.0f} images/s): {skipped}"}
    return row | {"version": runner.version, "seconds": {"feedline": counterpart.seconds, "peer": runner.seconds}}


def _add_server_rate(rows: Mapping[str, Row], peers: Mapping[str, Peer], source: Path) -> None:
    """Adds the rate of the server of the URLs; results are valid only if it is far above both rates."""
    names = [path.relative_to(source).as_posix() for path in list_images(source)]
    with serve.serving(source) as url:
        rate = serve.ceiling(url, names)
    for name, peer in peers.items():
        if peer.counterpart == "urls":
            rows[name]["server_rate"] = rate


def _times(runner: Runner, counts: Iterable[int]) -> str:
    if runner.reason:
        return f"failed: {runner.reason}"
    return "  ".join(f"{count} images {runner.seconds[count][-1]:.2f} s" for count in counts)


def _run_script(command: list[str]) -> dict:
    environment = {name: value for name, value in os.environ.items() if name not in _UNSET} | _SET
    try:
        run = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"a run took over {_RUN_SECONDS} s") from error
    if run.returncode:
        raise Skipped(f"exit {run.returncode}: {last_line(run.stderr or run.stdout)}")
    line = last_line(run.stdout)
    if not line.startswith("{"):
        raise Skipped(f"it printed {line[:80]!r} instead of a result")
    return json.loads(line)
