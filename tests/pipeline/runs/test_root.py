from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs.errors import GateFailed, OptionError
from pipeline.config import PipelineConfig, build
from pipeline.runs.history import open_store
from pipeline.runs.root import check_free, clear_failed, exclusive_run
from tests.pipeline.ledger import FAILED, RUNNING, Ledger

HOLD = """
import sys, time
from pipeline.runs.root import exclusive_run
from pipeline.config import build
with exclusive_run(build({"root": sys.argv[1], "ingest": {"source": "photos"}})):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def config(tmp_path) -> PipelineConfig:
    config = build({"root": str(tmp_path / "work"), "ingest": {"source": str(tmp_path / "photos")}})
    os.makedirs(config.root)
    return config


@pytest.fixture
def ledger(config) -> Ledger:
    """One execution that ended well, one that failed and one that was killed, each with its outputs."""
    ledger = Ledger(Path(config.metadata_path))
    ledger.run("one")
    examples = ("Examples", output(config, "ImageExampleGen/examples/1"), {})
    ledger.execute("one", "ImageExampleGen", {}, {"examples": examples})
    ledger.execute("one", "Trainer", state=FAILED)
    ledger.execute("one", "Trainer", state=RUNNING)
    output(config, "Trainer/model/2")
    output(config, "Trainer/model/3")
    output(config, "Trainer/model_run/3")
    return ledger


def enter(config: PipelineConfig) -> None:
    with exclusive_run(config):
        pass


def output(config: PipelineConfig, name: str) -> Path:
    path = Path(config.artifacts_dir) / name
    path.mkdir(parents=True)
    (path / "file").write_text("content")
    return path


def held(config: PipelineConfig) -> list[str]:
    return sorted(str(path.parent.relative_to(config.root)) for path in Path(config.root).rglob("file"))


def test_what_a_run_that_raises_leaves_is_removed_too_and_its_reason_is_kept(config, ledger):
    def run():
        with exclusive_run(config):
            ledger.execute("one", "Trainer", state=RUNNING)
            output(config, "Trainer/model/4")
            raise GateFailed("too many leaks")

    with pytest.raises(GateFailed, match="too many leaks"):
        run()
    assert held(config) == ["artifacts/ImageExampleGen/examples/1"]


def test_executions_of_a_killed_run_stop_counting_as_running(config, ledger):
    clear_failed(config)
    states = [execution.last_known_state for execution in open_store(config.metadata_path).get_executions()]
    assert states == [pb.Execution.COMPLETE, FAILED, FAILED]


def test_a_moved_root_loses_nothing_although_every_path_in_its_database_is_another(config, ledger, tmp_path):
    moved = tmp_path / "moved"
    os.rename(config.root, moved)
    there = build({"root": str(moved), "ingest": {"source": "photos"}})
    clear_failed(there)
    assert held(there) == ["artifacts/ImageExampleGen/examples/1"]


def test_files_between_a_component_and_its_launcher_go_and_what_the_next_attempt_takes_up_stays(config, ledger):
    output(config, "Trainer/.system/executor_execution/3/.temp")
    output(config, "ImageExampleGen/examples/.work-0a1b-2c3d")
    output(config, "ImageExampleGen/examples/notes of a person")
    clear_failed(config)
    assert held(config) == [
        "artifacts/ImageExampleGen/examples/.work-0a1b-2c3d",
        "artifacts/ImageExampleGen/examples/1",
        "artifacts/ImageExampleGen/examples/notes of a person",
    ]


def test_half_a_push_goes_and_versions_stay(config):
    for name in (".pushing-1700000001", "1700000000"):
        (Path(config.serving_dir) / name).mkdir(parents=True)
    clear_failed(config)
    assert os.listdir(config.serving_dir) == ["1700000000"]


def test_artifacts_of_a_lost_database_stop_the_run_instead_of_being_written_into(config, ledger):
    os.remove(config.metadata_path)
    before = held(config)
    with pytest.raises(OptionError, match=r"contains artifacts/\S+/\d, which is not in its metadata.sqlite;"):
        enter(config)
    assert held(config) == before


def test_a_root_is_held_by_one_process_until_it_dies(config):
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", HOLD, config.root], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(OptionError, match=rf"work is in use by another run: process {process.pid} on host "):
            enter(config)
        with pytest.raises(OptionError, match=rf"work is in use by another run: process {process.pid} on host "):
            check_free(config.root)
        process.kill()
    enter(config)
    check_free(config.root)
