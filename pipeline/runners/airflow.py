"""Airflow: compiles the pipeline to a DAG with a task for each component.

The Airflow runner of TFX uses an older launcher, which does not call the driver that detects changed images, and a
repeated task fails because its first attempt has already registered the output artifact. Therefore, a task runs its
node of the compiled pipeline with the launcher of the local runner, which has the cache and the resolvers.

Airflow and Feedline need separate environments, because their packages conflict. The DAG file contains the names of the
tasks, and the code of `airflow_dag_template`, which imports Airflow and starts tasks in the environment of Feedline.
The DAGs folder is determined without importing Airflow, because the import takes seconds and writes files.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import dataclasses
import os
import pprint
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic.dataclasses import dataclass

from beam_jobs.common import yaml_text
from beam_jobs.common.settings import STRICT, Count, NotNegative, Options, from_mapping
from beam_jobs.errors import OptionError
from beam_jobs.storage import disk, is_remote
from pipeline import config as configuration
from pipeline.config import PipelineConfig
from pipeline.runners import airflow_tasks, local


def dags_folder() -> str:
    """Returns the path of the DAGs folder in the Airflow settings of this user; the folder may not exist."""
    home = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):  # Airflow itself reports these errors
        parser.read(os.environ.get("AIRFLOW_CONFIG", os.path.join(home, "airflow.cfg")), encoding="utf-8")
    setting = os.environ.get("AIRFLOW__CORE__DAGS_FOLDER") or parser.get("core", "dags_folder", fallback="")
    folder = os.path.expandvars(os.path.expanduser(setting)) if setting else os.path.join(home, "dags")
    return os.path.abspath(folder)


def dags_folder_hint(out: str, name: str) -> str:
    """Returns the next step as text: a test run of the DAG, after moving its file into the DAGs folder if necessary.

    Args:
      out: path of the DAG file.
      name: name of the DAG.
    """
    folder, test_command = dags_folder(), f"airflow dags test {name}"
    real_folder = os.path.realpath(folder)
    if os.path.commonpath([real_folder, os.path.realpath(out)]) == real_folder:  # Airflow also reads subdirectories
        return f"it is in Airflow's DAGs folder, so try it: {test_command}"
    location = f" {folder}" if os.path.isdir(folder) else ""
    return f"put it into Airflow's DAGs folder{location}, then: {test_command}"


OPTIONS_KEY = "airflow"

_PRESETS = ("@once", "@continuous", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_DAG_ID = re.compile(r"[A-Za-z0-9_.-]{1,250}")
_FILE_TEMPLATE = '''\
"""The Airflow DAG of the Feedline pipeline {name}.

Written by `feedline compile --target airflow`; change the settings of the pipeline and compile it again.
It needs Airflow 2.11 or 3, but not Feedline: the tasks start {python} {location}.
"""

{code}

SETTINGS = {settings}

STEPS = {steps}

FEEDLINE = make_dag(
    SETTINGS,
    STEPS,
    python={python!r},
    pod={pod},
    schedule={schedule!r},
    retries={retries!r},
    retry_delay_s={retry_delay_s!r},
)
'''


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AirflowOptions(Options):
    """Settings of Airflow: the section `airflow`.

    Attributes:
      schedule: five cron fields or a preset such as `@daily`; empty for runs that are only triggered manually.
      retries: number of retries of a task that failed or was killed, 0 or more.
      retry_delay_s: seconds before a retry, 0 or more.
      environment: directory of the Python environment with Feedline, the same on every worker of Airflow; empty is the
        environment of the `compile` command.
      image: container image with Feedline and its extra `tfx`, in which each task runs as a pod of Kubernetes.
      pod_template: YAML file of the pod, with the volumes for images and root; its content is copied to the DAG file.
    """

    schedule: str = ""
    retries: Count = 2
    retry_delay_s: NotNegative = 60.0
    environment: str = ""
    image: str = ""
    pod_template: str = ""

    def __post_init__(self) -> None:
        if self.schedule and self.schedule not in _PRESETS and len(self.schedule.split()) != 5:
            raise OptionError(
                f"airflow.schedule is {self.schedule!r}; write five cron fields such as '0 3 * * *', or one of "
                f"{', '.join(_PRESETS)}"
            )
        if self.image and (self.image.split() != [self.image] or configuration.placeholder_in_image(self.image)):
            raise OptionError(
                f"airflow.image is {self.image!r}; name a container image such as registry.example.org/feedline:1"
            )
        if bool(self.image) != bool(self.pod_template):
            raise OptionError(
                f"airflow.image is {self.image!r} and airflow.pod_template is {self.pod_template!r}; give both or "
                "neither: the pods share images and root through a volume in the template"
            )
        if self.image and self.environment:
            raise OptionError(
                f"airflow.environment is {self.environment!r}; leave it out, because the image has its own environment"
            )


def compile(settings: Mapping[str, Any], out: str) -> str:  # noqa: A001 - common name of all targets
    """Checks the settings in the same way as a run, and writes the DAG file.

    Args:
      settings: nested settings of a `pipeline.yaml`; `airflow` holds the fields of `AirflowOptions`.
      out: Python file to write, in the DAGs folder of Airflow or to be moved there.

    Returns:
      the next steps and remarks, as one line.

    Raises:
      UsageError: a setting or the source cannot be used, or the file cannot be written.
    """
    options = from_mapping(AirflowOptions, settings.get(OPTIONS_KEY, {}), OPTIONS_KEY)
    values = {key: value for key, value in settings.items() if key not in configuration.TARGET_SECTIONS}
    config = configuration.build(values)
    _check_settings(config, out)
    disk.check_file("--out", out)
    python, pod = _interpreter(options), _pod_arguments(options)
    hints = [dags_folder_hint(out, config.name)]
    if "engine" in settings:
        hints.append("engine is ignored: Beam runs in the tasks")
    if config.schema and not config.schema_is_reviewed:  # if the file existed later, the DAG would need other tasks
        hints.append(f"schema {config.schema} does not exist: the DAG infers one, review it and compile again")
        values.pop("schema")
        config = dataclasses.replace(config, schema="")
    local.check_training(config, local.preflight(config))
    text = _FILE_TEMPLATE.format(
        name=config.name,
        code=_template_code(),
        python=python,
        location=f"in the image {options.image}" if pod else "on the workers",
        pod=_format_mapping(pod) if pod else None,
        settings=_format_mapping(_resolve_settings(values, config)),
        steps=_format_mapping(_steps(config)),
        schedule=options.schedule or None,
        retries=options.retries,
        retry_delay_s=options.retry_delay_s,
    )
    disk.write_file("--out", out, text.encode())
    return "; ".join(hints)


def _interpreter(options: AirflowOptions) -> str:
    if options.image:
        return "python"
    environment = os.path.abspath(options.environment or sys.prefix)
    if options.environment and not os.access(os.path.join(environment, "bin", "feedline"), os.X_OK):
        raise OptionError(
            f"airflow.environment is {options.environment!r}, which has no bin/feedline; name the directory of the "
            "environment in which Feedline is installed, or omit it to use the current environment"
        )
    return os.path.join(environment, "bin", "python3")


def _pod_arguments(options: AirflowOptions) -> dict[str, Any]:
    """Returns the image and the template of the pods; empty without an image."""
    if not options.image:
        return {}
    path = options.pod_template
    try:
        with open(path, encoding="utf-8") as stream:
            template = yaml_text.parse(stream)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OptionError(f"airflow.pod_template {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(template, Mapping) or template.get("kind") != "Pod":
        raise OptionError(f"airflow.pod_template {path} has no `kind: Pod`; define the pod with its volumes in it")
    return {"image": options.image, "pod_template_dict": template}


def _template_code() -> str:
    """Returns the source code of `airflow_dag_template` without its docstring."""
    source = Path(__file__).with_name("airflow_dag_template.py").read_text(encoding="utf-8")
    docstring = ast.parse(source).body[0]
    return "\n".join(source.splitlines()[docstring.end_lineno :]).strip()


def _check_settings(config: PipelineConfig, out: str) -> None:
    if not out.endswith(".py"):
        raise OptionError(f"--out is {out!r}; Airflow reads DAGs from files that end in .py")
    if not _DAG_ID.fullmatch(config.name):
        raise OptionError(
            f"name is {config.name!r}; as the name of a DAG it must have only letters, digits, '_', '-' and '.'"
        )
    if is_remote(config.root):
        raise OptionError(
            f"root is {config.root!r}; the tasks share a SQLite file in it; name a directory that every worker can use"
        )


def _steps(config: PipelineConfig) -> dict[str, list[str]]:
    """Returns component -> components that must finish before it."""
    # Building a pipeline creates its root; the configured root must not be created on this machine.
    with tempfile.TemporaryDirectory() as root:
        return airflow_tasks.list_steps(airflow_tasks.load_pipeline(dataclasses.replace(config, root=root)))


def _resolve_settings(settings: Mapping[str, Any], config: PipelineConfig) -> dict[str, Any]:
    """Returns the settings with the pipeline name and with absolute paths, because tasks run in another directory."""
    resolved = {**settings, "name": config.name, "root": config.root}
    if config.ingest:
        resolved["ingest"] = {**settings["ingest"], "source": config.ingest.source}
    if config.dataset:
        resolved["dataset"] = config.dataset
    if config.schema:
        resolved["schema"] = config.schema
    if os.path.isfile(config.train.weights):
        resolved["train"] = {**settings["train"], "weights": os.path.abspath(config.train.weights)}
    if config.input.cache_dir and not is_remote(config.input.cache_dir):
        resolved["input"] = {**settings["input"], "cache_dir": os.path.abspath(config.input.cache_dir)}
    return resolved


def _format_mapping(values: Mapping[str, Any]) -> str:
    """Returns a mapping as Python code, with one line for each entry that is short enough."""
    entries = ((key, pprint.pformat(value, width=100, sort_dicts=False)) for key, value in values.items())
    lines = [f"    {key!r}: {text}," for key, text in entries]
    return "\n".join(["{", *(line.replace("\n", "\n    ") for line in lines), "}"])
