"""Where Airflow looks for DAGs, read as Airflow reads it but without importing it, which takes seconds and writes."""

from __future__ import annotations

import configparser
import contextlib
import os


def dags_folder() -> str:
    """Returns the folder of DAGs of the Airflow of this user, which need not exist."""
    home = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):  # it is Airflow that complains of those
        parser.read(os.environ.get("AIRFLOW_CONFIG", os.path.join(home, "airflow.cfg")), encoding="utf-8")
    named = os.environ.get("AIRFLOW__CORE__DAGS_FOLDER") or parser.get("core", "dags_folder", fallback="")
    found = os.path.expandvars(os.path.expanduser(named)) if named else os.path.join(home, "dags")
    return os.path.abspath(found)


def hint(out: str, name: str) -> str:
    """Returns what to do with a DAG file: only to start it where Airflow finds it already.

    Args:
      out: the file.
      name: of the DAG.
    """
    folder, start = dags_folder(), f"airflow dags test {name}"
    real = os.path.realpath(folder)
    if os.path.commonpath([real, os.path.realpath(out)]) == real:  # folders in it are looked through too
        return f"it is in Airflow's DAGs folder, so try it: {start}"
    where = f" {folder}" if os.path.isdir(folder) else ""
    return f"put it into Airflow's DAGs folder{where}, then: {start}"
