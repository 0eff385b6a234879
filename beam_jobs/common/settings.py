"""Options as dataclasses: the annotations of a field hold its type, its range and its place on the command line.

Checks, JSON, settings files, the command line and the pages about all of them are made from these annotations, and from
the docstring of the class, which says what each field means. A new option is one line of each, in one file.
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
O = TypeVar("O", bound="Options")  # noqa: E741 - as T, for options

_UNIONS = (types.UnionType, typing.Union)  # `|` makes the one of classes, the other of annotated types
_SHOWN = 120  # characters of a value in an error; a whole section would hide the rest of the message
_PLAIN = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null"}
_MANY = {str: "texts", int: "whole numbers", float: "numbers"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """What an annotation says of a field besides its type.

    Attributes:
      option: its name on the command line; empty is `--` and the name of the field, None is no option.
      heading: of the part of the help that the option stands in; of a section, that of all its fields.
      prefix, suffix: of a section, what its fields have on the command line before and after their names.
      metavar: stands for the value in the help.
      needs: another field of the same class, and the values of it with which this one does something.
      scope: what it decides: which `bytes` are written, or nothing of a `run` but where and how the work is done; of a
        `dataset` it is kept and decides no bytes.
      append: whether images that are added to a dataset must have the `same`, the dataset's is `kept` where none is
        given, or each addition is `free`.
      in_pipeline: whether a pipeline has a use for it.
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
    """The texts that a field may be."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Returns the check."""
        return handler.generate_schema(Literal[self.names])


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options:
    """Base of all options; immutable and checked when they are made.

    Raises:
      OptionError: a value is not allowed; the message names it and what is allowed.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, values: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(values)
        except ValidationError as error:
            raise _explanation(cls, error) from None

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_json` takes them back."""
        values: dict[str, Any] = _adapter(cast(Any, type(self))).dump_python(self, mode="json")
        return values

    @classmethod
    def from_json(cls: type[O], values: Mapping[str, Any]) -> O:
        """Builds the options from `to_json` output.

        Raises:
          OptionError: a value is not allowed.
        """
        return from_mapping(cls, values, "")


@functools.cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def from_mapping(cls: type[T], values: Any, where: str) -> T:
    """Builds options from a mapping as a settings file has it, sections included.

    Args:
      cls: class of the options.
      values: field name -> value.
      where: name of the mapping in errors, such as `train`.

    Raises:
      OptionError: a key is unknown, missing or of the wrong type, or its value is not allowed; `keys` holds the dotted
        keys of the settings that it is about.
    """
    if not isinstance(values, Mapping):
        raise not_a_section(where, values)
    known = fields(cls)
    for key in values:
        if key not in known:
            message = unknown("setting", key, known, f"{where}." if where else "")
            raise OptionError(message, [_dotted(where, key)])
    for name, field in known.items():
        if field.is_required and name not in values:
            raise OptionError(f"{_dotted(where, name)} is missing; it has no default", [])
    given = {name: _plain(known[name], value, _dotted(where, name)) for name, value in values.items()}
    try:
        return cls(**given)
    except OptionError as error:
        keys = error.keys or _blamed(cls, given, str(error).removeprefix(f"{where}."))
        message = f"{where}.{error}" if error.keys and where and not where.startswith("-") else str(error)
        raise OptionError(message, [_dotted(where, name) for name in keys]) from error


def not_a_section(where: str, value: Any) -> OptionError:
    """Returns the error for a value where a mapping of settings has to be."""
    return OptionError(f"{where} is {_kind(value)}{shown(value)}; it must be a mapping of settings", [where])


def shown(value: Any) -> str:
    """Returns a value as it is written in YAML, on one line, shortened and without secrets."""
    from beam_jobs.common.yaml_text import one_line

    if value is None:
        return "nothing"
    text = repr(hide_secrets(value)) if isinstance(value, str) else one_line(hide_secrets(value))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """A field of options.

    Attributes:
      name: as in the class.
      hint: its type, without annotations.
      annotations: `Field`, `OneOf` and ranges.
      default: a fresh copy of it; `dataclasses.MISSING` where a value must be given.
      section: the class where the field is a section of its own.
    """

    name: str
    hint: Any
    annotations: tuple[Any, ...] = ()
    default: Any = dataclasses.MISSING
    section: type | None = None

    @property
    def is_required(self) -> bool:
        """Whether a value must be given."""
        return self.default is dataclasses.MISSING

    @property
    def field(self) -> Field:
        """What the annotation says besides the type."""
        return next((one for one in self.annotations if isinstance(one, Field)), Field())

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that are allowed, where they are listed."""
        return next((one.names for one in self.annotations if isinstance(one, OneOf)), ())


def fields(cls: type) -> dict[str, Described]:
    """Returns name -> field of a class of options, in their order."""
    hints = _hints(cls)
    return {item.name: _described(item, hints[item.name]) for item in dataclasses.fields(cls)}


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """Returns field -> its meaning, from the docstring of its class, or of the base that it is inherited from."""
    text = inspect.cleandoc(cls.__doc__ or "")
    block = re.search(r"^Attributes:\n((?:  .*\n?)+)", text, re.MULTILINE)
    items = re.findall(r"^  (\w+): ((?:.+\n?)(?:    .+\n?)*)", block[1] if block else "", re.MULTILINE)
    inherited = {name: meaning for base in reversed(cls.__bases__) for name, meaning in meanings(base).items()}
    return inherited | {name: " ".join(meaning.split()) for name, meaning in items}


def allowed(hint: Any, annotations: tuple[Any, ...] = ()) -> str:
    """Returns what may stand for a type with its range, such as `a whole number of at least 1`."""
    if typing.get_origin(hint) in _UNIONS:
        return " or ".join(allowed(*_bare(member)) for member in typing.get_args(hint))
    if typing.get_origin(hint) is Annotated:
        return allowed(*_bare(hint))
    for one in annotations:
        if isinstance(one, OneOf):
            names = [name for name in one.names if name]
            return f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return f"a list of {_MANY[_bare(arguments[0])[0]]}, as [a, b]"
    if origin is not None:
        example = "{a: b}" if arguments[1] is str else "{a: 1, b: 2}"
        return f"a mapping of names to {_MANY[_bare(arguments[1])[0]]}, as {example}"
    return _range(_PLAIN[hint], {type(one): one for one in annotations})


def _range(kind: str, limits: Mapping[type, Any]) -> str:
    least, above = limits.get(Ge), limits.get(Gt)
    most, below = limits.get(Le), limits.get(Lt)
    if least and most:
        return f"{kind} from {least.ge} to {most.le}" if kind == _PLAIN[int] else f"between {least.ge} and {most.le}"
    if least and below:
        return f"{kind if kind == _PLAIN[int] else ''} from {least.ge} to below {below.lt}".lstrip()
    if least:
        return f"{kind} of at least {least.ge:g}"
    return f"{kind} above {above.gt:g}" if above else kind


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type without its annotations, and these."""
    return (hint.__origin__, hint.__metadata__) if typing.get_origin(hint) is Annotated else (hint, ())


def _described(item: dataclasses.Field[Any], hint: Any) -> Described:
    bare, annotations = _bare(hint)
    members = typing.get_args(bare) if typing.get_origin(bare) in _UNIONS else (bare,)
    sections = [one for one in members if isinstance(one, type) and dataclasses.is_dataclass(one)]
    return Described(
        name=item.name,
        hint=bare,
        annotations=annotations,
        default=item.default if item.default_factory is dataclasses.MISSING else item.default_factory(),
        section=sections[0] if sections else None,
    )


def _plain(field: Described, value: Any, where: str) -> Any:
    """Returns a value of a settings file as a class of options takes it."""
    if field.section and not (value is None and field.default is None):
        return from_mapping(field.section, value, where)
    return tuple(value) if isinstance(value, list) else value


def _explanation(cls: type, error: ValidationError) -> Exception:
    """Returns the error of a class of options for what pydantic found first."""
    errors = error.errors(include_url=False)
    place = str(errors[0]["loc"][0])
    # Of the members of a union, the one that the value came furthest with is meant.
    first = max((one for one in errors if str(one["loc"][0]) == place), key=lambda one: len(one["loc"]))
    known = fields(cls)
    if any(isinstance(one["loc"][0], int) for one in errors):
        return TypeError(f"{cls.__name__} takes its options by name")
    if place not in known:
        return OptionError(unknown("setting", place, known), [place])
    if first["type"].startswith("missing"):
        return OptionError(f"{place} is missing; it has no default", [])
    return OptionError(_refusal(known[place], first["loc"][1:], first["type"], first["input"]), [place])


def _refusal(field: Described, inside: Sequence[int | str], kind: str, value: Any) -> str:
    """Returns what is wrong with a value.

    Args:
      field: that it is given for.
      inside: where in the value, as pydantic has it; the members of a union are named, too.
      kind: of the error, as pydantic has it.
      value: the part that is refused.
    """
    name, hint, annotations = field.name, field.hint, field.annotations
    members = [_bare(one) for one in (typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else ())]
    mapping = next((one for one, _ in [*members, (hint, ())] if _is_mapping(one)), None)
    if inside and inside[-1] == "[key]":
        return f"{name} names {shown(value)}; names are text, so write {str(value)!r}"
    if mapping and len(inside) > bool(members):
        name, (hint, annotations) = f"{name}.{inside[-1]}", _bare(typing.get_args(mapping)[1])
    elif inside and typing.get_origin(hint) is tuple and kind == "literal_error":
        hint, annotations = _bare(typing.get_args(hint)[0])
    written = _kind(value) if kind.endswith("_type") else ""
    is_free_text = hint is str and not any(isinstance(one, OneOf) for one in annotations)
    quotes = "; put it in quotes" if is_free_text and isinstance(value, (bool, int, float)) else ""
    return f"{name} is {written}{shown(value)}; it must be {allowed(hint, annotations)}{quotes}"


def _is_mapping(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _kind(value: Any) -> str:
    """Returns what a value is, in the words of a settings file; a number or nothing needs none."""
    kinds = ((str, "the text "), ((list, tuple), "the list "), (Mapping, "the mapping "))
    return next((kind for types_, kind in kinds if isinstance(value, types_)), "")


def _blamed(cls: type, given: Mapping[str, Any], message: str) -> list[str]:
    """Returns the names of the settings that keep options from being made.

    That is the one the message begins with, also as a field of one of the values; else those without which they are.
    """
    word = re.match(r"(?:the )?(\w*)", message)
    named = word[1] if word else ""
    if named in given:
        return [named]
    for name, value in given.items():
        if dataclasses.is_dataclass(value) and named in {item.name for item in dataclasses.fields(value)}:
            return [f"{name}.{named}"]
    optional = {name for name, field in fields(cls).items() if not field.is_required}
    return [name for name in given if name in optional and _can_be_made(cls, given, name)]


def _can_be_made(cls: type, given: Mapping[str, Any], without: str) -> bool:
    try:
        cls(**{name: value for name, value in given.items() if name != without})
    except OptionError:
        return False
    return True


def _dotted(where: str, key: object) -> str:
    if where.startswith("-"):  # an option that takes a key and a value
        return f"{where} {key}"
    return f"{where}.{key}" if where else str(key)
