"""What a target needs of this machine, and the command that brings what is missing.

`TARGETS` names, for every target, a function `(settings) -> Iterator[Check]`. It takes the nested settings of
`pipeline.yaml`, all layers merged and not yet validated, and yields a `Check` for each thing that was looked at, in the
order in which a person would repair them. It imports what is heavy inside its functions, changes nothing, and asks the
network only where the target cannot be judged without, for at most `NETWORK_TIMEOUT_S` a question. Here are the checks
that several targets share, and the commands that install what is missing.
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
from beam_jobs.storage import disk as places
from beam_jobs.storage import is_remote

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
    """One thing that was looked at.

    Attributes:
      name: what was looked at, two or three words.
      ok: whether it is as it should be.
      detail: the value that was found, and what is wrong with it where it is not ok; one line.
      remedy: the command that repairs it, or what to write where; empty when it is ok.
      needed: whether the target cannot work without; what is not ok and not needed is a warning.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True

    def __post_init__(self) -> None:
        if not self.ok and not self.remedy:
            raise ValueError(f"check {self.name!r} found {self.detail!r} and does not say what repairs it")

    @property
    def mark(self) -> str:
        """One of `ok`, `warn` and `missing`."""
        return "ok" if self.ok else "missing" if self.needed else "warn"


def run(target: str, settings: Mapping[str, Any]) -> Iterator[Check]:
    """Yields the checks of a target as they are made.

    Args:
      target: one of `TARGETS`.
      settings: nested settings of the pipeline; empty when there is no configuration yet.

    Raises:
      OptionError: there is no such target.
    """
    errors.check_choice("target", target, tuple(TARGETS))
    module, _, function = TARGETS[target].partition(":")
    yield from getattr(importlib.import_module(module), function)(settings)


DISTRIBUTION = "feedline"
SHOW = "feedline run --config pipeline.yaml --show-config names the place; change the value there"


def install_command(*requirements: str) -> str:
    """Returns the command that installs packages into this environment with what it has: pip, uv or neither.

    Args:
      requirements: and options of pip. Feedline itself, with extras or without, is installed from its checkout.
    """
    ours = [item for item in requirements if item.partition("[")[0] == DISTRIBUTION]
    from_checkout = [f".{item.removeprefix(DISTRIBUTION)}" if item in ours else item for item in requirements]
    wanted = f"-c {stack.constraints()} {shlex.join(from_checkout)}" if ours else shlex.join(requirements)
    where, python = "in the checkout of Feedline: " if ours else "", shlex.quote(sys.executable)
    if _version("pip"):
        return f"{where}{python} -m pip install {wanted}"
    if shutil.which("uv"):
        return f"{where}uv pip install --python {python} {wanted}"
    return f"{where}{python} -m ensurepip && {python} -m pip install {wanted}"


def install_system_command(package: str) -> str:
    """Returns the command that installs a package of Debian or Ubuntu, which takes root."""
    return f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {package}"


def basics(*extras: str) -> Iterator[Check]:
    """Yields what every target needs: the packages of Feedline and of some of its extras."""
    yield from packages("")
    for extra in extras:
        yield from packages(extra)


def packages(extra: str) -> Iterator[Check]:
    """Yields one check when all packages of an extra are as asked for, else one for each that is not.

    Args:
      extra: of the distribution; empty for what it always needs.
    """
    from packaging.requirements import Requirement

    title = f"packages of {extra}" if extra else "packages"
    asked = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or ()]
    # A marker may also name versions of Python, for which a package is always or never asked for.
    always = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    of_extra = [one for one in asked if one.marker and one.marker.evaluate({"extra": extra}) and one not in always]
    asked = of_extra if extra else always
    found = {one.name: _version(one.name) for one in asked}
    wrong = [one for one in asked if not one.specifier.contains(found[one.name] or "0", prereleases=True)]
    for one in wrong:
        extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
        remedy = install_command(f"{one.name}{extras}{one.specifier}")
        state = f"is {found[one.name]}" if found[one.name] else "is not installed"
        yield Check(name=one.name, ok=False, detail=f"{state}, asked for is {one.specifier}", remedy=remedy)
    if not wrong:
        named = ", ".join(f"{one.name} {found[one.name]}" for one in asked[:1])
        yield Check(name=title, ok=True, detail=f"{len(asked)} as asked for, {named} among them")


def configured(settings: Mapping[str, Any]) -> Check:
    """Checks that the settings, if there are any, are a configuration."""
    if not settings:
        return Check(name="configuration", ok=True, detail="none given; --config pipeline.yaml has it checked too")
    from pipeline import config as configuration

    try:
        config = configuration.build(settings)
    except FeedlineError as error:
        return Check(name="configuration", ok=False, detail=str(error), remedy=SHOW)
    return Check(name="configuration", ok=True, detail=f"pipeline {config.name}, root {config.root}")


def other_runner(settings: Mapping[str, Any], runner: str) -> Check | None:
    """Returns the warning that the settings ask for another engine than the one that is looked at; None if not.

    Args:
      settings: nested, of the pipeline.
      runner: name of the engine whose target is looked at.
    """
    engine = settings.get("engine")
    named = engine.get("runner", runner) if isinstance(engine, Mapping) else runner
    if named == runner:
        return None
    return Check(
        name="section engine",
        ok=False,
        detail=f"engine.runner is {named}, not {runner}, which is looked at with its defaults",
        remedy=f"feedline doctor --target {named} -c pipeline.yaml, or engine: {{runner: {runner}}} in pipeline.yaml",
        needed=False,
    )


def options_of_section(cls: type[Any], settings: Mapping[str, Any], name: str) -> Any | Check:
    """Returns the options of a section of a target, or the check that says why there are none."""
    from beam_jobs.common.settings import from_mapping

    try:
        return from_mapping(cls, settings.get(name) or {}, name)
    except OptionError as error:
        return Check(name=f"section {name}", ok=False, detail=str(error), remedy=f"set {name} in the configuration")


def writable(name: str, directory: str, remedy: str) -> Check:
    """Checks that a local directory, or the nearest one above it, takes files.

    A file is tried there, which has no name where the system can do without one; nothing stays of it.

    Args:
      name: of the check.
      directory: it need not exist.
      remedy: the command that names another one.
    """
    if is_remote(directory):
        return Check(name=name, ok=False, detail=f"{directory} is not on this machine", remedy=remedy)
    if refused := places.refusal(directory):
        repair = f"{refused.repair}, or {remedy}" if refused.repair else remedy
        return Check(name=name, ok=False, detail=refused.reason, remedy=repair)
    free = shutil.disk_usage(places.nearest_existing(directory)).free
    return Check(name=name, ok=True, detail=f"{os.path.abspath(directory)}, {size(free)} free")


def output_of(
    command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Runs a program and returns its exit code, standard output and standard error; code -1 when it did not end.

    Args:
      command: program and arguments.
      timeout_s: seconds after which it is ended.
      environ: variables on top of those of this process.
    """
    try:
        done = subprocess.run(  # noqa: S603 - a program of this environment, or of the user
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
    return done.returncode, done.stdout, done.stderr


def interpreter(command: str) -> str:
    """Returns the Python that a console script starts, of its first line; empty when it is no such script."""
    try:
        with open(command, "rb") as stream:
            first = stream.readline(4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    found = first.removeprefix("#!").strip()
    return found if first.startswith("#!") and "python" in os.path.basename(found) else ""


def last_line(text: str) -> str:
    """Returns the last line that says something, which is where a traceback names its error."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
