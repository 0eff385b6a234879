"""The code that `feedline compile` copies to the DAG file; Feedline never imports this module.

It runs on Airflow 2.11 and 3, on all their versions of Python, without Feedline and its packages.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from datetime import datetime, timedelta, timezone
from typing import Any

try:
    from airflow.sdk import DAG, BaseOperator
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
except ImportError:  # Airflow 2
    from airflow import DAG
    from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException
    from airflow.models import BaseOperator

FINISH = "Finish"  # the last task: writes summary and report, and fails if the model was not pushed
GRACE_S = 30.0  # between SIGTERM and SIGKILL
# Python's isolated mode ignores the PYTHONPATH of Airflow and modules in the working directory.
STEP = ("-I", "-c", "from pipeline.runners.airflow_tasks import main; main()")


class FeedlineOperator(BaseOperator):
    """Runs a task in the Python environment of Feedline, in a new process group, and logs its output."""

    process: subprocess.Popen[str] | None = None

    def __init__(self, *, python: str, request: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.python, self.request = python, request

    def execute(self, context: Any) -> None:
        """Runs the process; Airflow retries a failure unless the data failed a check."""
        process = subprocess.Popen(  # noqa: S603 - the command comes from the DAG file
            [self.python, *STEP, context["run_id"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self.process = process
        try:
            with contextlib.suppress(BrokenPipeError):  # the process has already ended
                print(self.request, file=process.stdin, flush=True)
            for line in process.stdout or ():
                self.log.info("%s", line.rstrip("\n"))
            code = process.wait()
        finally:
            self.on_kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            # The process is killed at the end of its standard input, which also happens if this process is killed.
            process.communicate()
        if code:
            error = AirflowFailException if code == os.EX_DATAERR else AirflowException
            raise error(f"{self.task_id} ended with exit code {code}; see the log above")

    def on_kill(self) -> None:
        """Sends SIGTERM to the process group."""
        if self.process and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)


def pod_task(python: str, request: str, pod: dict[str, Any], **arguments: Any) -> Any:
    """Returns a task that runs in a Kubernetes pod; only this function imports the Kubernetes provider."""
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    class FeedlinePodOperator(KubernetesPodOperator):
        def execute(self, context: Any) -> Any:
            try:
                return super().execute(context)
            except AirflowSkipException as error:  # raised for the exit code of a failed check of the data
                raise AirflowFailException(str(error)) from None

    # Airflow renders arguments as Jinja templates: escapes prevent that it finds a template in the settings.
    escaped = re.sub(r"(?<=\{)[{%#]", lambda match: f"\\x{ord(match[0]):02x}", request)
    return FeedlinePodOperator(
        cmds=[python, *STEP], arguments=["{{ run_id }}", escaped], skip_on_exit_code=os.EX_DATAERR, **pod, **arguments
    )


def make_dag(
    settings: dict[str, Any],
    steps: dict[str, list[str]],
    *,
    python: str,
    pod: dict[str, Any] | None = None,
    schedule: str | None = None,
    retries: int = 2,
    retry_delay_s: float = 60.0,
) -> DAG:
    """Returns the DAG: a task for each component, and a last task.

    Args:
      settings: settings of the pipeline, with absolute paths.
      steps: component -> components that must finish before it.
      python: interpreter of the environment with Feedline, or of the image.
      pod: image and template of the pods; None runs the tasks on the worker of Airflow.
      schedule: any schedule of Airflow; None for runs that are only triggered manually.
      retries: number of retries of a task.
      retry_delay_s: seconds before a retry.
    """
    dag = DAG(
        dag_id=settings["name"],
        schedule=schedule,
        start_date=datetime(2024, 1, 1, tzinfo=timezone.utc),
        catchup=False,
        # The components share a SQLite file of ML Metadata, and each uses all cores.
        max_active_runs=1,
        max_active_tasks=1,
        default_args={"retries": retries, "retry_delay": timedelta(seconds=retry_delay_s)},
        tags=["feedline"],
    )

    def task(name: str) -> Any:
        arguments = {"python": python, "request": repr((settings, steps, name)), "task_id": name, "dag": dag}
        return pod_task(pod=pod, **arguments) if pod else FeedlineOperator(**arguments)

    tasks = {name: task(name) for name in (*steps, FINISH)}
    with_successors = {name for upstream in steps.values() for name in upstream}
    for name, upstream in steps.items():
        tasks[name].set_upstream([tasks[item] for item in upstream])
        if name not in with_successors:
            tasks[name].set_downstream(tasks[FINISH])
    return dag
