"""The driver of the peers: its command line, its results and what it says of peers it cannot run. No peer runs here."""

from __future__ import annotations

import http.client
import json
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from beam_jobs import stack
from benchmarks import serve
from benchmarks.input_peers import registry as input_peers
from benchmarks.peers import compare, environments, script
from benchmarks.peers.environments import Skipped
from benchmarks.peers.registry import PEERS

ROOT = Path(__file__).parents[2]


def driver(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.peers", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--counts", "2000,500"], "the smaller first"),
        (["--only", "tfx,ffcv"], "there is no peer 'ffcv'; known are tfx, tfx-checked, tfds"),
        (["--counts", "4,100"], "holds 24 images, the larger count is 100"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_runs(
    photos: Path,
    arguments: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", "--source", str(photos), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks.peers", run_name="__main__")
    assert ended.value.code == 2
    assert problem in " ".join(capsys.readouterr().err.split())


def test_a_peer_that_cannot_be_installed_is_skipped_with_the_reason(photos: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("a file where a directory should be")
    out = tmp_path / "results" / "peers.json"
    run = driver("--source", photos, "--counts", "4,8", "--only", "webdataset", "--cache", cache, "--out", out)
    assert run.returncode == 0, run.stderr
    assert "webdataset skipped: installing failed: " in run.stdout
    rows = json.loads(out.read_text())
    assert {name: list(row) for name, row in rows.items()} == {"webdataset": ["skipped"]}


def test_an_environment_is_made_once_and_anew_when_its_requirements_change(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("")
    python = environments.make_environment(tmp_path / "peer", requirements)
    assert python.exists()
    kept = tmp_path / "peer" / "kept"
    kept.touch()
    environments.make_environment(tmp_path / "peer", requirements)
    assert kept.exists()
    requirements.write_text("# changed\n")
    environments.make_environment(tmp_path / "peer", requirements)
    assert not kept.exists()


def test_every_version_is_pinned() -> None:
    of_ingest, of_input = (
        [line for peer in peers if peer.requirements for line in peer.requirements.read_text().splitlines()]
        for peers in (PEERS.values(), input_peers.PEERS.values())
    )
    assert [line for line in [*of_ingest, *of_input] if line.count("==") != 1] == []
    assert [line for line in of_input if "/" in line] == []  # none names an index


@pytest.mark.skipif(stack.name() != stack.CURRENT, reason="peers are measured beside the current stack")
def test_webdataset_decodes_with_the_tensorflow_of_this_environment() -> None:
    assert f"tensorflow=={metadata.version('tensorflow')}" in PEERS["webdataset"].requirements.read_text().splitlines()


def test_the_rate_is_the_slope_of_the_medians() -> None:
    assert compare.slope({100: [5.0, 5.2, 60.0], 400: [6.2, 6.1, 7.0]}) == pytest.approx(300.0)


def test_a_larger_size_that_took_no_longer_gives_no_rate() -> None:
    with pytest.raises(Skipped, match="400 images took no longer than 100"):
        compare.slope({100: [5.0], 400: [5.0]})


def rows_of(seconds: dict[str, tuple[float, float]], reason: str = "") -> dict:
    runners = {
        name: compare.Runner(command=(), seconds={100: [small], 400: [large]}, version="1.2.3")
        for name, (small, large) in seconds.items()
    }
    runners["tfx"].reason = reason
    return {"tfx": compare._row(PEERS["tfx"], runners.pop("tfx"), runners)}


def test_a_row_has_the_rates_of_both_and_their_ratio() -> None:
    times = {"tfx": (1.0, 2.5), "copy-basic": (1.0, 1.5), "copy-all": (1.0, 2.0)}
    row = json.loads(json.dumps(rows_of(times)))["tfx"]
    assert row == {
        "rate": pytest.approx(600),
        "base": pytest.approx(200),
        "ratio": pytest.approx(3),
        "base_is": PEERS["tfx"].base_is,
        "rate_all_facts": pytest.approx(300),
        "ratio_all_facts": pytest.approx(1.5),
        "version": "1.2.3",
        "seconds": {"feedline": {"100": [1.0], "400": [1.5]}, "peer": {"100": [1.0], "400": [2.5]}},
    }


def test_the_table_shows_numbers_and_reasons() -> None:
    times = {"tfx": (1.0, 2.5), "copy-basic": (1.0, 1.5), "copy-all": (1.0, 2.0)}
    shown = compare.table({**rows_of(times), "tfds": {"skipped": "no wheel"}}).splitlines()
    assert shown[1].split()[:6] == ["tfx", "200", "600", "3.00", "300", "1.50"]
    assert shown[2].split(maxsplit=1) == ["tfds", "skipped: no wheel"]
    assert rows_of(times, reason="exit 1: out of memory") == {"tfx": {"skipped": "exit 1: out of memory"}}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("""print('{"images": 3, "seconds": 1.0, "version": "1"}')""", "it wrote 3 of 4 images"),
        ("print('done')", "it printed 'done' instead of a result"),
        ("raise SystemExit('no space left')", "exit 1: no space left"),
    ],
)
def test_a_run_that_did_not_do_the_work_does_not_count(tmp_path: Path, code: str, reason: str) -> None:
    runner = compare.Runner(command=(sys.executable, "-c", code))
    runner.run(tmp_path, tmp_path, 4)
    assert runner.reason == reason
    assert runner.seconds == {}
    with pytest.raises(Skipped, match=reason):
        runner.rate()


def test_the_first_images_are_of_every_class_and_in_their_folders(photos: Path, tmp_path: Path) -> None:
    linked = script.link_first(photos, 6, tmp_path / "some")
    found = script.list_images(linked)
    assert len(found) == 6
    assert {path.parent.name for path in found} == {"china", "flower"}
    for path in found:
        assert path.read_bytes() == (photos / path.relative_to(linked)).read_bytes()
    with pytest.raises(SystemExit, match="holds 24 images; 25 were asked for"):
        script.link_first(photos, 25, tmp_path / "more")


def test_a_script_times_the_work_alone_and_prints_one_line(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(job: script.Job) -> script.Work:
        (job.out / "made").touch()
        return lambda: len(job.files())

    toy_script = script.Script(peer="toy", distribution="pytest", prepare=prepare, note="nothing", kinds=("one", "two"))
    arguments = ["--source", str(photos), "--out", str(tmp_path / "out"), "--count", "5", "--kind", "two"]
    monkeypatch.setattr(sys, "argv", ["toy", *arguments])
    toy_script.main()
    line = json.loads(capsys.readouterr().out)
    assert 0 <= line.pop("seconds") < 5
    assert line == {"peer": "toy two", "images": 5, "version": pytest.__version__, "note": "nothing"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("served")
    (root / "a class").mkdir()
    (root / "a class" / "ünder 100%.jpg").write_bytes(b"jpeg" * 50_000)
    (root.parent / "secret.txt").write_text("not to be served")
    with serve.serving(root) as url:
        idle = http.client.HTTPConnection(url.split("/")[2])
        idle.connect()  # a client that keeps its connection does not keep the server
        yield url


def test_the_server_serves_files_by_any_name_on_one_connection(served: str) -> None:
    connection = http.client.HTTPConnection(served.split("/")[2], timeout=10)
    for method, length in [("GET", 200_000), ("HEAD", 0), ("GET", 200_000)]:
        connection.request(method, "/" + serve.file_url("", "a class/ünder 100%.jpg"))
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Content-Type")) == (200, "image/jpeg")
        assert answer.getheader("Content-Length") == "200000"
        assert len(answer.read()) == length


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/%2e%2e/secret.txt", 404), ("DELETE", "/none.jpg", 405)]
)
def test_the_server_serves_nothing_else(served: str, method: str, path: str, status: int) -> None:
    connection = http.client.HTTPConnection(served.split("/")[2], timeout=10)
    connection.request(method, path)
    assert connection.getresponse().status == status
