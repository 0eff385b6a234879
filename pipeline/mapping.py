"""Dataclasses from mappings, their fields checked by name and by type."""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from beam_jobs.errors import OptionError
from beam_jobs.suggest import unknown

T = TypeVar("T")


def from_mapping(cls: type[T], values: Any, where: str) -> T:
    """Builds a dataclass from a mapping, nested dataclasses included.

    Args:
      cls: a dataclass.
      values: field name -> value.
      where: name of the mapping in errors, such as `train`.

    Raises:
      OptionError: a key is unknown, missing or of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise OptionError(f"{where} is {values!r}; it must be a mapping of settings")
    fields = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise OptionError(unknown("setting", key, fields, f"{where}." if where else ""))
    for name, item in fields.items():
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING and name not in values:
            raise OptionError(f"{_dotted(where, name)} is missing; it has no default")
    return cls(**{key: _convert(hints[key], value, _dotted(where, key)) for key, value in values.items()})


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
    wanted = hint.__name__ if origin is None else str(hint)
    quotes = "; put it in quotes" if hint is str and not isinstance(value, (Mapping, list)) else ""
    raise OptionError(f"{where} is {value!r}; it must be of type {wanted}{quotes}")


def _convert_to_one_of(hint: types.UnionType, value: Any, where: str) -> Any:
    members = [member for member in typing.get_args(hint) if member is not types.NoneType]
    if value is None and len(members) < len(typing.get_args(hint)):
        return None
    if len(members) == 1:
        return _convert(members[0], value, where)
    for member in members:
        with contextlib.suppress(OptionError):
            return _convert(member, value, where)
    raise OptionError(f"{where} is {value!r}; it must be of type {hint}")


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else str(key)
