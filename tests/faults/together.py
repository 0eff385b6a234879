"""Several ingests into one output at the same time, some of them killed; see `test_together.py`.

`python -m tests.faults.together FOLDER SEED COUNT` has two or three command lines at a time start within moments of
each other, COUNT times, and prints what it saw as one JSON object. Processes and moments are those of
`tests.beam_jobs.kill`: at a few of them, drawn at random and mostly early, a process stops for a while, or is killed.

The oracle is slow and simple: the same command lines, one after the other, in peace. Whatever comes of several at once
has to be what some order of those that ended well gives; one that was killed may or may not have been through.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.beam_jobs import kill
from tests.faults.killing import arguments, command, dataset
from tests.faults.leaving import write_whole
from tests.make_images import class_folders, jpeg

_APART_S = 2.0  # between the first and the last start of a try: about as long as an ingest takes
_STOPPED_S = 0.5
_NOTHING = 0
# Name -> its source, and what it is asked for. Those of a try are drawn from these.
COMMANDS = {
    "new": ("all", ()),
    "other": ("all", ("--seed", "1")),
    "overwrite": ("all", ("--seed", "2", "--overwrite")),
    "append one": ("one", ("--append",)),
    "append two": ("two", ("--append",)),
}
IN_USE = "is in use by another ingest: process "


def sources(folder: Path) -> Path:
    """Makes the sources: `all`, and with an image more each, `one` and `two`."""
    class_folders(folder / "all", per_class=4)
    for number, name in enumerate(("one", "two")):
        shutil.copytree(folder / "all", folder / name)
        (folder / name / "china" / f"{name}.jpg").write_bytes(jpeg(90 + number))
    return folder


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What happens to a process.

    Attributes:
      name: key of `COMMANDS`.
      starts: seconds after the first one.
      stops: moment -> seconds that it stops for.
      dies: moment at which it is killed; 0 for none.
    """

    name: str
    starts: float
    stops: dict[int, float]
    dies: int


def draw(choose: random.Random, moments: int) -> tuple[int, list[Drawn]]:
    """Draws which state a try begins with, and what is started.

    Args:
      choose: source of randomness.
      moments: of an ingest in peace.

    Returns:
      0 for no dataset and 1 for one, and the processes.
    """

    def moment() -> int:
        return int(moments ** choose.random())  # as many among the first ten as among the last of hundreds

    def one() -> Drawn:
        stops = {moment(): choose.uniform(0, _STOPPED_S) for _ in range(choose.randrange(4))}
        return Drawn(
            name=choose.choice(list(COMMANDS)),
            starts=choose.choice([0.0, choose.uniform(0, _APART_S)]),
            stops=stops,
            dies=moment() if choose.random() < 0.3 else 0,
        )

    return choose.randrange(2), [one() for _ in range(choose.choice([2, 2, 3]))]


class Oracle:
    """What the command lines do one after the other, each run in peace in a copy of what the one before left."""

    def __init__(self, folder: Path, source: Path) -> None:
        self._folder, self._source = folder, source
        self._states: list[dict[str, bytes]] = []
        self._known: dict[tuple[int, str], tuple[int, int]] = {}
        self._number(folder / "none" / "out")

    def after(self, state: int, name: str) -> tuple[int, int]:
        """Returns the exit code of a command line, and the state that it leaves."""
        if (state, name) not in self._known:
            place = self.copy(state, self._folder / f"{state} {name}")
            code = self.run(name, place)
            assert code in (0, 2), (place / "said.txt").read_text()
            self._known[state, name] = code, self._number(place / "out")
        return self._known[state, name]

    def run(self, name: str, place: Path) -> int | None:
        """Runs a command line in peace; returns its exit code."""
        return kill.in_a_child(lambda: command(line(name, self._source, place), place / "said.txt"))

    def copy(self, state: int, place: Path) -> Path:
        """Makes a directory with a dataset in a state in it, or with none."""
        place.mkdir(parents=True)
        if state != _NOTHING:
            shutil.copytree(self._folder / "states" / str(state) / "out", place / "out")
        return place

    def state(self, out: Path) -> int | None:
        """Returns the state of what is published; None when no order of command lines leaves that."""
        found = dataset(out) if (out / "dataset.json").exists() else {}
        return self._states.index(found) if found in self._states else None

    def knows(self, found: str) -> bool:
        """Returns whether a digest is that of a state."""
        return any(found == digest(state) for state in self._states if state)

    def orders(self, state: int, through: list[str], perhaps: list[str]) -> Iterator[tuple[list[int], int]]:
        """Yields the exit codes and the last state of every order of the first, and of any of the second among them."""
        for count in range(len(perhaps) + 1):
            for more in itertools.combinations(perhaps, count):
                for order in itertools.permutations([*through, *more]):
                    yield self._walk(state, order)

    def _walk(self, state: int, order: tuple[str, ...]) -> tuple[list[int], int]:
        codes = []
        for name in order:
            code, state = self.after(state, name)
            codes.append(code)
        return codes, state

    def _number(self, out: Path) -> int:
        found = dataset(out) if (out / "dataset.json").exists() else {}
        if found not in self._states:
            self._states.append(found)
            if found:
                shutil.copytree(out, self._folder / "states" / str(len(self._states) - 1) / "out")
        return self._states.index(found)


def line(name: str, source: Path, place: Path) -> list[str]:
    """Returns a command line of `COMMANDS`."""
    folder, more = COMMANDS[name]
    return arguments(str(source / folder), place / "out", *more)


def together(drawn: list[Drawn], source: Path, place: Path) -> list[int | None]:
    """Runs command lines at once; returns their exit codes, or signals, or None for one that did not end in time."""
    began = time.monotonic()
    reader = kill.forked(lambda: read_on(place / "out", place / "seen.txt"))
    children = {kill.forked(lambda one=one, at=at: _run(one, at, source, place)): at for at, one in enumerate(drawn)}
    codes: list[int | None] = [None] * len(drawn)
    wakes: dict[int, float] = {}
    while children and time.monotonic() < began + kill.PATIENCE_S:
        for child, at in list(children.items()):
            found, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if found and os.WIFSTOPPED(status):
                wakes[child] = time.monotonic() + float((place / f"{at}.stop").read_text())
            elif found:
                codes[at] = os.waitstatus_to_exitcode(status)
                del children[child]
            elif time.monotonic() > wakes.get(child, float("inf")):
                del wakes[child]
                os.kill(child, signal.SIGCONT)
        time.sleep(0.005)
    for child in (*children, reader):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return codes


def _run(one: Drawn, at: int, source: Path, place: Path) -> None:
    time.sleep(one.starts)
    moments = itertools.count(1)

    def act(_: str) -> None:
        moment = next(moments)
        if moment == one.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if moment in one.stops:
            # No moment: it lies beside what is watched. Whole, because another thread may stop this process meanwhile.
            write_whole(place / f"{at}.stop", str(one.stops[moment]))
            os.kill(os.getpid(), signal.SIGSTOP)

    said = place / f"{at}.txt"
    words = line(one.name, source, place)
    kill.on_each_moment((str(source), str(place / "out"), str(place / ".out")), act)
    command(words, said)


def judged(oracle: Oracle, state: int, drawn: list[Drawn], codes: list[int | None], place: Path) -> list[str]:
    """Returns what is wrong with what several command lines left, and what another one makes of it."""
    said = [(place / f"{at}.txt").read_text() if (place / f"{at}.txt").exists() else "" for at in range(len(drawn))]
    wrong = [f"a traceback: {text}" for text in said if "Traceback" in text]
    through, perhaps, refused = [], [], []
    for one, code, text in zip(drawn, codes, said, strict=True):
        if code == 0:
            through.append(one.name)
        elif code == -signal.SIGKILL and one.dies:
            perhaps.append(one.name)
        elif code == 2 and IN_USE not in text:
            refused.append(one.name)  # it would be, after some of the others
        elif code != 2:
            wrong.append(f"{one.name} ended with {code}: {text}")
    ends = {end for codes, end in oracle.orders(state, through, perhaps) if not any(codes)}
    found = oracle.state(place / "out")
    if found is None or found not in ends:
        wrong.append(f"state {found} instead of one of {sorted(ends)}, after {through} and perhaps {perhaps}")
        return wrong
    way = {end for part in _parts(through + perhaps) for _, end in oracle.orders(state, part, [])}
    for one, text in zip(drawn, said, strict=True):
        if one.name in refused and not any(oracle.after(end, one.name)[0] for end in way):
            wrong.append(f"{one.name} was refused, and would be in no state on the way: {text}")
    seen = (place / "seen.txt").read_text().split() if (place / "seen.txt").exists() else []
    wrong += [f"a reader saw a dataset {one} that is whole in no state" for one in seen if not oracle.knows(one)]
    return wrong + _again(oracle, found, [drawn[0].name, "overwrite"], place)


def _parts(names: list[str]) -> Iterator[list[str]]:
    for count in range(len(names) + 1):
        yield from map(list, itertools.combinations(names, count))


def _again(oracle: Oracle, state: int, names: list[str], place: Path) -> list[str]:
    """Returns what is wrong with command lines that are run afterwards, one after the other, and what they leave."""
    for name in names:
        code = oracle.run(name, place)
        expected = oracle.after(state, name)
        found = code, oracle.state(place / "out")
        if found != expected:
            return [f"{name} again: {found} instead of {expected}: {(place / 'said.txt').read_text()}"]
        state = expected[1]
    kept = [str(path) for path in (*place.glob(".*feedline*"), place / "out" / "_work") if path.exists()]
    return [f"left: {kept}"] if kept else []


def read_on(out: Path, seen: Path) -> None:
    """Looks at what is published until it is ended, and writes down a digest of each dataset it sees."""
    digests = set()
    while True:
        with contextlib.suppress(OSError):  # it is made or replaced at this moment
            before = (out / "dataset.json").stat().st_ino
            found = digest(dataset(out))
            if found not in digests and (out / "dataset.json").stat().st_ino == before:
                digests.add(found)
                with seen.open("a") as stream:
                    stream.write(f"{found}\n")
        time.sleep(0.02)


def digest(files: dict[str, bytes]) -> str:
    """Returns what tells a dataset from others."""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()


def main(folder: Path, seed: int, count: int) -> list[dict]:
    kill.share_decoders()
    source = sources(folder / "sources")
    oracle = Oracle(folder / "oracle", source)
    first = oracle.after(_NOTHING, "new")
    report = folder / "report.json"
    words = line("other", source, oracle.copy(_NOTHING, folder / "counted"))
    watched = (str(source), str(folder / "counted"))

    def work() -> dict:
        with contextlib.suppress(SystemExit):
            command(words, folder / "counted.txt")
        return {}

    assert kill.in_a_child(lambda: kill.counted(watched, str(source), report, work)) == 0
    moments = json.loads(report.read_text())["moments"]
    choose = random.Random(seed)
    tries = []
    for index in range(count):
        begins, drawn = draw(choose, moments)
        state = first[1] if begins else _NOTHING
        place = oracle.copy(state, folder / str(index))
        codes = together(drawn, source, place)
        about = f"{index}: from state {state}, {[vars(one) for one in drawn]} ended with {codes}"
        tries.append({"about": about, "codes": codes, "wrong": judged(oracle, state, drawn, codes, place)})
    return tries


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
