"""The doctor on this machine as it is, and on this machine with one thing broken at a time."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from beam_jobs import stack
from beam_jobs.errors import OptionError
from pipeline import doctor
from pipeline.cli import execute
from pipeline.cli.json_schema import result_schema
from pipeline.doctor import TARGETS, Check, local
from tests.command import feedline


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed distribution as its metadata would be if it asked for other things."""
    folder = tmp_path / "site" / "feedline-9.dist-info"
    folder.mkdir(parents=True)
    asked = [
        "Requires-Dist: click>=8.1",
        "Requires-Dist: numpy<1",
        'Requires-Dist: no-such-package[fast]>=2 ; extra == "tfx"',
        'Requires-Dist: yet-another ; extra == "other"',
        'Requires-Dist: not-on-this-system ; sys_platform == "win32" and extra == "tfx"',
    ]
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", "Name: feedline", "Version: 9", *asked]))
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


# --- checks and targets


def test_a_check_that_fails_has_to_say_what_repairs_it():
    with pytest.raises(ValueError, match="'java' failed with 'none' and has no remedy"):
        Check(name="java", ok=False, detail="none")


def test_every_target_has_its_module_of_checks():
    for target, place in TARGETS.items():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), target
    with pytest.raises(OptionError, match="target is 'spark'; it must be one of local, flink"):
        list(doctor.run("spark", {}))


# --- what every target needs


def test_a_package_that_is_missing_or_too_new_is_named_with_the_command_that_installs_it(distribution):
    core, extra = by_name(doctor.packages("")), by_name(doctor.packages("tfx"))
    assert core.keys() == {"numpy"}
    assert core["numpy"].detail.endswith("but <1 is required")
    assert core["numpy"].remedy.endswith("pip install 'numpy<1'")
    assert extra.keys() == {"no-such-package"}
    assert extra["no-such-package"].detail == "is not installed, but >=2 is required"
    assert extra["no-such-package"].remedy.endswith("pip install 'no-such-package[fast]>=2'")


def test_the_install_command_installs_with_what_there_is():
    program, *arguments = doctor.install_command("--version").rpartition("&& ")[2].split()
    if arguments[0] == "-m" and "ensurepip" in doctor.install_command("x"):
        program, arguments = sys.executable, ["-m", "ensurepip", "--version"]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    assert "No module" not in done.stderr


def test_feedline_is_installed_from_its_checkout():
    remedy = doctor.install_command("--force-reinstall", "feedline[tfx,kubeflow]")
    assert remedy.startswith("in the checkout of Feedline: ")
    assert remedy.endswith(f"pip install -c {stack.constraints()} --force-reinstall '.[tfx,kubeflow]'")
    assert doctor.install_command("--no-deps", "feedline").endswith(f"pip install -c {stack.constraints()} --no-deps .")
    assert doctor.install_command("click>=8").endswith("pip install 'click>=8'")
    assert "checkout" not in doctor.install_command("click>=8")


def test_a_package_of_the_system_takes_root():
    assert doctor.install_system_command("jq").split()[0] == ("apt-get" if os.geteuid() == 0 else "sudo")


def test_a_directory_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    deep = str(tmp_path / "new" / "deeper")
    assert doctor.writable("root", deep, "r").mark == "ok"
    assert not os.path.exists(deep)
    assert doctor.writable("root", str(tmp_path / "file" / "below"), "r").detail.endswith("file is a file")
    assert doctor.writable("root", "gs://bucket/x", "r").detail == "gs://bucket/x is not on this machine"


def test_a_directory_that_takes_no_files_is_named_with_who_cannot_write_and_what_repairs_it(locked):
    new = doctor.writable("root", f"{locked.path}/work", "feedline run --root DIR")
    assert new.mark == "missing"
    assert new.detail == f"{locked.path} cannot be written by {locked.user}: Permission denied"
    assert new.remedy == f"{locked.repair}, or feedline run --root DIR"


def test_a_program_that_hangs_or_is_not_there_is_given_up():
    assert doctor.run_program([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)[0] == -1
    assert doctor.run_program(["/no/such/program"], 1)[0] == -1


# --- local


def test_a_machine_with_too_little_memory_for_any_run_is_warned_of(monkeypatch):
    assert local.memory().detail.split()[1:3] == ["GB", "free,"]
    for free, mark in ((1_900_000_000, "warn"), (2_000_000_000, "ok")):
        monkeypatch.setattr(local.system, "free_bytes", lambda free=free: free)
        assert local.memory().mark == mark


def test_what_a_run_would_refuse_is_said_before(photos, here):
    good = {"root": str(here / "work"), "ingest": {"source": str(photos)}}
    assert local.configuration({}).ok
    assert local.configuration(good).ok
    assert local.configuration({**good, "root": str(photos / "work")}).detail.endswith("a run must not change")
    assert local.configuration({**good, "ingest": {"source": "nowhere"}}).detail.startswith(f"{here}/nowhere does")
    assert "train.epochs" in local.configuration({**good, "train": {"epochs": "x"}}).detail
    assert local.configuration({**good, "ingest": {"source": "s3://no-such-bucket/x"}}).ok  # which is not asked
    assert list(here.iterdir()) == []


def test_a_tensorflow_that_does_not_load_is_named(tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('libcudart.so.12 is not there')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (check,) = local.tensorflow()
    assert (check.mark, check.detail) == ("missing", "they do not load: ImportError: libcudart.so.12 is not there")


@pytest.mark.e2e
def test_the_command_says_that_this_machine_is_ready(photos, tmp_path):
    (tmp_path / "pipeline.yaml").write_text(f"root: work\ningest: {{source: {json.dumps(str(photos))}}}\n")
    done = feedline("doctor", "--config", "pipeline.yaml", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert list(Draft202012Validator(result_schema("doctor")).iter_errors(said)) == []
    assert (done.returncode, said["target"], said["ready"]) == (0, "local", True), done.stderr
    marks = {check["name"]: check["mark"] for check in said["checks"]}
    assert marks["tensorflow and tfx"] == marks["beam"] == marks["configuration"] == "ok"
    assert {"packages", "packages of tfx", "memory", "root"} <= marks.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.yaml"]


# --- the command


def test_the_exit_code_is_3_when_something_is_missing_and_every_line_says_what_repairs_it(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert execute(["doctor", "--target", "flink"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("flink: ")
    assert lines[-1].endswith("1 missing")
    (index,) = [number for number, line in enumerate(lines) if line.startswith("missing  java  ")]
    assert lines[index].endswith("Flink needs Java, and there is none in PATH")
    assert lines[index + 1].strip().startswith("repair:  ")
    assert lines[index + 1].endswith("apt-get install -y default-jre-headless")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "spark"], "there is no --target 'spark'; known are local, flink"),
        (["--config", "no.yaml"], "config no.yaml cannot be read: it does not exist; `feedline init` creates one"),
    ],
)
def test_a_wrong_request_is_code_2(refused, arguments, message):
    assert message in refused("doctor", *arguments)
