"""`feedline status`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from typing import Any

import click

from beam_jobs.errors import FeedlineError
from pipeline import jobs
from pipeline.cli.bar import describe, watch
from pipeline.cli.common import echo, json_option, print_json, program, say, terminal_columns
from pipeline.cli.grammar import Command
from pipeline.cli.values import JOB
from pipeline.hidden import HIDDEN, hide
from pipeline.interrupt import TERMINATED
from pipeline.jobs import DIED, RUNNING, STOPPED, Job, Stage

_POLL_S = 0.2


@click.command("status", cls=Command)
@click.argument("name", metavar="[JOB]", type=JOB, required=False)
@click.option("--follow", is_flag=True, help="Wait until the job ends, and exit with its exit code.")
@click.option("--stop", is_flag=True, help="Ask the job to stop; what is finished is kept.")
@json_option
def command(name: str | None, follow: bool, stop: bool, as_json: bool) -> None:
    """Show the progress of commands that were started with --detach.

    Without JOB it lists them with their commands, the newest first. A job that has ended shows what the
    command itself would have printed; one that was stopped or killed shows how to go on with it.

    \b
    Examples:
      feedline status
      feedline status ingest-20260131-140509 --follow
      feedline status ingest-20260131-140509 --stop
    """
    if name is None:
        if follow or stop:
            raise click.UsageError(f"{'--follow' if follow else '--stop'} needs the name of a JOB")
        _list(as_json)
        return
    job = jobs.find(name)
    if stop:
        job.stop()
    if follow or stop:
        try:
            _follow(job)
        except KeyboardInterrupt:
            raise FeedlineError(
                f"nobody looks any more, and {job.name} runs on; `{program()} status {job.name} --stop` stops it"
            ) from None
    if as_json:
        print_json(_to_json(job))
    else:
        _show(job)
    if (follow or stop) and job.state != jobs.DONE:
        raise click.exceptions.Exit(job.exit_code or (TERMINATED if job.state == STOPPED else 1))


def _list(as_json: bool) -> None:
    found = jobs.jobs()
    if as_json:
        print_json({"jobs": [_to_json(job) for job in found]})
        return
    width = terminal_columns() if sys.stdout.isatty() else None
    for job in found:
        echo(f"{job.name:<26} {_state(job)}")
        echo(_shortened(f"  {_command(job)}", width))
    if not found:
        say(f"no job was started yet; `{program()} ingest SOURCE --out DIR --detach` starts one")


def _follow(job: Job) -> None:
    """Draws every stage as the command itself would have drawn it."""
    while job.state == RUNNING:
        stage = job.stage
        if stage is None:
            time.sleep(_POLL_S)
            continue
        with watch(stage.name, stage.total, lambda was=stage: (job.stage or was).done, stage.seconds):  # type: ignore[misc]
            while job.state == RUNNING and (job.stage or stage).name == stage.name:
                time.sleep(_POLL_S)


def _show(job: Job) -> None:
    say(f"{job.name}: {_state(job)}")
    for line in job.log if job.state != RUNNING else job.log[-3:]:
        say(line)
    if job.state in (STOPPED, DIED):
        how = "stopped" if job.state == STOPPED else "killed"
        command = _command(job)
        secret = f", with the secret in place of {HIDDEN}" if HIDDEN in command else ""
        say(f"it was {how}; what is finished is kept, and the same command continues{secret}:")
        say(f"  cd {shlex.quote(job.cwd)} && {command}")
    click.echo(job.result, nl=False)


def _state(job: Job) -> str:
    stage = job.stage
    if job.state == RUNNING and stage:
        return f"{stage.name}: {describe(stage.done, stage.total, stage.seconds)}"
    return f"{job.state}, exit code {job.exit_code}" if job.state == jobs.FAILED else job.state


def _command(job: Job) -> str:
    """Returns what was typed, ready to be typed again but for its secrets."""
    return f"{program()} {shlex.join(hide(job.arguments))}"


def _shortened(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def _to_json(job: Job) -> dict[str, Any]:
    stage: Stage | None = job.stage
    return {
        "name": job.name,
        "state": job.state,
        "exit_code": job.exit_code,
        "arguments": list(hide(job.arguments)),
        "cwd": job.cwd,
        "started": job.started,
        "stage": stage and dataclasses.asdict(stage),
        "log": str(job.directory / "log"),
        "result": job.result,
    }
