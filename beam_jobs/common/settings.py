"""Options as dataclasses: the annotations of a field define its type, its range and its command-line option.

Checks, JSON, settings files, the command line and their reference pages are generated from these annotations and from
the docstring of the class, which describes each field. So a new option is one field and its description.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from beam_jobs.common.strings import hide_secrets, unknown
from beam_jobs.errors import OptionError

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

Count: TypeAlias = Annotated[int, Ge(0)]
Positive: TypeAlias = Annotated[int, Ge(1)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
BelowOne: TypeAlias = Annotated[float, Ge(0), Lt(1)]
NotNegative: TypeAlias = Annotated[float, Ge(0)]
AboveZero: TypeAlias = Annotated[float, Gt(0)]

T = TypeVar("T")
O = TypeVar("O", bound="Options")  # noqa: E741 - one letter, as T

_UNIONS = (types.UnionType, typing.Union)  # the types of `|` of classes, and of `|` of annotated types
_MAX_SHOWN = 120  # largest number of characters of a value in an error; a longer value would obscure the message
_NOUNS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null"}
_PLURALS = {str: "texts", int: "whole numbers", float: "numbers"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """The properties of a field besides its type, given as an annotation.

    Attributes:
      option: name of the command-line option; empty means `--` and the name of the field, None means no option.
      heading: heading of the option in the help; for a section, the heading of all its fields.
      prefix, suffix: for a section, text before and after the names of its fields on the command line.
      metavar: placeholder of the value in the help.
      needs: another field of the same class, and its values for which this field has an effect.
      scope: effect of the field: `bytes`, it changes the bytes of the dataset; `dataset`, it is stored with the dataset
        and changes no bytes; `run`, it only changes where and how a run works.
      append: rule for adding images to a dataset: `same`, the value must be that of the dataset; `kept`, the default is
        the value of the dataset; `free`, every addition may have another value.
      in_pipeline: whether the field is used in a pipeline.
    """

    option: str | None = ""
    heading: str = ""
    prefix: str = ""
    suffix: str = ""
    metavar: str = ""
    needs: tuple[str, tuple[str, ...]] | None = None
    scope: Literal["bytes", "dataset", "run"] = "bytes"
    append: Literal["same", "kept", "free"] = "kept"
    in_pipeline: bool = True


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Annotation with the texts that a field allows."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Returns the pydantic schema of the check."""
        return handler.generate_schema(Literal[self.names])


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options:
    """Base class of all options; instances are immutable, and checked in the constructor.

    Raises:
      OptionError: a value is not allowed; the message gives the value and the allowed values.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _convert_errors(cls, values: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(values)
        except ValidationError as error:
            raise _option_error(cls, error) from None

    def to_json(self) -> dict[str, Any]:
        """Returns the options as JSON values, which `from_json` reads."""
        values: dict[str, Any] = _adapter(cast(Any, type(self))).dump_python(self, mode="json")
        return values

    @classmethod
    def from_json(cls: type[O], values: Mapping[str, Any]) -> O:
        """Returns the options from the output of `to_json`.

        Raises:
          OptionError: a value is not allowed.
        """
        return from_mapping(cls, values, "")


@functools.cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def from_mapping(cls: type[T], values: Any, where: str) -> T:
    """Returns options from a mapping of a settings file, sections included.

    Args:
      cls: class of the options.
      values: field name -> value.
      where: name of the mapping in errors, such as `train`.

    Raises:
      OptionError: a key is unknown, missing or of the wrong type, or its value is not allowed; `keys` of the error are
        the dotted keys of the invalid settings.
    """
    if not isinstance(values, Mapping):
        raise not_a_section(where, values)
    fields_by_name = fields(cls)
    for key in values:
        if key not in fields_by_name:
            message = unknown("setting", key, fields_by_name, f"{where}." if where else "")
            raise OptionError(message, [_dotted(where, key)])
    for name, field in fields_by_name.items():
        if field.is_required and name not in values:
            raise OptionError(f"{_dotted(where, name)} is missing; it has no default", [])
    arguments = {name: _to_python(fields_by_name[name], value, _dotted(where, name)) for name, value in values.items()}
    try:
        return cls(**arguments)
    except OptionError as error:
        keys = error.keys or _find_invalid(cls, arguments, str(error).removeprefix(f"{where}."))
        message = f"{where}.{error}" if error.keys and where and not where.startswith("-") else str(error)
        raise OptionError(message, [_dotted(where, name) for name in keys]) from error


def not_a_section(where: str, value: Any) -> OptionError:
    """Returns the error for a value that must be a mapping of settings."""
    return OptionError(f"{where} is {_kind(value)}{as_yaml(value)}; it must be a mapping of settings", [where])


def as_yaml(value: Any) -> str:
    """Returns a value as a single line of YAML, shortened and without secrets."""
    from beam_jobs.common.yaml_text import one_line

    if value is None:
        return "nothing"
    text = repr(hide_secrets(value)) if isinstance(value, str) else one_line(hide_secrets(value))
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionField:
    """A field of options.

    Attributes:
      name: name of the field in the class.
      hint: type of the field, without annotations.
      annotations: annotations of the type: `Field`, `OneOf` and ranges.
      default: a new copy of the default; `dataclasses.MISSING` when a value is required.
      section: class of the section when the field is a section; else None.
    """

    name: str
    hint: Any
    annotations: tuple[Any, ...] = ()
    default: Any = dataclasses.MISSING
    section: type | None = None

    @property
    def is_required(self) -> bool:
        """Whether a value is required."""
        return self.default is dataclasses.MISSING

    @property
    def field(self) -> Field:
        """The `Field` annotation."""
        return next((annotation for annotation in self.annotations if isinstance(annotation, Field)), Field())

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed texts; empty when other texts are allowed, too."""
        return next((annotation.names for annotation in self.annotations if isinstance(annotation, OneOf)), ())


def fields(cls: type) -> dict[str, OptionField]:
    """Returns name -> field of a class of options, in the order of the class."""
    hints = _hints(cls)
    return {item.name: _option_field(item, hints[item.name]) for item in dataclasses.fields(cls)}


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """Returns field name -> description, from the docstring of the class, or of the base class that defines it."""
    text = inspect.cleandoc(cls.__doc__ or "")
    block = re.search(r"^Attributes:\n((?:  .*\n?)+)", text, re.MULTILINE)
    items = re.findall(r"^  (\w+): ((?:.+\n?)(?:    .+\n?)*)", block[1] if block else "", re.MULTILINE)
    inherited = {name: meaning for base in reversed(cls.__bases__) for name, meaning in meanings(base).items()}
    return inherited | {name: " ".join(meaning.split()) for name, meaning in items}


def describe_allowed(hint: Any, annotations: tuple[Any, ...] = ()) -> str:
    """Returns a description of the allowed values of a type, such as `a whole number of at least 1`."""
    if typing.get_origin(hint) in _UNIONS:
        return " or ".join(describe_allowed(*_split_annotated(member)) for member in typing.get_args(hint))
    if typing.get_origin(hint) is Annotated:
        return describe_allowed(*_split_annotated(hint))
    for annotation in annotations:
        if isinstance(annotation, OneOf):
            names = [name for name in annotation.names if name]
            return f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return f"a list of {_PLURALS[_split_annotated(arguments[0])[0]]}, as [a, b]"
    if origin is not None:
        example = "{a: b}" if arguments[1] is str else "{a: 1, b: 2}"
        return f"a mapping of names to {_PLURALS[_split_annotated(arguments[1])[0]]}, as {example}"
    return _describe_range(_NOUNS[hint], {type(annotation): annotation for annotation in annotations})


def _describe_range(kind: str, limits: Mapping[type, Any]) -> str:
    least, above = limits.get(Ge), limits.get(Gt)
    most, below = limits.get(Le), limits.get(Lt)
    if least and most:
        return f"{kind} from {least.ge} to {most.le}" if kind == _NOUNS[int] else f"between {least.ge} and {most.le}"
    if least and below:
        return f"{kind if kind == _NOUNS[int] else ''} from {least.ge} to below {below.lt}".lstrip()
    if least:
        return f"{kind} of at least {least.ge:g}"
    return f"{kind} above {above.gt:g}" if above else kind


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _split_annotated(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type without its annotations, and the annotations."""
    return (hint.__origin__, hint.__metadata__) if typing.get_origin(hint) is Annotated else (hint, ())


def _option_field(item: dataclasses.Field[Any], hint: Any) -> OptionField:
    field_type, annotations = _split_annotated(hint)
    members = typing.get_args(field_type) if typing.get_origin(field_type) in _UNIONS else (field_type,)
    sections = [member for member in members if isinstance(member, type) and dataclasses.is_dataclass(member)]
    return OptionField(
        name=item.name,
        hint=field_type,
        annotations=annotations,
        default=item.default if item.default_factory is dataclasses.MISSING else item.default_factory(),
        section=sections[0] if sections else None,
    )


def _to_python(field: OptionField, value: Any, where: str) -> Any:
    """Converts a value of a settings file for the constructor of its class."""
    if field.section and not (value is None and field.default is None):
        return from_mapping(field.section, value, where)
    return tuple(value) if isinstance(value, list) else value


def _option_error(cls: type, error: ValidationError) -> Exception:
    """Converts the first error of pydantic to an error of the options."""
    errors = error.errors(include_url=False)
    name = str(errors[0]["loc"][0])
    # For a union, report the member whose check failed deepest in the value.
    fault = max((item for item in errors if str(item["loc"][0]) == name), key=lambda item: len(item["loc"]))
    fields_by_name = fields(cls)
    if any(isinstance(item["loc"][0], int) for item in errors):
        return TypeError(f"{cls.__name__} accepts options only as keyword arguments")
    if name not in fields_by_name:
        return OptionError(unknown("setting", name, fields_by_name), [name])
    if fault["type"].startswith("missing"):
        return OptionError(f"{name} is missing; it has no default", [])
    return OptionError(_invalid_value(fields_by_name[name], fault["loc"][1:], fault["type"], fault["input"]), [name])


def _invalid_value(field: OptionField, position: Sequence[int | str], kind: str, value: Any) -> str:
    """Returns the message about an invalid value.

    Args:
      field: the field.
      position: position in the value, as reported by pydantic; it includes the members of a union.
      kind: type of the error, as reported by pydantic.
      value: the invalid part of the value.
    """
    name, hint, annotations = field.name, field.hint, field.annotations
    members = list(map(_split_annotated, typing.get_args(hint))) if typing.get_origin(hint) in _UNIONS else []
    mapping = next((member for member, _ in [*members, (hint, ())] if _is_mapping(member)), None)
    if position and position[-1] == "[key]":
        return f"{name} names {as_yaml(value)}; names are text, so write {str(value)!r}"
    if mapping and len(position) > bool(members):  # the first item is the member of a union
        name, (hint, annotations) = f"{name}.{position[-1]}", _split_annotated(typing.get_args(mapping)[1])
    elif position and typing.get_origin(hint) is tuple and kind == "literal_error":
        hint, annotations = _split_annotated(typing.get_args(hint)[0])
    prefix = _kind(value) if kind.endswith("_type") else ""
    is_free_text = hint is str and not any(isinstance(member, OneOf) for member in annotations)
    quotes = "; put it in quotes" if is_free_text and isinstance(value, (bool, int, float)) else ""
    return f"{name} is {prefix}{as_yaml(value)}; it must be {describe_allowed(hint, annotations)}{quotes}"


def _is_mapping(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _kind(value: Any) -> str:
    """Returns the kind of a value, in the terms of a settings file; empty for numbers, booleans and null."""
    kinds = ((str, "the text "), ((list, tuple), "the list "), (Mapping, "the mapping "))
    return next((kind for types_, kind in kinds if isinstance(value, types_)), "")


def _find_invalid(cls: type, arguments: Mapping[str, Any], message: str) -> list[str]:
    """Returns the names of the settings that make options invalid.

    If the message begins with the name of a setting, or of a field of a section, it is only that name; else it is every
    setting without which the options are valid.
    """
    word = re.match(r"(?:the )?(\w*)", message)
    first_name = word[1] if word else ""
    if first_name in arguments:
        return [first_name]
    for name, value in arguments.items():
        if dataclasses.is_dataclass(value) and first_name in {item.name for item in dataclasses.fields(value)}:
            return [f"{name}.{first_name}"]
    optional = {name for name, field in fields(cls).items() if not field.is_required}
    return [name for name in arguments if name in optional and _is_valid_without(cls, arguments, name)]


def _is_valid_without(cls: type, arguments: Mapping[str, Any], omitted: str) -> bool:
    try:
        cls(**{name: value for name, value in arguments.items() if name != omitted})
    except OptionError:
        return False
    return True


def _dotted(where: str, key: object) -> str:
    if where.startswith("-"):  # an option that takes a key and a value
        return f"{where} {key}"
    return f"{where}.{key}" if where else str(key)
