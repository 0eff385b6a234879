"""`feedline doctor`."""

from __future__ import annotations

from dataclasses import asdict

import click

from beam_jobs.common import strings
from pipeline import doctor
from pipeline.cli.click_groups import Command
from pipeline.cli.common import config_option, echo, json_option, print_json, set_option
from pipeline.doctor import Check

NOT_READY = 3
_COLOURS = {"ok": "green", "warn": "yellow", "missing": "red"}


@click.command("doctor", cls=Command)
@click.option(
    "--target", type=click.Choice(tuple(doctor.TARGETS)), default="local", show_default=True, help="Target to check."
)
@config_option("YAML file of settings, whose requirements are checked, too.")
@set_option
@json_option
def command(target: str, config_path: str | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """List missing requirements of a target, and commands that meet them.

    Nothing is changed. The exit code is 3 when something is missing, else 0, even with warnings.

    \b
    Examples:
      feedline doctor
      feedline doctor --config pipeline.yaml
      feedline doctor --target kubeflow --config pipeline.yaml
    """
    from pipeline.settings.layers import gather

    settings = gather(config_path, {}, assignments)
    checks = []
    for check in doctor.run(target, settings.values):
        checks.append(check)
        if not as_json:
            _show(check)
    counts = {mark: sum(check.mark == mark for check in checks) for mark in _COLOURS}
    if as_json:
        rows = [{**asdict(check), "mark": check.mark, "remedy": "" if check.ok else check.remedy} for check in checks]
        print_json({"target": target, "ready": not counts["missing"], "checks": rows})
    else:
        echo("", f"{target}: {counts['ok']} ok, {counts['warn']} with a warning, {counts['missing']} missing")
    if counts["missing"]:
        raise click.exceptions.Exit(NOT_READY)


def _show(check: Check) -> None:
    mark = click.style(f"{check.mark:<7}", fg=_COLOURS[check.mark])
    click.echo(f"{mark}  {check.name:<20}  {strings.line(check.detail)}")
    if not check.ok:
        echo(f"{'':<31}repair:  {check.remedy}")
