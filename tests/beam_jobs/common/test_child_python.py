"""Nobody's files in the working directory are executed: every place of the product that starts Python, and commands."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs.common import child_python
from beam_jobs.common.process_pool import Pool
from beam_jobs.runners import flink_job_server
from pipeline.doctor import flink, local, orchestrators
from tests.make_images import jpeg

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
EMPTY = os.pathsep  # two empty elements
COMMAND = ("json.py", "numpy.py", "tensorflow.py", "beam_jobs/__init__.py")
INGEST = ("ingest", ".", "--out", "../dataset", "--splits", "all=1", "--max-reject-ratio", "1")
# What Python itself executes before the first line of a command, if the user has it look there.
EARLIER = ("sitecustomize.py", "pipeline/__init__.py")
HOSTILE = (*COMMAND, *EARLIER, "trainer/__init__.py", "signal.py", "typing.py", "platform.py")


def lay(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(folder / 'executed')!r}, 'a').write({name!r} + ' ')\nraise SystemExit(7)\n")


def executed(folder: Path) -> str:
    path = folder / "executed"
    return path.read_text() if path.exists() else ""


@pytest.fixture
def hostile(tmp_path, monkeypatch) -> Path:
    """The working directory: somebody's archive was unpacked there."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    lay(folder, HOSTILE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", [*sys.path, ""])  # a notebook has it first, and this test would be hit itself
    return folder


def decode(tmp_path):
    pool = Pool("beam_jobs.images.sandbox.worker", "no start")
    with pool.child(1) as child:
        assert child.pid
    pool.close()


def export_model(tmp_path):
    import keras

    from trainer import InputOptions, parse_ops
    from trainer.serving import export

    rest = {"ops": parse_ops(InputOptions(image_side_px=8).eval_spec), "labels": ("a", "b"), "side_px": 8}
    inputs = keras.Input([8, 8, 3], dtype="uint8")
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(keras.layers.Flatten()(inputs)))
    path = str(tmp_path / "exported")
    export._export_with_tensorflow(model, {**rest, "path": path, "record_ops": (), "spec": export.ServingSpec()})
    assert os.path.exists(os.path.join(path, "saved_model.pb"))


def load_tensorflow(tmp_path):
    assert next(iter(local.tensorflow())).ok


def probe_airflow(tmp_path):
    (tmp_path / "airflow").write_text(f"#!{sys.executable}\n")
    # It was asked, in this very environment.
    check = next(iter(orchestrators._installation_checks(str(tmp_path / "airflow"), str(tmp_path))))
    assert check.ok or "No module named 'airflow" in check.detail


def ask_python(tmp_path):
    (tmp_path / "script").write_text(f"#!{sys.executable}\n")
    assert flink._python_version(str(tmp_path / "script")) == platform.python_version()


def start_server(tmp_path):
    show = child_python.command("import os; print(repr(os.environ.get('PYTHONPATH')))")
    with open(tmp_path / "log", "w+b") as log:
        assert flink_job_server._start_server(show, flink_job_server._NO_LEFTOVERS, log).wait(60) == 0
        log.seek(0)
        assert log.read().strip() == b"None"  # the workers of the server have it too


PLACES = (decode, export_model, load_tensorflow, probe_airflow, ask_python, start_server)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_no_child_executes_files_of_the_working_directory(place, hostile, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", EMPTY)
    place(tmp_path)
    assert executed(hostile) == ""


def test_decoders_leave_the_working_directory_out_even_where_it_is_named(hostile, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f".{os.pathsep}{hostile}")
    decode(tmp_path)
    assert executed(hostile) == ""


def test_python_is_started_in_one_place():
    """The rest is `-I` on one file, and text for the user."""
    others = {"beam_jobs/runners/flink_job_server.py", "pipeline/doctor/__init__.py"}
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("beam_jobs", "components", "pipeline", "trainer")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"sys\.executable|\bmultiprocessing\b|ProcessPool", path.read_text(encoding="utf-8"))
    }
    assert found == {"beam_jobs/common/child_python.py", *others}


@pytest.mark.parametrize(("python_path", "names"), [("", HOSTILE), (EMPTY, COMMAND)], ids=["none", "empty elements"])
@pytest.mark.parametrize(
    "command",
    [[BIN / "feedline", *INGEST], [BIN / "feedline-worker", "--help"], [sys.executable, "-m", "pipeline", *INGEST]],
    ids=["feedline", "worker", "module"],
)
def test_no_command_executes_files_of_the_working_directory(command, python_path, names, tmp_path):
    folder = tmp_path / "hostile"
    (folder / "cat").mkdir(parents=True)
    # With `-m` and with an empty element, Python itself looks there for the package of the command.
    names = COMMAND if "-m" in command else names
    lay(folder, names)
    for number in range(8):
        (folder / "cat" / f"{number}.jpg").write_bytes(jpeg(number))
    environ = {**os.environ, "PYTHONPATH": python_path}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=250)
    assert (done.returncode, executed(folder)) == (0, ""), done.stderr


def test_a_container_executes_no_file_of_the_working_directory(hostile):
    from pipeline.runners import kubeflow_container

    code = kubeflow_container.COMMAND[2].removesuffix("; main()")  # which imports TFX
    subprocess.run([sys.executable, "-c", code], check=True, env=child_python.environment())
    assert executed(hostile) == ""


@pytest.mark.parametrize("named", [".", "HERE", f"/nowhere{os.pathsep}."])
def test_a_working_directory_that_pythonpath_names_is_searched(named, tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text("print('mine')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", named.replace("HERE", str(tmp_path)))
    command = child_python.command("import my_model")
    done = subprocess.run(command, env=child_python.environment(), capture_output=True, text=True)
    assert done.stdout == "mine\n", done.stderr


def test_children_import_this_very_product(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.path", ["", *(place for place in sys.path if Path(place) != ROOT)])
    other = tmp_path / "beam_jobs"
    other.mkdir()
    (other / "__init__.py").write_text("")
    sys.path.append(str(tmp_path))
    code = "import beam_jobs; print(beam_jobs.__file__)"
    done = subprocess.run(
        child_python.command(code, flags=("-S",)), env=child_python.environment(), capture_output=True, text=True
    )
    assert Path(done.stdout.strip()) == ROOT / "beam_jobs" / "__init__.py", done.stderr


def test_a_directory_that_is_gone_is_no_error(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setattr("sys.path", ["", "/somewhere"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert child_python.import_path() == ["/somewhere"]
