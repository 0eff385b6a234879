"""Runs the blocks of a page, in its order and in one directory: shell, Python, and YAML as far as it can be tried."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.doc_pages import SHELL, Block, check_yaml
from tests.doc_places import SMALLER, given

# One epoch of small images and short measurements: what is shown is what runs, only less of it.
QUICK = {
    "FEEDLINE_TRAIN__EPOCHS": "1",
    "FEEDLINE_INPUT__BATCH_SIZE": "8",
    "FEEDLINE_INPUT__IMAGE_SIDE_PX": "32",
    "FEEDLINE_EVALUATE__ABOVE_LARGEST_CLASS": "false",  # of a handful of images no model is surely better
}
SHORTER = {"feedline bench input ": "feedline bench input --seconds 0.05 "}
_BLOCK_S = 600


class Page:
    """A page that is being run in the working directory.

    Attributes:
      printed: what the Python before printed.
    """

    def __init__(self, page: str, folder: Path, programs: Path) -> None:
        self._names: dict[str, Any] = {"__name__": page, **given(page)}
        self._folder = folder
        self._programs = programs
        self.printed = ""

    def run(self, block: Block) -> None:
        """Runs a block; a file is written, and nothing else happens to it.

        Raises:
          AssertionError: it fails, or prints something else than the page says.
        """
        place = f"{block.page}:{block.line}"
        if block.file:
            write(block, self._folder)
        elif block.language in SHELL:
            self.printed = run_shell(block, self._folder, self._programs)
        elif block.language == "python":
            self.printed = run_apart(block) if block.fresh else run_python(block, self._names)
        elif block.language == "yaml":
            try_yaml(yaml.safe_load(block.code))
        elif block.printed:
            assert self.printed.strip() == block.code.strip(), f"{place} is not what is printed"


def write(block: Block, folder: Path) -> None:
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.code, encoding="utf-8")
    if block.language == "python":
        compile(block.code, block.file, "exec")


# --- shell


def run_shell(block: Block, folder: Path, programs: Path) -> str:
    """Runs a block of shell commands as they stand; the first one that fails ends it. Returns what it prints.

    Args:
      block: the commands.
      folder: where they are run.
      programs: the directory of the `feedline` that they find.
    """
    code = block.code
    for shown, short in SHORTER.items():
        code = code.replace(shown, short)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    runs = re.search(r"^[^#\n]*feedline (?:run|demo)\b", code, re.MULTILINE)
    settings = QUICK if runs else {}  # what only looks would look at them too
    environment = {**settings, **os.environ, "PATH": path}
    command = ["bash", "-eu", "-o", "pipefail", "-c", code]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **streams) as shell:
        try:
            out, err = shell.communicate(timeout=_BLOCK_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # what it left running, too
    said = f"{block.page}:{block.line} ended with {shell.returncode}:\n{out[-2000:]}\n{err[-4000:]}"
    assert shell.returncode == block.exit_code, said
    assert "Traceback" not in err, said
    return out


# --- Python


def run_python(block: Block, names: dict[str, Any]) -> str:
    """Runs a block, takes a batch of every dataset that it made, and returns what it prints."""
    import tensorflow as tf

    before, code = dict(names), block.code
    for shown, small in SMALLER.get(block.page, {}).items():
        code = code.replace(shown, small)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        # As many empty lines before it as on the page, so that an error names the line there.
        exec(compile("\n" * (block.line - 1) + code, f"docs/{block.page}.md", "exec"), names)
    for name, value in names.items():
        if isinstance(value, tf.data.Dataset) and value is not before.get(name):
            assert next(iter(value), None) is not None, f"docs/{block.page}.md:{block.line}: {name} gives no batch"
    return out.getvalue()


def run_apart(block: Block) -> str:
    """Runs a block in a process of its own and returns what it prints."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-W", "ignore", "-c", block.code]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, f"docs/{block.page}.md:{block.line}: {found.stderr}"
    return found.stdout


# --- YAML


def try_yaml(values: Any) -> None:
    """Checks settings; those of the ingest make a dataset of `photos`, and those of the input give batches of it.

    Without settings of the ingest the batches are of `dataset`, where there is one.
    """
    check_yaml(values)
    wanted = values.get("input") or {}
    if not wanted or not Path("photos").is_dir():
        return
    for batch in batches(values.get("ingest") or {}, wanted):
        assert batch is not None


def batches(ingest: dict[str, Any], wanted: dict[str, Any]) -> Iterator[Any]:
    """The first batch of training, and the first of evaluation."""
    from pipeline.config import build
    from trainer.input_fn import FOREVER, make_dataset

    path = "dataset"
    if "pixels" in ingest or not Path(path).is_dir():
        path = ingested({"pixels": ingest.get("pixels", {})})
    config = build({"root": "work", "dataset": path, "input": wanted})
    for split, training in (("train", True), ("eval", False)):
        epochs = FOREVER if training else 1
        yield next(iter(make_dataset(path, split, config.input, training=training, epochs=epochs)), None)


def ingested(settings: dict[str, Any]) -> str:
    """Returns the path of a dataset that is made of `photos` by these settings."""
    from beam_jobs.ingest import run
    from pipeline.config import build

    splits = {"train": 0.7, "eval": 0.3}
    options = build({"root": "work", "ingest": {"source": "photos", "splits": splits, **settings}}).ingest
    out = f"tried_{len(list(Path().glob('tried_*')))}"
    run(replace(options, out=out))
    return out
