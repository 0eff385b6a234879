"""A table of settings: what each one changes at the end of the way. A setting without a row fails a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from beam_jobs.common.settings import fields
from pipeline.config import TARGET_SECTIONS, PipelineConfig, build
from pipeline.settings.known_settings import is_section, names, sections, target_options

# File of this folder -> the sections whose settings it has rows for; of a target, its name.
COVERED = {
    "test_ingest": ("ingest", "ingest.columns", "ingest.pixels", "ingest.limits", "ingest.http", "ingest.about"),
    "test_gate": ("gate",),
    "test_input": ("input",),
    "test_train": ("train",),
    "test_pipeline": ("", "transform", "evaluate"),
    "test_targets": ("engine", *target_options()),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting and another value of it.

    Attributes:
      setting: dotted key, as `pipeline.yaml` and `--set` name it; of a target, its name and the setting.
      value: the other value.
      observe: looks at the end of the way: takes what the settings led to.
      expected: what is observed with the first value and with the other one, or a function that compares both; empty
        when it is enough that they differ.
      given: dotted key -> further settings of both sides.
      first: the value that is compared with; empty takes the default.
      same: observes what the setting must not change.
    """

    setting: str
    value: Any
    observe: Callable[[Any], Any]
    expected: tuple[Any, Any] | Callable[[Any, Any], bool] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    first: tuple[Any, ...] = ()
    same: Callable[[Any], Any] | None = None

    def __str__(self) -> str:
        return f"{self.setting}={self.value}"

    def check(self, run: Callable[[Mapping[str, Any]], Any]) -> None:
        """Follows both values to the end and compares; `run` takes settings by dotted key."""
        before = run({**self.given, **({self.setting: self.first[0]} if self.first else {})})
        after = run({**self.given, self.setting: self.value})
        found = self.observe(before), self.observe(after)
        if isinstance(self.expected, tuple):
            assert found == self.expected, found
        elif self.expected:
            assert self.expected(*found), found
        else:
            assert found[0] != found[1], found[0]
        if self.same:
            unchanged = self.same(before), self.same(after)
            assert unchanged[0] == unchanged[1], unchanged


def row(setting: str, value: Any, observe: Callable[[Any], Any], expected: Any = None, **more: Any) -> Row:
    return Row(setting=setting, value=value, observe=observe, expected=expected, **more)


def grows(before: Any, after: Any) -> bool:
    return bool(after > before)


def shrinks(before: Any, after: Any) -> bool:
    return bool(after < before)


def documented(section: str) -> set[str]:
    """Returns the settings of a section, or of a target, as the product lists them, by dotted key."""
    if section == "engine":
        return {"engine.runner"}
    if section in target_options():
        return {f"{section}.{name}" for name in fields(target_options()[section][1])}
    keys = {f"{section}.{name}" if section else name for name in names(section)}
    return {key for key in keys if not is_section(key)}


def missing(rows: Sequence[Row], file: str) -> set[str]:
    """Returns the settings without a row of one of the files here, and the rows that are of no setting at all."""
    known = {key for section in chain.from_iterable(COVERED.values()) for key in documented(section)}
    wanted = {key for section in COVERED[file] for key in documented(section)}
    there = {row.setting for row in rows}
    return (wanted - there) | (there - known)


def config_of(settings: Mapping[str, Any]) -> PipelineConfig:
    """Returns the configuration of settings by dotted key, built as `feedline run` builds it from a file."""
    return build(nested_of(settings))


def nested_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by dotted key as a file has them."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *path, name = key.split(".")
        node = nested
        for part in path:
            node = node.setdefault(part, {})
        node[name] = value
    return nested


def uncovered() -> set[str]:
    """Returns the sections of the product that no file here has rows for."""
    known = {*sections(), *TARGET_SECTIONS, *target_options()}
    return known ^ {section for covered in COVERED.values() for section in covered}
