"""Commands in the background, each a real process of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.errors import OptionError
from beam_jobs.progress import Progress
from pipeline import cli, interrupt, job_process, jobs
from tests.make_images import encode

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("pipeline.cli.detach._LOOK_S", 100.0)  # a busy machine takes long to load Beam
    return tmp_path / "state"


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Enough images that a job does not end before someone looks; they differ in a comment."""
    directory = tmp_path / "many" / "slope"
    directory.mkdir(parents=True)
    slope = np.linspace(0, 255, 1500, dtype=np.uint8)
    start, rest = b"\xff\xd8", encode(np.broadcast_to(slope[:, None, None], (1500, 1500, 3)).copy(), "JPEG")[2:]
    for number in range(300):
        (directory / f"{number}.jpg").write_bytes(start + b"\xff\xfe\x00\x06%04d" % number + rest)
    return directory.parent


def feedline(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.execute([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def wait_for(job: jobs.Job, *states: str) -> None:
    deadline = time.monotonic() + 60
    while job.state not in states and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.state in states, job.log


def test_a_job_ends_as_the_command_would_have(photos, tmp_path, capsys):
    code, name, said = feedline(capsys, "ingest", photos, "--out", tmp_path / "dataset", "--detach")
    assert (code, f"status {name.strip()} --follow" in said) == (0, True)
    followed = feedline(capsys, "status", name.strip(), "--follow")
    local = feedline(capsys, "ingest", photos, "--out", tmp_path / "local")
    assert followed[:2] == (0, local[1].replace("local", "dataset"))
    assert "wrote     24 records" in followed[2]
    assert (tmp_path / "dataset" / "dataset.json").read_bytes() == (tmp_path / "local" / "dataset.json").read_bytes()


def test_how_far_a_job_is_can_be_asked_at_any_time(many, tmp_path, capsys):
    name = feedline(capsys, "ingest", many, "--out", tmp_path / "dataset", "--detach")[1].strip()
    job = jobs.find(name)
    assert job.stage is not None
    assert (job.stage.name, job.stage.total.images) == ("examining", 300)
    line, command = feedline(capsys, "status")[1].splitlines()
    assert line.startswith(f"{name}  ")
    assert " of 300 images" in line or line.endswith("done")
    assert command.endswith(f" ingest {many} --out {tmp_path / 'dataset'}")
    wait_for(job, jobs.DONE)
    assert job.stage.done.images == 300
    found = json.loads(feedline(capsys, "status", name, "--json")[1])
    assert (found["state"], found["exit_code"], found["stage"]["name"]) == ("done", 0, "writing")
    assert found["arguments"] == ["ingest", str(many), "--out", str(tmp_path / "dataset")]
    assert json.loads(feedline(capsys, "status", "--json")[1])["jobs"] == [found]


def test_a_mistake_shows_at_once_and_keeps_its_exit_code(tmp_path, capsys):
    code, out, said = feedline(capsys, "ingest", tmp_path / "nothing", "--out", tmp_path / "dataset", "--detach")
    assert (code, out) == (2, "")
    assert "nothing does not exist" in said
    (job,) = jobs.jobs()
    assert feedline(capsys, "status")[1].splitlines()[0] == f"{job.name:<26} failed, exit code 2"


def test_a_killed_job_says_how_to_continue(many, tmp_path, capsys):
    name = feedline(capsys, "ingest", many, "--out", tmp_path / "dataset", "--detach")[1].strip()
    job = jobs.find(name)
    os.kill(job.pid, signal.SIGKILL)
    wait_for(job, jobs.DIED)
    code, _, said = feedline(capsys, "status", name, "--follow")
    assert code == 1  # whatever waits for the job must not go on
    assert f"ingest {many} --out {tmp_path / 'dataset'}" in said
    assert feedline(capsys, "ingest", many, "--out", tmp_path / "dataset")[0] == 0


def test_a_stopped_job_keeps_what_is_finished(many, tmp_path, capsys):
    name = feedline(capsys, "ingest", many, "--out", tmp_path / "dataset", "--detach")[1].strip()
    code, _, said = feedline(capsys, "status", name, "--stop")
    assert code == interrupt.TERMINATED
    assert f"{name}: stopped\n" in said
    assert "it was stopped; what is finished is kept, and the same command continues:" in said
    assert f"cd {shlex.quote(os.getcwd())} && " in said
    assert said.endswith(f" ingest {many} --out {tmp_path / 'dataset'}\n")
    assert "failed" not in said
    assert feedline(capsys, "status")[1].splitlines()[0] == f"{name:<26} stopped"
    assert json.loads(feedline(capsys, "status", name, "--json")[1])["state"] == "stopped"
    assert not (tmp_path / "dataset" / "dataset.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_job_too(many, tmp_path, capsys, number):
    name = feedline(capsys, "ingest", many, "--out", tmp_path / "dataset", "--detach")[1].strip()
    job = jobs.find(name)
    os.kill(job.pid, number)
    wait_for(job, jobs.STOPPED)
    assert feedline(capsys, "status", name, "--follow")[0] == 128 + number


@pytest.mark.parametrize(
    ("code", "state"), [(0, jobs.DONE), (1, jobs.FAILED), (130, jobs.STOPPED), (143, jobs.STOPPED), (137, jobs.FAILED)]
)
def test_a_job_is_called_by_what_ended_it(tmp_path, code, state):
    jobs.end(tmp_path, code)
    assert jobs.Job(directory=tmp_path, arguments=(), cwd="/", pid=1, started=0.0).state == state


def test_a_job_that_is_stopped_before_it_takes_signals_was_not_killed(tmp_path):
    process = subprocess.Popen(["sleep", "100"])
    started = jobs.Job(directory=tmp_path, arguments=(), cwd="/", pid=process.pid, started=time.time())
    started.stop()
    process.wait(60)
    assert started.state == jobs.STOPPED


def killed(state: Path, *arguments: str) -> str:
    """Writes down a job that somebody killed long ago, and returns its name."""
    directory = state / "feedline" / "jobs" / "run-20260101-000000"
    directory.mkdir(parents=True)
    values = {"arguments": arguments, "cwd": "/data", "pid": 1, "started": 0.0}
    (directory / "job.json").write_text(json.dumps(values))
    return directory.name


def test_a_terminal_gets_commands_of_its_width_and_a_pipe_whole_ones(state, capsys):
    name = killed(state, "run", "--images", "p" * 500)
    outside, inside = os.openpty()
    command = [sys.executable, "-m", "pipeline", "status"]
    done = subprocess.run(command, stdout=inside, env={**os.environ, "COLUMNS": "60"}, cwd=ROOT, timeout=100)
    os.close(inside)
    shown = os.read(outside, 1 << 16).decode().splitlines()
    os.close(outside)
    start = "  python -m pipeline run --images "
    assert done.returncode == 0
    assert shown == [f"{name:<26} died", f"{start}{'p' * (59 - len(start))}…"]
    assert feedline(capsys, "status")[1].endswith(" run --images " + "p" * 500 + "\n")


def test_a_password_of_a_command_is_not_shown(state, capsys):
    name = killed(state, "run", "--images", "https://me:hunter2@host/a.csv", "--set", "x.token=hunter2")
    for arguments in ((), ("--json",), (name,), (name, "--json")):
        code, *said = feedline(capsys, "status", *arguments)
        assert (code, "https://me:***@host/a.csv" in "".join(said)) == (0, True)
        assert "hunter2" not in "".join(said)
    assert "the same command continues, with the secret in place of ***:" in feedline(capsys, "status", name)[2]


def test_nobody_else_may_read_a_job(state):
    job = jobs.start(["verify", "nothing"])
    wait_for(job, jobs.FAILED)
    assert job.directory.stat().st_mode & 0o077 == 0


def test_an_unknown_job_is_answered_with_the_nearest(state, capsys):
    code, _, said = feedline(capsys, "status", "ingest-1")
    assert (code, "none was started yet" in said) == (2, True)
    directory = state / "feedline" / "jobs" / "ingest-20260101-000000"
    directory.mkdir(parents=True)
    (directory / "job.json").write_text(json.dumps({"arguments": [], "cwd": "/", "pid": 1, "started": 0.0}))
    with pytest.raises(OptionError, match="did you mean ingest-20260101-000000"):
        jobs.find("ingest-20260101-00000")


@pytest.mark.parametrize("flag", ["--follow", "--stop"])
def test_a_flag_without_a_job_is_refused(capsys, flag):
    code, _, said = feedline(capsys, "status", flag)
    assert (code, f"{flag} needs the name of a JOB" in said) == (2, True)


def test_an_interruption_while_it_starts_stops_the_job(many, tmp_path, monkeypatch):
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.cli.detach.time.sleep", interrupted)
    code = cli.execute(["ingest", str(many), "--out", str(tmp_path / "dataset"), "--detach"])
    monkeypatch.undo()
    assert code == interrupt.INTERRUPTED
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (job,) = jobs.jobs()
    wait_for(job, jobs.STOPPED)
    assert not (tmp_path / "dataset" / "dataset.json").exists()


def test_a_damaged_job_does_not_hide_the_others(state):
    for name, content in (("a", "{"), ("b", "[]"), ("c", '{"arguments": [], "cwd": "/", "pid": 1, "started": 0.0}')):
        (state / "feedline" / "jobs" / name).mkdir(parents=True)
        (state / "feedline" / "jobs" / name / "job.json").write_text(content)
    assert [job.name for job in jobs.jobs()] == ["c"]


def test_packages_of_the_working_directory_are_not_taken_for_ours(photos, tmp_path, capsys, monkeypatch):
    for name in ("pipeline", "beam_jobs", "trainer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    code, name, _ = feedline(capsys, "ingest", photos, "--out", "dataset", "--detach")
    assert code == 0
    assert feedline(capsys, "status", name.strip(), "--follow")[0] == 0


def test_news_that_cannot_be_written_cost_no_work(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.cli.bar.listener", None)
    gone = tmp_path / "gone" / "job"
    assert job_process.main(gone.parent / "file" / "x", ["verify", str(tmp_path / "nothing")]) == 2
    (tmp_path / "file").write_text("")
    code = job_process.main(tmp_path / "file", ["ingest", str(photos), "--out", str(tmp_path / "dataset")])
    assert code == 0
    assert (tmp_path / "dataset" / "dataset.json").is_file()


def test_a_process_number_that_was_given_away_again_is_not_the_job(tmp_path):
    job = jobs.Job(directory=tmp_path, arguments=(), cwd="/", pid=os.getpid(), started=0.0)
    assert job.state == jobs.DIED
    assert jobs.Job(directory=tmp_path, arguments=(), cwd="/", pid=os.getpid(), started=time.time()).state == "running"


def test_progress_is_read_as_it_was_told(tmp_path):
    stage = jobs.Stage(name="writing", done=Progress(3, 40, 1), total=Progress(9, 0, 0), seconds=1.5)
    job = jobs.Job(directory=tmp_path, arguments=(), cwd="/", pid=1, started=0.0)
    assert job.stage is None
    jobs.tell(tmp_path, stage)
    assert job.stage == stage


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(OptionError, match="set XDG_STATE_HOME"):
        jobs.start(["ingest"])
