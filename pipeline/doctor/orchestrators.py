"""What `feedline compile` for Airflow and for Kubeflow needs, and the Airflow or the cluster that runs its file."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from beam_jobs.errors import FeedlineError
from beam_jobs.storage import is_remote
from pipeline import config, doctor
from pipeline.doctor import NETWORK_TIMEOUT_S, Check

_PROBING_S = 120.0
_PROBE = Path(__file__).with_name("airflow_probe.py")
# Else importing Airflow writes a configuration and logs, and opens the database.
_UNTOUCHED = {"_AIRFLOW__AS_LIBRARY": "1"}
_MIGRATE = "airflow db migrate"
_ENVIRONMENT = "python3 -m venv airflow-env && airflow-env/bin/pip install -r constraints/airflow3.txt"
_INSTALL_AIRFLOW = f'in the checkout of Feedline: {_ENVIRONMENT} && export PATH="$PATH:$PWD/airflow-env/bin"'
_POSTGRES = "export AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=postgresql+psycopg2://USER:PASSWORD@HOST/airflow"
_DRIVERS = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
_SHARED = "every worker needs it at the same path"
_OTHER_ROOT = "feedline compile --target airflow -c pipeline.yaml --set root=/shared/work --out dags/feedline_dag.py"


def airflow_checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields what was found out about the Airflow of the program `airflow`, whose own Python is asked."""
    yield from doctor.basics("tfx")
    yield doctor.configured(settings)
    yield airflow_root(settings)
    home = os.path.abspath(os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow")))
    there = os.path.isdir(home)
    detail = f"{home}{'' if 'AIRFLOW_HOME' in os.environ else ', the default'}{'' if there else ', is not there'}"
    yield Check(name="AIRFLOW_HOME", ok=there, detail=detail, remedy=f"export AIRFLOW_HOME={home} && {_MIGRATE}")
    program = shutil.which("airflow")
    if not program:
        detail = "no program `airflow` on the PATH: the DAG file is written without one, and cannot be run here"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL_AIRFLOW, needed=False)
    elif there:
        yield from _installation(program, home)


def airflow_root(settings: Mapping[str, Any]) -> Check:
    """Checks that tasks share the root, in which ML Metadata is a file, and that it takes files."""
    found = str(settings.get("root") or "")
    if not found or is_remote(found):
        return Check(name="root", ok=not found, detail=f"{found or 'not set'}; {_SHARED}", remedy=_OTHER_ROOT)
    check = doctor.writable("root", found, _OTHER_ROOT)
    return dataclasses.replace(check, detail=f"{check.detail}; {_SHARED}") if check.ok else check


def _installation(program: str, home: str) -> Iterator[Check]:
    python = doctor.interpreter(program)
    if not python:
        detail = f"{program} is no script of Python, so nothing can be asked of it"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL_AIRFLOW, needed=False)
        return
    command = [python, "-W", "ignore", str(_PROBE), str(NETWORK_TIMEOUT_S)]
    code, answer, trouble = doctor.output_of(command, _PROBING_S, {"AIRFLOW_HOME": home, **_UNTOUCHED})
    if code:
        detail = f"{program} does not load: {doctor.last_line(trouble)}"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL_AIRFLOW)
        return
    found = json.loads(doctor.last_line(answer))
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


_KUBEFLOW_EXTRAS = ("tfx", "kubeflow")


def kubeflow_checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields what was found out about this machine and the settings. No cluster is asked: compiling needs none."""
    yield from doctor.basics(*_KUBEFLOW_EXTRAS)
    found = [doctor.configured(settings), kubeflow_image(settings), kubeflow_root(settings)]
    yield from found
    if settings and all(check.ok for check in found):  # else it would say the same a second time
        yield kubeflow_compiled(settings)


def kubeflow_image(settings: Mapping[str, Any]) -> Check:
    """Checks that the settings name a container image."""
    found = str(_kubeflow_section(settings).get("image") or "")
    word = config.placeholder_in_image(found)
    return Check(
        name="container image",
        ok=bool(found) and not word,
        detail=f"{found or 'kubeflow.image is not set'}{_stands(word)}",
        remedy="docker build -t REGISTRY/feedline:1 --build-arg EXTRAS=gcp,tfx,kubeflow . && docker push "
        "REGISTRY/feedline:1, then kubeflow: {image: REGISTRY/feedline:1} in pipeline.yaml",
        needed=bool(settings),
    )


def kubeflow_root(settings: Mapping[str, Any]) -> Check:
    """Checks that containers can share artifacts, through a bucket."""
    found = str(_kubeflow_section(settings).get("pipeline_root") or settings.get("root") or "")
    word = config.placeholder_in_path(found)
    return Check(
        name="bucket",
        ok=found.startswith("gs://") and not word,
        detail=f"{found or 'neither root nor kubeflow.pipeline_root is set'}{_stands(word)}",
        remedy="gcloud storage buckets create gs://BUCKET, then root: gs://BUCKET/DIR in pipeline.yaml",
        needed=bool(settings),
    )


def kubeflow_compiled(settings: Mapping[str, Any]) -> Check:
    """Compiles the pipeline into a temporary file."""
    with tempfile.TemporaryDirectory(prefix="feedline-doctor-") as directory:
        out = os.path.join(directory, "pipeline.yaml")
        try:
            from pipeline.runners.kubeflow import compile as compile_kubeflow

            compile_kubeflow(settings, out)
        except (FeedlineError, ImportError) as error:
            lacks = isinstance(error, ImportError) or isinstance(error.__cause__, ImportError)
            remedy = (
                doctor.install_command(f"{doctor.DISTRIBUTION}[{','.join(_KUBEFLOW_EXTRAS)}]") if lacks else doctor.SHOW
            )
            return Check(name="compile", ok=False, detail=doctor.last_line(str(error)), remedy=remedy)
        return Check(name="compile", ok=True, detail=f"{os.path.getsize(out):,} bytes of YAML")


def _stands(word: str) -> str:
    return f"; {word} stands for the name of yours" if word else ""


def _kubeflow_section(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    found = settings.get("kubeflow")
    return found if isinstance(found, Mapping) else {}
