"""`--detach`: the same command as a job of its own."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import click

from beam_jobs.errors import OptionError
from pipeline import jobs
from pipeline.cli.common import echo, print_json, program, say

FLAG = "--detach"
_LOOK_S = 15.0  # most mistakes show before the first stage


def detachable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--detach` to a command."""

    @click.option(FLAG, is_flag=True, help="Run in the background; `feedline status` tells how far it is.")
    @click.pass_context
    @functools.wraps(function)
    def command(context: click.Context, *args: Any, detach: bool, **values: Any) -> Any:
        if not detach:
            return function(*args, **values)
        return _start(list(context.find_root().obj), values["as_json"])

    return command


def _start(arguments: list[str], as_json: bool) -> None:
    job = jobs.start([argument for argument in arguments if argument != FLAG])
    deadline = time.monotonic() + _LOOK_S
    try:
        while time.monotonic() < deadline and job.state == jobs.RUNNING and not job.stage:
            time.sleep(0.1)
    except KeyboardInterrupt:
        job.stop()
        raise
    if job.state in (jobs.FAILED, jobs.STOPPED, jobs.DIED):
        raise click.exceptions.Exit(_repeat(job))
    if as_json:
        print_json({"job": job.name, "log": str(job.directory / "log")})
    else:
        echo(job.name)
    say(f"it runs on its own; `{program()} status {job.name} --follow` shows how far it is")


def _repeat(job: jobs.Job) -> int:
    """Says what the job said before it failed."""
    if job.exit_code is None:
        raise OptionError(f"the job {job.state} before it began; its log is {job.directory / 'log'}")
    for line in job.log:
        say(line)
    return job.exit_code
