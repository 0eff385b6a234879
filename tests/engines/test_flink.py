from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apache_beam as beam
import pytest

from beam_jobs import ingest
from beam_jobs.common.system import Progress, no_watch
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import FeedlineError
from beam_jobs.options import IngestOptions
from beam_jobs.runners import flink_job_server
from beam_jobs.runners.beam_job import run_job
from beam_jobs.runners.flink import LOCAL, Options, worker_path
from beam_jobs.stages import resume
from tests.beam_jobs.runs import files_under
from tests.command import feedline
from tests.engines import flink_parts
from tests.engines.flink_processes import Cluster, cluster, members, wait_until
from tests.make_images import crop, encode, jpeg

pytestmark = pytest.mark.flink
PER_CLASS, BUCKET = 150, 10
T = TypeVar("T")


@pytest.fixture(scope="module")
def jar() -> str:
    """The job server, which has the mini cluster in it; tests on Flink are skipped where it cannot be had."""
    return got(flink_parts.job_server)


def got(part: Callable[[], T]) -> T:
    try:
        return part()
    except flink_parts.Missing as reason:
        pytest.skip(f"no Flink here: {reason}")


@pytest.fixture(scope="module")
def standalone(jar, tmp_path_factory) -> Cluster:
    got(flink_parts.distribution)
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """A source of 300 photographs of 240 x 320 pixels, and two files that are none."""
    root = tmp_path_factory.mktemp("many")
    for label in ("china", "flower"):
        (root / label).mkdir()
        for number in range(PER_CLASS):
            pixels = crop(number, 240, 320, f"{label}.jpg")
            (root / label / f"{number:04d}.jpg").write_bytes(encode(pixels, "JPEG", quality=90))
        (root / label / "broken.jpg").write_bytes(b"no picture")
    return root


@pytest.fixture(scope="module")
def plain(many, tmp_path_factory) -> dict[str, bytes]:
    """The files of the dataset that the in-process runner makes of it."""
    out = tmp_path_factory.mktemp("plain")
    ingest.run(options_of(many, out))
    return files_under(out)


def options_of(source: Path, out: Path) -> IngestOptions:
    splits = {"train": 0.8, "eval": 0.2}
    return IngestOptions(
        source=str(source), out=str(out), splits=splits, shards=4, bucket_images=BUCKET, max_reject_ratio=0.01
    )


def engine(jar: str, **settings) -> Options:
    return Options(job_server_jar=jar, parallelism=2, java_memory="768m", **settings)


def test_the_command_on_an_embedded_cluster_makes_the_bytes_of_the_in_process_runner(jar, photos, tmp_path):
    here, there = (feedline("ingest", photos, "--out", tmp_path / name, *more) for name, more in commands(jar))
    assert there.returncode == 0, there.stderr
    assert "24 good, 0 rejected" in there.stderr
    assert there.stdout == here.stdout.replace(str(tmp_path / "here"), str(tmp_path / "there"))
    assert files_under(tmp_path / "there") == files_under(tmp_path / "here")


def test_verify_on_an_embedded_cluster_finds_what_this_process_finds(jar, dataset, tmp_path):
    shard = next((dataset / "Split-train").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1])
    (_, here), (_, there) = commands(jar)
    there = [*there, "--work", tmp_path / "work"]
    expected, done = (feedline("verify", dataset, "--json", *more) for more in (here, there))
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout) == (3, expected.stdout), done.stderr
    assert str(shard) in done.stdout
    assert list((tmp_path / "work").iterdir()) == []


def commands(jar: str) -> tuple[tuple[str, list[str]], ...]:
    settings = {"parallelism": 2, "job_server_jar": jar, "java_memory": "768m"}
    flink = [part for key, value in settings.items() for part in ("--runner-option", f"{key}={value}")]
    return ("here", []), ("there", ["--runner", "flink", *flink])


@pytest.mark.timeout(900)  # 200 s on two idle cores
def test_the_components_of_a_run_work_on_an_embedded_cluster(jar, photos, tmp_path):
    java = flink_job_server.find_java()
    with flink_job_server.running_server(
        flink_job_server.server_command(java, jar, LOCAL, "768m"), str(tmp_path)
    ) as endpoint:
        options = engine(jar)
        arguments = [*options.beam_arguments(worker_path(), options.cluster()), f"--job_endpoint={endpoint}"]
        settings = {
            "root": str(tmp_path / "root"),
            "beam_args": arguments,
            "ingest": {"source": str(photos), "splits": {"train": 0.7, "eval": 0.3}},
            "input": {"batch_size": 4},
            "train": {"epochs": 1},
            "evaluate": {"above_largest_class": False},
        }
        (tmp_path / "pipeline.yaml").write_text(json.dumps(settings))
        done = feedline("run", "--config", tmp_path / "pipeline.yaml", timeout=900)
    assert done.returncode == 0, done.stderr
    assert "24 written" in done.stdout
    assert "0 in train, 0 in eval" in done.stdout
    assert "on 4 images" in done.stdout
    log = (tmp_path / "flink.log").read_text()
    stages = "ExamineBuckets", "WriteShards", "GenerateStatistics[train]", "Analyze", "ExtractEvaluateAndWriteResults"
    assert [stage for stage in stages if f"]{stage}" not in log] == []


class ListFolder(beam.PTransform):
    """A stage that fails on a worker."""

    def expand(self, root):
        return root | beam.Create(["/nowhere"]) | beam.Map(os.listdir)


def test_what_fails_on_a_worker_is_one_line_that_names_the_log(jar, tmp_path):
    with pytest.raises(FeedlineError) as failed, engine(jar, retries=0, log_dir=str(tmp_path)).open() as make_pipeline:
        run_job("examining", Progress(1), ListFolder(), make_pipeline, no_watch)
    words = "examining failed: FileNotFoundError: [Errno 2] No such file or directory: '/nowhere'; run the same"
    assert str(failed.value).startswith(words)
    assert str(failed.value).endswith(f"; the log of Flink is {tmp_path / 'flink.log'}")
    assert "Traceback" in (tmp_path / "flink.log").read_text()


def test_an_image_that_a_worker_cannot_read_is_tried_again(jar, tmp_path, monkeypatch):
    monkeypatch.setattr(resume, "WAITS_S", (0.0, 0.0))
    (tmp_path / "bad.jpg").symlink_to("/proc/self/mem")  # no process can read its first byte
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "table.csv").write_text("image,label\n0.jpg,a\nbad.jpg,a\n1.jpg,b\n2.jpg,b\n")
    out = tmp_path / "out"
    options = IngestOptions(source=str(tmp_path / "table.csv"), out=str(out), splits={"all": 1}, bucket_images=2)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("retrying"):
            (tmp_path / "bad.jpg").unlink()
            (tmp_path / "bad.jpg").write_bytes(jpeg(9))

    with engine(jar, retries=0).open() as make_pipeline:
        result = ingest.run(options, make_pipeline, say)
    assert (result.counts.written, result.counts.rejected) == (4, 0)
    assert sum(line.startswith("retrying  1 unit of work") for line in lines) == 1
    assert verify(str(out)).problems == []


def test_two_task_managers_make_the_bytes_of_the_in_process_runner(jar, standalone, many, plain, tmp_path):
    place = f"localhost:{standalone.rest_port}"
    with engine(jar, flink_master=place).open() as make_pipeline:
        ingest.run(options_of(many, tmp_path / "out"), make_pipeline)
    assert files_under(tmp_path / "out") == plain


def command_on(standalone, jar: str, source: Path, out: Path, parallelism: int = 2) -> list[Path | str]:
    place = f"localhost:{standalone.rest_port}"
    settings = {"flink_master": place, "parallelism": parallelism, "job_server_jar": jar}
    options = [part for key, value in settings.items() for part in ("--runner-option", f"{key}={value}")]
    command = [Path(sys.executable).parent / "feedline", "ingest", source, "--out", out, "--runner", "flink"]
    same = options_of(source, out)
    splits = ",".join(f"{name}={share}" for name, share in same.splits.items())
    (out.parent / "ingest.yaml").write_text(f"ingest: {{bucket_images: {BUCKET}}}")
    more = ["--splits", splits, "--shards", same.shards, "--max-reject-ratio", 0.01, "-c", out.parent / "ingest.yaml"]
    return [*command, *options, *map(str, more)]


def test_an_interrupted_command_without_a_terminal_leaves_its_job_and_the_same_command_follows_it(
    jar, standalone, many, plain, tmp_path
):
    before = standalone.jobs()
    command = command_on(standalone, jar, many, tmp_path / "out", parallelism=1)  # slower than the second one starts
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **streams) as running:
        try:
            wait_until(lambda: standalone.jobs().keys() - before.keys(), 120)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 130
    assert "Traceback" not in said
    (job,) = standalone.jobs().keys() - before.keys()
    assert standalone.jobs()[job] in ("RUNNING", "FINISHED")
    [name] = re.findall(r"the job (\S+) on the Flink cluster at \S+ continues; run the same command to reattach", said)
    again = subprocess.run(command, check=False, timeout=300, **streams)
    assert again.returncode == 0, again.stderr
    assert f"reattached to the job {name} on the Flink cluster" in again.stderr
    assert files_under(tmp_path / "out") == plain
    assert sorted(state for one, state in standalone.jobs().items() if one not in before) == ["FINISHED"] * 3


def test_a_second_interrupt_on_a_terminal_ends_the_job_on_the_cluster(jar, standalone, many, tmp_path):
    before = standalone.jobs()
    command = command_on(standalone, jar, many, tmp_path / "out")
    terminal, stdin = pty.openpty()
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            wait_until(lambda: standalone.jobs().keys() - before.keys(), 120)
            running.send_signal(signal.SIGINT)
            while "press c and Enter, or Ctrl-C again, to cancel it" not in (line := running.stderr.readline()):
                assert line, "it ended without a question"
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
            os.close(terminal)
            os.close(stdin)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert "continues" not in said
    (job,) = standalone.jobs().keys() - before.keys()
    wait_until(lambda: standalone.jobs()[job] == "CANCELED", 30, standalone.tail)


def test_a_killed_command_ends_its_job_on_the_cluster_and_leaves_nothing_behind(jar, standalone, many, tmp_path):
    before = standalone.jobs()
    command = command_on(standalone, jar, many, tmp_path / "out")
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as running:
        try:
            wait_until(lambda: standalone.jobs().keys() - before.keys(), 120)
            assert list((tmp_path / "tmp").glob("feedline-flink-*"))
        finally:
            running.kill()
    (job,) = standalone.jobs().keys() - before.keys()
    wait_until(lambda: standalone.jobs()[job] == "CANCELED", 60, standalone.tail)
    wait_until(lambda: not list((tmp_path / "tmp").glob("feedline-flink-*")), 60)


def test_a_killed_task_manager_does_not_change_the_result(jar, standalone, many, plain, tmp_path):
    out, victim, before = tmp_path / "out", standalone.task_managers[-1], standalone.jobs()
    killer = threading.Thread(target=kill_half_way, args=(victim, out))
    killer.start()
    with engine(jar, flink_master=f"localhost:{standalone.rest_port}").open() as make_pipeline:
        ingest.run(options_of(many, out), make_pipeline)
    killer.join(60)
    assert victim.poll() == -signal.SIGKILL
    wait_until(lambda: not members(victim.pid), 20)  # its workers ended with it
    new = [state for job, state in standalone.jobs().items() if job not in before]
    assert sorted(new) == ["FAILED", "FINISHED", "FINISHED"]
    assert files_under(out) == plain


def kill_half_way(victim: subprocess.Popen, out: Path) -> None:
    buckets = (2 * PER_CLASS + 2) // BUCKET
    wait_until(lambda: len(list(out.glob("_work/examined/done-*.json"))) >= buckets // 3, 120)
    os.kill(victim.pid, signal.SIGKILL)
