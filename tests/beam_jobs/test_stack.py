from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata

import pytest

from beam_jobs import stack


@pytest.fixture
def installed(monkeypatch) -> dict[str, str]:
    """Distribution -> version that this environment seems to have."""
    versions: dict[str, str] = {}

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(stack.metadata, "version", version)
    return versions


@pytest.mark.parametrize(
    ("versions", "line"),
    [
        (
            {"tensorflow": "2.21.0", "tfx": "1.21.0", "apache-beam": "2.77.0"},
            "current stack: TensorFlow 2.21.0, TFX 1.21.0, Beam 2.77.0",
        ),
        ({"tensorflow": "2.16.2", "apache-beam": "2.74.0"}, "legacy stack: TensorFlow 2.16.2, no TFX, Beam 2.74.0"),
        ({}, "no stack: no TensorFlow, no TFX, no Beam"),
    ],
)
def test_one_line_says_which_stack_this_is_and_what_it_lacks(installed, versions, line):
    installed.update(versions)
    assert stack.summary() == f"{line}, Python {platform.python_version()}"


def _imported(places: str = "", level: str | None = None, then: str = "") -> subprocess.CompletedProcess:
    """Imports TensorFlow in a quiet process, and runs more."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment |= {"PYTHONPATH": places} if places else {}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": level} if level else {}
    code = "from beam_jobs import stack; stack.quieten_tensorflow(); import tensorflow" + then
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)


def test_tensorflow_is_imported_without_a_word_on_standard_error():
    done = _imported()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("level", "kept"),
    [(None, ["a library speaks"]), ("0", ["I0000 00:00:17.5 9 port.cc:1] a note", "a library speaks"])],
)
def test_an_import_that_fails_keeps_its_words_and_a_level_its_notes(tmp_path, level, kept):
    (tmp_path / "tensorflow.py").write_text(
        'import os\nos.write(2, b"I0000 00:00:17.5 9 port.cc:1] a note\\na library speaks\\n")\n'
        'raise ImportError("broken")'
    )
    done = _imported(f"{tmp_path}{os.pathsep}{os.getcwd()}", level)
    assert done.returncode == 1
    *_, last = lines = done.stderr.splitlines()
    assert (lines[: len(kept)], last) == (kept, "ImportError: broken")


def test_words_of_python_pass_an_import_of_tensorflow_that_a_process_does_not_outlive(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import logging, os, sys\n"
        'print("progress", file=sys.stderr)\n'
        "handler = logging.StreamHandler()\n"
        'if "LEAVE" in os.environ: os._exit(143)'
    )
    places = f"{tmp_path}{os.pathsep}{os.getcwd()}"
    later = "; tensorflow.handler.handle(tensorflow.logging.makeLogRecord({'msg': 'logged later'}))"
    assert _imported(places, then=later).stderr.splitlines() == ["progress", "logged later"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAVE", "1")
        left = _imported(places)
    assert (left.returncode, left.stderr) == (143, "progress\n")
