"""Dataclasses from mappings, their fields checked by name and by type."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from beam_jobs.common.strings import unknown
from beam_jobs.common.yaml_text import one_line
from beam_jobs.errors import OptionError
from pipeline.settings.redact import hide

T = TypeVar("T")
_SHOWN = 120  # characters of a value in an error; a whole section would hide the message about it
_PLAIN = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null"}
_MANY = {str: "texts", int: "whole numbers", float: "numbers"}


class SettingError(OptionError):
    """A setting has a value that is not allowed.

    Attributes:
      keys: dotted keys of the settings that the error is about; none when no setting was given.
    """

    def __init__(self, message: str, keys: Sequence[str]) -> None:
        super().__init__(message)
        self.keys = tuple(keys)

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, tuple[str, ...]]]:
        # Exceptions pickle through `args`, which holds the message alone.
        return type(self), (str(self), self.keys)


def from_mapping(cls: type[T], values: Any, where: str) -> T:
    """Builds a dataclass from a mapping, nested dataclasses included.

    Args:
      cls: a dataclass.
      values: field name -> value.
      where: name of the mapping in errors, such as `train`.

    Raises:
      SettingError: a key is unknown, missing or of the wrong type, or its value is not allowed.
    """
    if not isinstance(values, Mapping):
        raise not_a_section(where, values)
    fields = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise SettingError(unknown("setting", key, fields, f"{where}." if where else ""), [_dotted(where, key)])
    for name, item in fields.items():
        if _is_required(item) and name not in values:
            raise SettingError(f"{_dotted(where, name)} is missing; it has no default", [])
    given = {key: _convert(hints[key], value, _dotted(where, key)) for key, value in values.items()}
    try:
        return cls(**given)
    except OptionError as error:
        blamed = [_dotted(where, name) for name in _blamed(cls, given, str(error).removeprefix(f"{where}."))]
        raise SettingError(str(error), blamed) from error


def not_a_section(where: str, value: Any) -> SettingError:
    """Returns the error for a value where a mapping of settings has to be."""
    return SettingError(f"{where} is {_kind(value)}{shown(value)}; it must be a mapping of settings", [where])


def shown(value: Any) -> str:
    """Returns a value as it is written in YAML, on one line, shortened and without secrets."""
    if value is None:
        return "nothing"
    text = repr(hide(value)) if isinstance(value, str) else one_line(hide(value))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _convert(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        return _convert_to_one_of(hint, value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_mapping(hint, value, where)
    origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (
        origin is None
        and isinstance(hint, type)
        and isinstance(value, hint)
        and (hint is bool or not isinstance(value, bool))
    ):
        return value
    quotes = "; put it in quotes" if hint is str and isinstance(value, (bool, int, float)) else ""
    raise SettingError(f"{where} is {_kind(value)}{shown(value)}; it must be {_allowed(hint)}{quotes}", [where])


def _convert_to_one_of(hint: types.UnionType, value: Any, where: str) -> Any:
    members = [member for member in typing.get_args(hint) if member is not types.NoneType]
    if value is None and len(members) < len(typing.get_args(hint)):
        return None
    for member in members:
        if len(members) == 1 and dataclasses.is_dataclass(member):
            return _convert(member, value, where)
        with contextlib.suppress(OptionError):
            return _convert(member, value, where)
    raise SettingError(f"{where} is {_kind(value)}{shown(value)}; it must be {_allowed(hint)}", [where])


def _kind(value: Any) -> str:
    """Returns what a value is, in the words of who wrote it; a number or nothing needs none."""
    kinds = ((str, "the text "), ((list, tuple), "the list "), (Mapping, "the mapping "))
    return next((kind for types_, kind in kinds if isinstance(value, types_)), "")


def _allowed(hint: Any) -> str:
    """Returns what may stand for a type, such as `a list of texts, as [a, b]`."""
    if isinstance(hint, types.UnionType):
        return " or ".join(map(_allowed, typing.get_args(hint)))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return f"a list of {_MANY[arguments[0]]}, as [a, b]"
    if origin is not None:
        example = "{a: b}" if arguments[1] is str else "{a: 1, b: 2}"
        return f"a mapping of names to {_MANY[arguments[1]]}, as {example}"
    return _PLAIN[hint]


def _blamed(cls: type, given: Mapping[str, Any], message: str) -> list[str]:
    """Returns the names of the settings that keep a dataclass from being made.

    That is the one the message begins with, also as a field of one of the values; else those without which it is made.
    """
    word = re.match(r"(?:the )?(\w*)", message)
    named = word[1] if word else ""
    if named in given:
        return [named]
    for name, value in given.items():
        if dataclasses.is_dataclass(value) and named in {item.name for item in dataclasses.fields(value)}:
            return [f"{name}.{named}"]
    optional = {item.name for item in dataclasses.fields(cls) if not _is_required(item)}
    return [name for name in given if name in optional and _can_be_made(cls, given, name)]


def _can_be_made(cls: type, given: Mapping[str, Any], without: str) -> bool:
    try:
        cls(**{name: value for name, value in given.items() if name != without})
    except OptionError:
        return False
    return True


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _dotted(where: str, key: str) -> str:
    if where.startswith("-"):  # an option that takes a key and a value
        return f"{where} {key}"
    return f"{where}.{key}" if where else str(key)
