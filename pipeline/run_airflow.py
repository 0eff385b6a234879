"""Airflow: a DAG with one task a component, each of which runs as it does under `feedline run`.

TFX's own Airflow runner starts components through its older launcher. That one passes over the driver that looks at the
images, so that changed ones are served from the cache, and a task that is repeated in a run fails on the artifact that
it registered before. Here a task runs its one node of the compiled pipeline through the launcher of the local runner:
same cache, same resolvers, and a retry takes up the execution that failed.

The file that Airflow reads holds the names of the tasks, because the scheduler reads it twice a minute and building
the pipeline means importing TFX.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pprint
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from beam_jobs import validate, writable
from beam_jobs.errors import OptionError
from beam_jobs.storage import is_remote
from pipeline import airflow_folder, airflow_tasks, run_local
from pipeline import config as configuration
from pipeline.config import PipelineConfig

if TYPE_CHECKING:
    from airflow import DAG

OPTIONS_KEY = "airflow"
FINISH = "Finish"  # the task after the components: summary, report and whether the model was pushed

_PRESETS = ("@once", "@continuous", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_DAG_ID = re.compile(r"[A-Za-z0-9_.-]{1,250}")
_FILE = '''\
"""The Airflow DAG of the Feedline pipeline {name}.

Written by `feedline compile --target airflow`, which writes it anew; change the settings there.
"""

from pipeline.run_airflow import make_dag

SETTINGS = {settings}

STEPS = {steps}

DAG = make_dag(SETTINGS, STEPS, schedule={schedule!r}, retries={retries!r}, retry_delay_s={retry_delay_s!r})
'''


@dataclass(frozen=True, kw_only=True)
class AirflowOptions:
    """What only Airflow has to know: the mapping `airflow` of the settings.

    Attributes:
      schedule: when to run: five cron fields or a preset such as `@daily`; empty for only when somebody triggers it.
      retries: further attempts of a task that failed or was killed, 0 or more.
      retry_delay_s: seconds before a further attempt, 0 or more.
    """

    schedule: str = ""
    retries: int = 2
    retry_delay_s: float = 60.0

    def __post_init__(self) -> None:
        if self.schedule and self.schedule not in _PRESETS and len(self.schedule.split()) != 5:
            raise OptionError(
                f"airflow.schedule is {self.schedule!r}; write five cron fields such as '0 3 * * *', or one of "
                f"{', '.join(_PRESETS)}"
            )
        validate.whole("airflow.retries", self.retries, 0)
        validate.at_least("airflow.retry_delay_s", self.retry_delay_s, 0)


def compile(settings: Mapping[str, Any], out: str) -> str:  # noqa: A001 - the name the command calls on every target
    """Checks the settings as a run would, and writes the DAG file.

    Args:
      settings: nested, of a `pipeline.yaml`; `airflow` holds the fields of `AirflowOptions`.
      out: Python file to write, in the DAGs folder of Airflow or on its way there.

    Returns:
      one line: what to do next.

    Raises:
      UsageError: a setting or the source cannot be used, or the file cannot be written.
    """
    options = configuration.from_mapping(AirflowOptions, settings.get(OPTIONS_KEY, {}), OPTIONS_KEY)
    values = {key: value for key, value in settings.items() if key not in configuration.TARGET_SECTIONS}
    config = configuration.build(values)
    _check_names(config, out)
    writable.check_file("--out", out)
    hints = [airflow_folder.hint(out, config.name)]
    if "engine" in settings:
        hints.append("engine is left out: Beam runs in the tasks")
    if config.schema and not config.schema_is_reviewed:  # a file that comes between two runs would change the tasks
        hints.append(f"schema {config.schema} is not there: the DAG infers one, review it and compile again")
        values.pop("schema")
        config = configuration.build(values)
    _check_settings(config)
    text = _FILE.format(
        name=config.name,
        settings=_literal(_resolved(values, config)),
        steps=_literal(_steps(config)),
        schedule=options.schedule or None,
        retries=options.retries,
        retry_delay_s=options.retry_delay_s,
    )
    writable.write_file("--out", out, text.encode())
    return "; ".join(hints)


def make_dag(
    settings: Mapping[str, Any],
    steps: Mapping[str, list[str]],
    *,
    schedule: str | None = None,
    start_date: str = "2024-01-01",
    retries: int = 2,
    retry_delay_s: float = 60.0,
) -> DAG:
    """Builds the DAG; the file that `compile` writes calls it. Only Airflow is imported.

    Args:
      settings: of the pipeline, with absolute paths.
      steps: component -> those that it waits for.
      schedule: when to run, anything that Airflow takes; None for only when triggered.
      start_date: ISO date in the past; runs of times gone by are never made up for.
      retries: further attempts of a task.
      retry_delay_s: seconds before a further attempt.
    """
    from airflow import DAG
    from airflow.operators.python import PythonOperator

    dag = DAG(
        dag_id=settings["name"],
        schedule=schedule,
        start_date=datetime.fromisoformat(start_date).replace(tzinfo=timezone.utc),
        catchup=False,
        # The components share one SQLite file of ML Metadata, and each takes the whole machine anyway.
        max_active_runs=1,
        max_active_tasks=1,
        default_args={"retries": retries, "retry_delay": timedelta(seconds=retry_delay_s)},
        tags=["feedline"],
    )

    def task(name: str, function: Callable[..., None]) -> PythonOperator:
        return PythonOperator(task_id=name, python_callable=function, dag=dag)

    tasks = {name: task(name, functools.partial(airflow_tasks.run_step, settings, steps, name)) for name in steps}
    last = task(FINISH, functools.partial(airflow_tasks.finish, settings))
    waited_for = {before for upstream in steps.values() for before in upstream}
    for name, upstream in steps.items():
        tasks[name].set_upstream([tasks[before] for before in upstream])
        if name not in waited_for:
            tasks[name].set_downstream(last)
    return dag


def _check_names(config: PipelineConfig, out: str) -> None:
    if not out.endswith(".py"):
        raise OptionError(f"--out is {out!r}; Airflow reads DAGs from files that end in .py")
    if not _DAG_ID.fullmatch(config.name):
        raise OptionError(
            f"name is {config.name!r}; it becomes the name of the DAG, of letters, digits, '_', '-' and '.' only"
        )
    if is_remote(config.root):
        raise OptionError(
            f"root is {config.root!r}; the tasks share a SQLite file in it, name a directory that every worker has"
        )


def _check_settings(config: PipelineConfig) -> None:
    """Checks what `feedline run` checks before it starts."""
    run_local.preflight(config)
    from trainer.input_fn import check_options
    from trainer.models import check_model

    check_options(config.input, run_local.raw_side(config))
    check_model(config.train.model)


def _steps(config: PipelineConfig) -> dict[str, list[str]]:
    """Returns component -> those that it waits for."""
    # Building a pipeline makes its root, which is for the machine that runs it.
    with tempfile.TemporaryDirectory() as root:
        return airflow_tasks.steps_of(airflow_tasks.pipeline_of(dataclasses.replace(config, root=root)))


def _resolved(settings: Mapping[str, Any], config: PipelineConfig) -> dict[str, Any]:
    """Returns the settings with the name and absolute paths, because tasks run in a directory of Airflow's."""
    found = {**settings, "name": config.name, "root": config.root}
    if config.ingest:
        found["ingest"] = {**settings["ingest"], "source": config.ingest.source}
    if config.dataset:
        found["dataset"] = config.dataset
    if config.schema:
        found["schema"] = config.schema
    if os.path.isfile(config.train.weights):
        found["train"] = {**settings["train"], "weights": os.path.abspath(config.train.weights)}
    if config.input.cache_dir and not is_remote(config.input.cache_dir):
        found["input"] = {**settings["input"], "cache_dir": os.path.abspath(config.input.cache_dir)}
    return found


def _literal(values: Mapping[str, Any]) -> str:
    """Returns a mapping as Python text, a line an entry where they fit."""
    entries = ((key, pprint.pformat(value, width=100, sort_dicts=False)) for key, value in values.items())
    lines = [f"    {key!r}: {text}," for key, text in entries]
    return "\n".join(["{", *(line.replace("\n", "\n    ") for line in lines), "}"])
