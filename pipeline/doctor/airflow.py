"""What `feedline compile --target airflow`, and the Airflow that runs its file, need."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from beam_jobs.storage import is_remote
from pipeline.doctor import NETWORK_TIMEOUT_S, Check, common

_PROBING_S = 120.0
_PROBE = Path(__file__).with_name("airflow_probe.py")
# Else importing Airflow writes a configuration and logs, and opens the database.
_UNTOUCHED = {"_AIRFLOW__AS_LIBRARY": "1"}
_MIGRATE = "airflow db migrate"
_ENVIRONMENT = "python3 -m venv airflow-env && airflow-env/bin/pip install -r constraints/airflow3.txt"
_INSTALL = f'in the checkout of Feedline: {_ENVIRONMENT} && export PATH="$PATH:$PWD/airflow-env/bin"'
_POSTGRES = "export AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=postgresql+psycopg2://USER:PASSWORD@HOST/airflow"
_DRIVERS = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
_SHARED = "every worker needs it at the same path"
_OTHER_ROOT = "feedline compile --target airflow -c pipeline.yaml --set root=/shared/work --out dags/feedline_dag.py"


def checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields what was found out about the Airflow of the program `airflow`, whose own Python is asked."""
    yield from common.basics("tfx")
    yield common.configured(settings)
    yield root(settings)
    home = os.path.abspath(os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow")))
    there = os.path.isdir(home)
    detail = f"{home}{'' if 'AIRFLOW_HOME' in os.environ else ', the default'}{'' if there else ', is not there'}"
    yield Check(name="AIRFLOW_HOME", ok=there, detail=detail, remedy=f"export AIRFLOW_HOME={home} && {_MIGRATE}")
    program = shutil.which("airflow")
    if not program:
        detail = "no program `airflow` on the PATH: the DAG file is written without one, and cannot be run here"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL, needed=False)
    elif there:
        yield from _installation(program, home)


def root(settings: Mapping[str, Any]) -> Check:
    """Checks that tasks share the root, in which ML Metadata is a file, and that it takes files."""
    found = str(settings.get("root") or "")
    if not found or is_remote(found):
        return Check(name="root", ok=not found, detail=f"{found or 'not set'}; {_SHARED}", remedy=_OTHER_ROOT)
    check = common.writable("root", found, _OTHER_ROOT)
    return dataclasses.replace(check, detail=f"{check.detail}; {_SHARED}") if check.ok else check


def _installation(program: str, home: str) -> Iterator[Check]:
    python = common.interpreter(program)
    if not python:
        detail = f"{program} is no script of Python, so nothing can be asked of it"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL, needed=False)
        return
    command = [python, "-W", "ignore", str(_PROBE), str(NETWORK_TIMEOUT_S)]
    code, answer, trouble = common.output(command, _PROBING_S, {"AIRFLOW_HOME": home, **_UNTOUCHED})
    if code:
        detail = f"{program} does not load: {common.last_line(trouble)}"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL)
        return
    found = json.loads(common.last_line(answer))
    yield Check(name="airflow", ok=True, detail=f"{found['version']}, {program}")
    yield _database(found, python)
    folder = found["dags_folder"]
    there = os.path.isdir(folder)
    detail = f"{folder}{'' if there else ' is not there'}"
    yield Check(name="dags folder", ok=there, detail=detail, remedy=f"mkdir -p {folder}")


def _database(found: Mapping[str, Any], python: str) -> Check:
    url = found["database"]
    if found["unreachable"]:
        return Check(name="database", ok=False, detail=f"{url}: {found['unreachable']}", remedy=_POSTGRES)
    if found["missing_driver"]:
        driver = _DRIVERS.get(found["missing_driver"], found["missing_driver"])
        remedy = f"{shlex.quote(python)} -m pip install {driver}"
        return Check(name="database", ok=False, detail=f"{url} needs {found['missing_driver']}", remedy=remedy)
    if not found["migrated"]:
        return Check(name="database", ok=False, detail=f"{url} lacks the tables of this version", remedy=_MIGRATE)
    return Check(name="database", ok=True, detail=f"{url}, migrated")
