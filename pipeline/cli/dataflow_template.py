"""The Flex Template of Dataflow: a job that runs `feedline ingest`, so that no machine outside Dataflow has to run.

A template contains one graph, but an ingest runs two jobs, with a plan between them. So the graph of the template is
one step: a worker runs the command, which starts both jobs and publishes the dataset. When the step fails, the service
repeats it, and the command continues after the finished work.

`Dockerfile` builds the image; `dataflow_template.json` describes the parameters for the service.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import apache_beam as beam
import yaml
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import storage
from beam_jobs.common import child_python, yaml_text
from beam_jobs.common.settings import fields
from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.runners import dataflow

if TYPE_CHECKING:
    from beam_jobs.options import IngestOptions

_LOGGER = logging.getLogger(__name__)
_ERROR_PREFIX = "feedline: error: "
_BEAM_ARGUMENTS = {  # attribute of `PipelineOptions` -> argument of Beam for the jobs of the ingest
    **{name: name for name in ("network", "dataflow_kms_key", "worker_zone")},
    "disk_type": "worker_disk_type",
}
_SETTINGS = {"machine_type": "worker_machine_type"}  # attribute of `PipelineOptions` -> setting, if the names differ


def main() -> None:
    """Runs the program that the launcher of Dataflow starts. The exit codes of errors are those of `feedline`."""
    from pipeline.cli import errors

    try:
        launch(sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - every error is printed as one line
        sys.exit(errors.fail(errors.to_error_report(error), as_json=False))


def launch(arguments: Sequence[str]) -> None:
    """Writes the graph of the job for the service, or starts the job if the arguments name no `--template_location`.

    Args:
      arguments: parameters of the template and arguments of Beam. The ingest uses the same project, type and code of
        workers as the job of the template, which has a single worker.

    Raises:
      OptionError: a parameter, or a setting of the ingest, is unknown or not allowed.
    """
    from beam_jobs.runners import dataflow_jobs

    parameters, beam_arguments = parser().parse_known_args(arguments)
    step = RunIngest(command_line(parameters, beam_arguments), parameters.config, _read_config(parameters))
    options, engine = step.read_request()
    engine.check(options)
    one_worker = dataclasses.replace(engine, num_workers=1, max_num_workers=1, autoscaling_algorithm="NONE")
    with tempfile.TemporaryDirectory(prefix="feedline-template-") as directory:
        job_arguments = [*beam_arguments, *one_worker.arguments(directory)]
        pipeline = dataflow_jobs.Pipelines(job_arguments, engine.job_name, one_worker.pool)()
        pipeline | step.label >> step
        pipeline.run()  # the service starts the job after the end of this process


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the parameters of the template."""
    result = argparse.ArgumentParser(prog="feedline-dataflow-template", description=__doc__, allow_abbrev=False)
    result.add_argument("--source", required=True)
    result.add_argument("--out", required=True)
    result.add_argument("--config", default="")
    result.add_argument("--arguments", default="")
    return result


@dataclass
class RunIngest(beam.PTransform):
    """Runs `feedline ingest` on a worker, and writes its output to the log of the worker.

    Attributes:
      arguments: arguments of the command, without `--config`.
      config_name: path of the file of settings, for its name in messages; empty for none.
      config: content of the file of settings.
    """

    arguments: Sequence[str]
    config_name: str = ""
    config: bytes = b""

    def expand(self, root: beam.Pipeline) -> beam.PCollection[None]:
        """Returns the output of the step."""
        return root | "Start" >> beam.Impulse() | "Ingest" >> beam.ParDo(_Run(self))

    def read_request(self) -> tuple[IngestOptions, dataflow.Options]:
        """Returns the options and the engine of the ingest.

        Raises:
          OptionError: an option or a setting is unknown or not allowed.
        """
        from pipeline.cli import cli, ingest

        program = cli.make_context("feedline", ["ingest"])
        with self.arguments_with_config() as arguments:
            context = ingest.command.make_context("ingest", list(arguments), parent=program)
            values = {name: value for name, value in context.params.items() if name != "as_json"}
            if values.pop("dry_run"):
                raise OptionError("arguments contains --dry-run, with which the job would write nothing; remove it")
            options, engine = ingest.read_request(context.command, **values)
        return options, cast("dataflow.Options", engine)  # with another `--runner`, these settings are an error

    @contextlib.contextmanager
    def arguments_with_config(self) -> Iterator[Sequence[str]]:
        """Writes the file of settings, yields the arguments of the command, and removes the file after the block."""
        if not self.config_name:
            yield self.arguments
            return
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, os.path.basename(self.config_name))
            storage.write_bytes(path, self.config)
            yield [*self.arguments, "--config", path]


class _Run(beam.DoFn):
    def __init__(self, ingest: RunIngest) -> None:
        self._ingest = ingest

    def process(self, element: bytes) -> None:
        """Runs the command to its end.

        Raises:
          FeedlineError: the command failed; the message is its error message.
        """
        with self._ingest.arguments_with_config() as arguments:
            python_code = "from pipeline import entry; entry.main()"
            command = child_python.command(python_code, "ingest", *arguments, working_directory=False)
            environment = child_python.environment(working_directory=False)
            with subprocess.Popen(  # noqa: S603 - the Python and the code of this process
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                encoding="utf-8",
                errors="replace",
            ) as process:
                message_lines: list[str] = []
                for line in map(str.rstrip, process.stdout or ()):
                    _LOGGER.info("%s", line)
                    if line.startswith(_ERROR_PREFIX):
                        message_lines = [line.removeprefix(_ERROR_PREFIX)]
                    elif message_lines:  # an error may have several lines
                        message_lines.append(line)
        if process.returncode:
            raise FeedlineError("\n".join(message_lines) or f"feedline ended with code {process.returncode}")


def command_line(parameters: argparse.Namespace, beam_arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of the command: parameters of the template, and project, workers and code of the job.

    Raises:
      OptionError: the parameter `arguments` has an unclosed quote.
    """
    command = [parameters.source, "--out", parameters.out, "--runner", "dataflow"]
    beam_options = PipelineOptions(list(beam_arguments)).get_all_options(drop_default=True)
    settings = {_SETTINGS.get(name, name): value for name, value in beam_options.items()}
    if labels := settings.get("labels"):
        settings["labels"] = _parse_labels(labels)
    # Values without a setting are arguments of Beam for the jobs, which would otherwise use another network.
    names = [name for name in _BEAM_ARGUMENTS if beam_options.get(name)]
    if names:
        settings["beam_args"] = [f"--{_BEAM_ARGUMENTS[name]}={beam_options[name]}" for name in names]
    for name in fields(dataflow.Options):
        if name in settings and name != "setup_file":
            value = settings[name]
            text = value if isinstance(value, str) else json.dumps(value)
            command += ["--runner-option", f"{name}={text}"]
    try:
        return [*command, *shlex.split(parameters.arguments)]
    except ValueError as error:
        raise OptionError(f"arguments is {parameters.arguments!r}: {error}; quote them as for a shell") from error


def _parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Returns the labels in arguments of Beam: `KEY=VALUE`, or several as `{KEY: VALUE}`."""
    labels: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            labels |= yaml_text.parse_value(text, wants_text=False) if text.startswith("{") else {key: value}
        except yaml.YAMLError as error:
            raise OptionError(f"labels is {text!r}; write it as team=vision, or as {{team: vision}}") from error
    return labels


def _read_config(parameters: argparse.Namespace) -> bytes:
    if not parameters.config:
        return b""
    try:
        return storage.read_bytes(parameters.config)
    except OSError as error:
        raise OptionError(f"config is {parameters.config!r}, which cannot be read: {error}") from error
