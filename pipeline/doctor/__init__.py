"""Checks of the requirements of a target on this machine, with commands that repair failures.

`TARGETS` names, for every target, a function `(settings) -> Iterator[Check]`. Its argument is the nested settings of
`pipeline.yaml`, all layers merged and not yet validated. It yields the checks in the order of repair, imports
large libraries inside functions, changes nothing, and uses the network only where a check needs it, with a timeout of
`NETWORK_TIMEOUT_S` per request. This module contains checks for several targets, and commands that install packages.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from beam_jobs import errors, stack
from beam_jobs.common import child_python
from beam_jobs.common.strings import size
from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.storage import disk, is_remote

NETWORK_TIMEOUT_S = 5.0
TARGETS = {
    "local": "pipeline.doctor.local:checks",
    "flink": "pipeline.doctor.flink:checks",
    "dataflow": "pipeline.doctor.dataflow:checks",
    "kubeflow": "pipeline.doctor.orchestrators:kubeflow_checks",
    "airflow": "pipeline.doctor.orchestrators:airflow_checks",
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of a check.

    Attributes:
      name: name of the check, two or three words.
      ok: whether the check passed.
      detail: the observed value, and the problem if the check failed; one line.
      remedy: command or change of a file that repairs the failure; empty when the check passed.
      needed: whether the target requires it; otherwise a failure is a warning.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True

    def __post_init__(self) -> None:
        if not self.ok and not self.remedy:
            raise ValueError(f"check {self.name!r} failed with {self.detail!r} and has no remedy")

    @property
    def mark(self) -> str:
        """One of `ok`, `warn` and `missing`."""
        return "ok" if self.ok else "missing" if self.needed else "warn"


def run(target: str, settings: Mapping[str, Any]) -> Iterator[Check]:
    """Runs the checks of a target and yields each result.

    Args:
      target: one of `TARGETS`.
      settings: nested settings of the pipeline; empty when there is no configuration yet.

    Raises:
      OptionError: the target does not exist.
    """
    errors.check_choice("target", target, tuple(TARGETS))
    module, _, function = TARGETS[target].partition(":")
    yield from getattr(importlib.import_module(module), function)(settings)


DISTRIBUTION = "feedline"
SHOW_CONFIG = "feedline run --config pipeline.yaml --show-config prints the layer of the value; change it in that layer"


def install_command(*requirements: str) -> str:
    """Returns the command that installs packages into this environment: with pip, else uv, else ensurepip and pip.

    Args:
      requirements: requirements and options of pip. Feedline itself is installed from its checkout.
    """
    feedline_items = [item for item in requirements if item.partition("[")[0] == DISTRIBUTION]
    from_checkout = [f".{item.removeprefix(DISTRIBUTION)}" if item in feedline_items else item for item in requirements]
    arguments = f"-c {stack.constraints()} {shlex.join(from_checkout)}" if feedline_items else shlex.join(requirements)
    prefix, python = "in the checkout of Feedline: " if feedline_items else "", shlex.quote(sys.executable)
    if _version("pip"):
        return f"{prefix}{python} -m pip install {arguments}"
    if shutil.which("uv"):
        return f"{prefix}uv pip install --python {python} {arguments}"
    return f"{prefix}{python} -m ensurepip && {python} -m pip install {arguments}"


def install_system_command(package: str) -> str:
    """Returns the command that installs a package of Debian or Ubuntu as root."""
    return f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {package}"


def package_checks(*extras: str) -> Iterator[Check]:
    """Checks the packages of Feedline and of the given extras."""
    yield from packages("")
    for extra in extras:
        yield from packages(extra)


def packages(extra: str) -> Iterator[Check]:
    """Yields one check if all packages of an extra have an allowed version, else a failed check for each wrong package.

    Args:
      extra: extra of the distribution; empty for the packages without an extra.
    """
    from packaging.requirements import Requirement

    title = f"packages of {extra}" if extra else "packages"
    requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    # A marker may also limit a requirement to versions of Python.
    base_requirements = [item for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""})]
    other_requirements = (item for item in requirements if item not in base_requirements)
    extra_requirements = [item for item in other_requirements if item.marker and item.marker.evaluate({"extra": extra})]
    requirements = extra_requirements if extra else base_requirements
    versions = {item.name: _version(item.name) for item in requirements}
    unmet = [item for item in requirements if not item.specifier.contains(versions[item.name] or "0", prereleases=True)]
    for item in unmet:
        extras = f"[{','.join(sorted(item.extras))}]" if item.extras else ""
        remedy = install_command(f"{item.name}{extras}{item.specifier}")
        state = f"is {versions[item.name]}" if versions[item.name] else "is not installed"
        yield Check(name=item.name, ok=False, detail=f"{state}, but {item.specifier} is required", remedy=remedy)
    if not unmet:
        example = ", ".join(f"{item.name} {versions[item.name]}" for item in requirements[:1])
        yield Check(name=title, ok=True, detail=f"{len(requirements)} as required, such as {example}")


def check_configuration(settings: Mapping[str, Any]) -> Check:
    """Checks that the settings, if any, are a valid configuration."""
    if not settings:
        return Check(name="configuration", ok=True, detail="not given; --config pipeline.yaml adds more checks")
    from pipeline import config as configuration

    try:
        config = configuration.build(settings)
    except FeedlineError as error:
        return Check(name="configuration", ok=False, detail=str(error), remedy=SHOW_CONFIG)
    return Check(name="configuration", ok=True, detail=f"pipeline {config.name}, root {config.root}")


def other_runner(settings: Mapping[str, Any], runner: str) -> Check | None:
    """Returns a warning if the settings select another engine than the checked one, else None.

    Args:
      settings: nested settings of the pipeline.
      runner: name of the checked engine.
    """
    engine = settings.get("engine")
    name = engine.get("runner", runner) if isinstance(engine, Mapping) else runner
    if name == runner:
        return None
    detail = f"engine.runner is {name}; {runner} is checked with default settings"
    remedy = f"feedline doctor --target {name} -c pipeline.yaml, or engine: {{runner: {runner}}} in pipeline.yaml"
    return Check(name="section engine", ok=False, detail=detail, remedy=remedy, needed=False)


def section_options(cls: type[Any], settings: Mapping[str, Any], name: str) -> Any | Check:
    """Returns the options of the section of a target, or a failed check."""
    from beam_jobs.common.settings import from_mapping

    try:
        return from_mapping(cls, settings.get(name) or {}, name)
    except OptionError as error:
        return Check(name=f"section {name}", ok=False, detail=str(error), remedy=f"set {name} in the configuration")


def writable(name: str, directory: str, remedy: str) -> Check:
    """Checks with a temporary file that a local directory, or its nearest existing parent, is writable.

    Args:
      name: name of the check.
      directory: directory, existing or not.
      remedy: command that selects another directory.
    """
    if is_remote(directory):
        return Check(name=name, ok=False, detail=f"{directory} is not on this machine", remedy=remedy)
    if refusal := disk.refusal(directory):
        repair = f"{refusal.repair}, or {remedy}" if refusal.repair else remedy
        return Check(name=name, ok=False, detail=refusal.reason, remedy=repair)
    free = shutil.disk_usage(disk.nearest_existing(directory)).free
    return Check(name=name, ok=True, detail=f"{os.path.abspath(directory)}, {size(free)} free")


def run_program(
    command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Runs a program and returns its exit code, standard output and standard error.

    The code is -1 when the program cannot be started or exceeds the timeout.

    Args:
      command: program and arguments.
      timeout_s: timeout in seconds.
      environ: additional environment variables.
    """
    try:
        result = subprocess.run(  # noqa: S603 - a program of this environment, or of the user
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={**child_python.environment(), **(environ or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, "", str(error)
    return result.returncode, result.stdout, result.stderr


def interpreter(command: str) -> str:
    """Returns the Python interpreter in the first line of a console script; empty for other files."""
    try:
        with open(command, "rb") as stream:
            first_line = stream.readline(4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    path = first_line.removeprefix("#!").strip()
    return path if first_line.startswith("#!") and "python" in os.path.basename(path) else ""


def last_line(text: str) -> str:
    """Returns the last line that is not blank; in a traceback, it is the error."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
