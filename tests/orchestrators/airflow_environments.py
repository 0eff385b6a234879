"""Airflow 2.11 and 3, each in an environment that holds nothing else, made once and kept in `build/airflow`."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers.environments import ROOT, Skipped, make_environment
from pipeline.runs.history import newest_run, open_store

VERSIONS = {"2": ">=3.10,<3.13", "3": ">=3.10,<3.14"}  # of Python, by that of Airflow
_BUILT = {"2": ("python-nvd3", "unicodecsv"), "3": ()}  # have no wheel


@functools.cache
def bin_of(version: str) -> Path | str:
    """Returns the directory of the programs of an Airflow; why there is none, where it cannot be installed."""
    folder = ROOT / "build" / "airflow"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            requirements = ROOT / "constraints" / f"airflow{version}.txt"
            return make_environment(folder / version, requirements, VERSIONS[version], _BUILT[version]).parent
        except Skipped as error:
            return f"Airflow {version} cannot be installed: {error}"


class Airflow:
    """An Airflow of its own: environment, home, database in SQLite, folder of DAGs."""

    def __init__(self, version: str, home: Path) -> None:
        found = bin_of(version)
        if isinstance(found, str):
            pytest.skip(found)
        self.version, self.bin, self.home, self.dags = version, found, home, home / "dags"
        self.dags.mkdir()
        outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.environment = {
            **outside,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    def run(self, *arguments: str, timeout: int = 800) -> str:
        """Runs a command of Airflow, which has to succeed; returns its output."""
        with (self.home / "last.log").open("w+", encoding="utf-8") as log:
            with self.start(*arguments, log=log) as process:
                try:
                    code = process.wait(timeout)
                finally:
                    process.kill()
            log.seek(0)
            output = log.read()
        assert code == 0, output[-5000:]
        return output

    def start(self, *arguments: str, log=subprocess.DEVNULL) -> subprocess.Popen:
        """Starts a command of Airflow."""
        command = [str(self.bin / "airflow"), *arguments]
        return subprocess.Popen(command, env=self.environment, cwd=self.home, stdout=log, stderr=subprocess.STDOUT)

    def python(self, code: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Runs code in the Python of Airflow."""
        return subprocess.run(
            [str(self.bin / "python"), "-W", "ignore", "-c", code, *arguments],
            env=self.environment,
            cwd=self.home,
            input=given,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def task(self, run_id: str, name: str) -> dict:
        """Returns what the database has of a task of a run: its state, attempts and process."""
        query = "SELECT state, try_number, pid FROM task_instance WHERE run_id = ? AND task_id = ?"
        with contextlib.closing(sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True)) as database:
            [row] = database.execute(query, (run_id, name)).fetchall()
        return dict(zip(("state", "try_number", "pid"), row, strict=True))


def settings(photos: Path, root: Path, name: str) -> dict:
    return {
        "name": name,
        "root": str(root),
        "ingest": {"source": str(photos), "splits": {"train": 0.7, "eval": 0.3}, "shards": 2},
        "input": {"image_side_px": 32, "batch_size": 8},
        "train": {"epochs": 1, "deterministic": True},
        "evaluate": {"max_drop": 1.0, "above_largest_class": False},
        "airflow": {"retries": 1, "retry_delay_s": 1},
    }


def states(root: Path) -> dict[str, str]:
    return {name: step.state for name, step in newest_run(open_store(str(root / "metadata.sqlite"))).items()}


def outputs(root: Path) -> dict[str, int]:
    """Returns component/key -> number of outputs that were ever made; one each is what readers can work with."""
    found = [path.parent for path in (root / "artifacts").glob("*/*/*")]
    return {str(path.relative_to(root / "artifacts")): found.count(path) for path in found}
