"""Checks for `feedline compile` for Airflow and Kubeflow, and of the installation of Airflow."""

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

_PROBE_TIMEOUT_S = 120.0
_PROBE = Path(__file__).with_name("airflow_probe.py")
# Without this variable, the import of Airflow writes a configuration and logs, and opens the database.
_AS_LIBRARY = {"_AIRFLOW__AS_LIBRARY": "1"}
_MIGRATE = "airflow db migrate"
_CREATE_ENVIRONMENT = "python3 -m venv airflow-env && airflow-env/bin/pip install -r constraints/airflow3.txt"
_INSTALL_AIRFLOW = f'in the checkout of Feedline: {_CREATE_ENVIRONMENT} && export PATH="$PATH:$PWD/airflow-env/bin"'
_POSTGRES_REMEDY = "export AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=postgresql+psycopg2://USER:PASSWORD@HOST/airflow"
_DRIVERS = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
_SHARED_PATH = "every worker needs it at the same path"
_ROOT_REMEDY = "feedline compile --target airflow -c pipeline.yaml --set root=/shared/work --out dags/feedline_dag.py"


def airflow_checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Checks the installation of Airflow with the Python interpreter of the program `airflow`."""
    yield from doctor.package_checks("tfx")
    yield doctor.check_configuration(settings)
    yield airflow_root(settings)
    home = os.path.abspath(os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow")))
    has_home = os.path.isdir(home)
    detail = f"{home}{'' if 'AIRFLOW_HOME' in os.environ else ', the default'}{'' if has_home else ', does not exist'}"
    yield Check(name="AIRFLOW_HOME", ok=has_home, detail=detail, remedy=f"export AIRFLOW_HOME={home} && {_MIGRATE}")
    program = shutil.which("airflow")
    if not program:
        detail = "no program `airflow` on the PATH; the DAG file can be written without it, but not run here"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL_AIRFLOW, needed=False)
    elif has_home:
        yield from _installation_checks(program, home)


def airflow_root(settings: Mapping[str, Any]) -> Check:
    """Checks that the root is local and writable, because all tasks use the ML Metadata database in it."""
    root = str(settings.get("root") or "")
    if not root or is_remote(root):
        return Check(name="root", ok=not root, detail=f"{root or 'not set'}; {_SHARED_PATH}", remedy=_ROOT_REMEDY)
    check = doctor.writable("root", root, _ROOT_REMEDY)
    return dataclasses.replace(check, detail=f"{check.detail}; {_SHARED_PATH}") if check.ok else check


def _installation_checks(program: str, home: str) -> Iterator[Check]:
    """Checks Airflow, its database and its DAGs folder with the Python interpreter of `program`."""
    python = doctor.interpreter(program)
    if not python:
        detail = f"{program} is not a Python script, so its installation cannot be checked"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL_AIRFLOW, needed=False)
        return
    command = [python, "-W", "ignore", str(_PROBE), str(NETWORK_TIMEOUT_S)]
    code, output, errors = doctor.run_program(command, _PROBE_TIMEOUT_S, {"AIRFLOW_HOME": home, **_AS_LIBRARY})
    if code:
        detail = f"{program} does not load: {doctor.last_line(errors)}"
        yield Check(name="airflow", ok=False, detail=detail, remedy=_INSTALL_AIRFLOW)
        return
    properties = json.loads(doctor.last_line(output))
    yield Check(name="airflow", ok=True, detail=f"{properties['version']}, {program}")
    yield _database_check(properties, python)
    folder = properties["dags_folder"]
    has_folder = os.path.isdir(folder)
    detail = f"{folder}{'' if has_folder else ' does not exist'}"
    yield Check(name="dags folder", ok=has_folder, detail=detail, remedy=f"mkdir -p {folder}")


def _database_check(properties: Mapping[str, Any], python: str) -> Check:
    url = properties["database"]
    if properties["unreachable"]:
        return Check(name="database", ok=False, detail=f"{url}: {properties['unreachable']}", remedy=_POSTGRES_REMEDY)
    if properties["missing_driver"]:
        driver = _DRIVERS.get(properties["missing_driver"], properties["missing_driver"])
        remedy = f"{shlex.quote(python)} -m pip install {driver}"
        return Check(name="database", ok=False, detail=f"{url} needs {properties['missing_driver']}", remedy=remedy)
    if not properties["migrated"]:
        return Check(name="database", ok=False, detail=f"{url} lacks the tables of this version", remedy=_MIGRATE)
    return Check(name="database", ok=True, detail=f"{url}, migrated")


_KUBEFLOW_EXTRAS = ("tfx", "kubeflow")


def kubeflow_checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Checks this machine and the settings; compiling needs no cluster."""
    yield from doctor.package_checks(*_KUBEFLOW_EXTRAS)
    checks = [doctor.check_configuration(settings), kubeflow_image(settings), kubeflow_root(settings)]
    yield from checks
    if settings and all(check.ok for check in checks):  # otherwise compiling fails with the same errors
        yield kubeflow_compilation(settings)


def kubeflow_image(settings: Mapping[str, Any]) -> Check:
    """Checks that the settings name a container image."""
    image = str(_kubeflow_section(settings).get("image") or "")
    placeholder = config.placeholder_in_image(image)
    return Check(
        name="container image",
        ok=bool(image) and not placeholder,
        detail=f"{image or 'kubeflow.image is not set'}{_placeholder_hint(placeholder)}",
        remedy="docker build -t REGISTRY/feedline:1 --build-arg EXTRAS=gcp,tfx,kubeflow . && docker push "
        "REGISTRY/feedline:1, then kubeflow: {image: REGISTRY/feedline:1} in pipeline.yaml",
        needed=bool(settings),
    )


def kubeflow_root(settings: Mapping[str, Any]) -> Check:
    """Checks that the containers share artifacts in a bucket."""
    root = str(_kubeflow_section(settings).get("pipeline_root") or settings.get("root") or "")
    placeholder = config.placeholder_in_path(root)
    is_usable = root.startswith("gs://") and not placeholder
    detail = f"{root or 'neither root nor kubeflow.pipeline_root is set'}{_placeholder_hint(placeholder)}"
    remedy = "gcloud storage buckets create gs://BUCKET, then root: gs://BUCKET/DIR in pipeline.yaml"
    return Check(name="bucket", ok=is_usable, detail=detail, remedy=remedy, needed=bool(settings))


def kubeflow_compilation(settings: Mapping[str, Any]) -> Check:
    """Compiles the pipeline into a temporary file."""
    with tempfile.TemporaryDirectory(prefix="feedline-doctor-") as directory:
        out = os.path.join(directory, "pipeline.yaml")
        try:
            from pipeline.runners.kubeflow import compile as compile_kubeflow

            compile_kubeflow(settings, out)
        except (FeedlineError, ImportError) as error:
            is_missing = isinstance(error, ImportError) or isinstance(error.__cause__, ImportError)
            install = doctor.install_command(f"{doctor.DISTRIBUTION}[{','.join(_KUBEFLOW_EXTRAS)}]")
            remedy = install if is_missing else doctor.SHOW_CONFIG
            return Check(name="compile", ok=False, detail=doctor.last_line(str(error)), remedy=remedy)
        return Check(name="compile", ok=True, detail=f"{os.path.getsize(out):,} bytes of YAML")


def _placeholder_hint(placeholder: str) -> str:
    return f"; replace {placeholder} with a real name" if placeholder else ""


def _kubeflow_section(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    section = settings.get("kubeflow")
    return section if isinstance(section, Mapping) else {}
