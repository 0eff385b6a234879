"""What `feedline compile --target airflow`, and the Airflow that runs its file, need."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs import child_python
from beam_jobs.storage import is_remote
from pipeline.doctor import NETWORK_TIMEOUT_S, Check, common

_PROBING_S = 120.0
_PROBE = "from pipeline.doctor.airflow_probe import main; main(float(sys.argv[1]))"
# Else importing Airflow writes a configuration and logs, and opens the database.
_UNTOUCHED = {"_AIRFLOW__AS_LIBRARY": "1"}
_MIGRATE = "airflow db migrate"
_POSTGRES = "export AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=postgresql+psycopg2://USER:PASSWORD@HOST/airflow"
_DRIVERS = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
_SHARED = "every worker needs it at the same path"
_OTHER_ROOT = "feedline compile --target airflow -c pipeline.yaml --set root=/shared/work --out dags/feedline_dag.py"
_ONE_MACHINE = ("SequentialExecutor", "LocalExecutor")


def checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields what was found out about this machine's Airflow, which is asked in a process of its own."""
    yield from common.basics("tfx", "airflow")
    yield common.configured(settings)
    yield root(settings)
    home = os.path.abspath(os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow")))
    there = os.path.isdir(home)
    detail = f"{home}{'' if 'AIRFLOW_HOME' in os.environ else ', the default'}{'' if there else ', is not there'}"
    yield Check(name="AIRFLOW_HOME", ok=there, detail=detail, remedy=f"export AIRFLOW_HOME={home} && {_MIGRATE}")
    if there and importlib.util.find_spec("airflow"):
        yield from _installation(home)


def root(settings: Mapping[str, Any]) -> Check:
    """Checks that tasks share the root, in which ML Metadata is a file, and that it takes files."""
    found = str(settings.get("root") or "")
    if not found or is_remote(found):
        return Check(name="root", ok=not found, detail=f"{found or 'not set'}; {_SHARED}", remedy=_OTHER_ROOT)
    check = common.writable("root", found, _OTHER_ROOT, common.LEAST_ROOT_BYTES)
    return dataclasses.replace(check, detail=f"{check.detail}; {_SHARED}") if check.ok else check


def _installation(home: str) -> Iterator[Check]:
    code, said, trouble = common.output(
        child_python.command(_PROBE, str(NETWORK_TIMEOUT_S), flags=("-W", "ignore")),
        _PROBING_S,
        {"AIRFLOW_HOME": home, **_UNTOUCHED},
    )
    if code:
        detail = f"Airflow does not load: {common.last_line(trouble)}"
        yield Check(name="airflow", ok=False, detail=detail, remedy=common.install("feedline[airflow]"))
        return
    found = json.loads(common.last_line(said))
    yield Check(name="airflow", ok=True, detail=found["version"])
    yield _database(found)
    yield _executor(found)
    folder = found["dags_folder"]
    there = os.path.isdir(folder)
    detail = f"{folder}{'' if there else ' is not there'}"
    yield Check(name="dags folder", ok=there, detail=detail, remedy=f"mkdir -p {folder}")


def _database(found: Mapping[str, Any]) -> Check:
    url = found["database"]
    if found["unreachable"]:
        return Check(name="database", ok=False, detail=f"{url}: {found['unreachable']}", remedy=_POSTGRES)
    if found["missing_driver"]:
        remedy = common.install(_DRIVERS.get(found["missing_driver"], found["missing_driver"]))
        return Check(name="database", ok=False, detail=f"{url} needs {found['missing_driver']}", remedy=remedy)
    if not found["migrated"]:
        return Check(name="database", ok=False, detail=f"{url} lacks the tables of this version", remedy=_MIGRATE)
    if url.startswith("sqlite"):
        detail = f"{url}, migrated; SQLite is for trying Airflow out"
        return Check(name="database", ok=False, detail=detail, remedy=f"{_POSTGRES} && {_MIGRATE}", needed=False)
    return Check(name="database", ok=True, detail=f"{url}, migrated")


def _executor(found: Mapping[str, Any]) -> Check:
    name = found["executor"]
    where = "" if name in _ONE_MACHINE else "; its workers need Feedline, the images and the root at the same paths"
    return Check(name="executor", ok=True, detail=f"{name}{where}")
