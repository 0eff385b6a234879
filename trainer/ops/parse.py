"""Chains of ops as text: `"decode_random_crop(224)|flip"` is the same as `(DecodeRandomCrop(side=224), Flip())`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from beam_jobs.common.strings import parse_call, unknown
from beam_jobs.errors import OptionError
from trainer.ops.resize import METHODS


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _is_colour(value: object, least: float) -> bool:
    return isinstance(value, tuple) and len(value) in {0, 3} and all(_is_number(part, least, 255) for part in value)


def _pixels(least: int) -> tuple[str, Callable[[Any], bool]]:
    text = "above 0" if least else "of at least 0"
    return f"a whole number of pixels {text}", lambda value: _is_whole(value) and value >= least


def _share(most: float = 1.0) -> tuple[str, Callable[[Any], bool]]:
    return f"between 0 and {most:g}", lambda value: value is None or _is_number(value, 0, most)


# Argument -> what is allowed, and how to tell. The names mean the same in every op.
_ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "alpha": ("a number from 0.05 to 10", lambda value: _is_number(value, 0.05, 10)),
    "brightness": _share(),
    "contrast": _share(),
    "count": ("a whole number of 1 to 1000", lambda value: _is_whole(value) and 1 <= value <= 1000),
    "fill": ("a whole number of 0 to 255", lambda value: _is_whole(value) and 0 <= value <= 255),
    "hue": _share(0.5),
    "keep": _share(),
    "magnitude": ("a number from 0 to 30", lambda value: _is_number(value, 0, 30)),
    "margin": _pixels(0),
    "max_degrees": ("a number from 0 to 180", lambda value: _is_number(value, 0, 180)),
    "mean_rgb": ("three numbers of 0 to 255", lambda value: _is_colour(value, 0)),
    "method": (f"one of {', '.join(METHODS)}", lambda value: value in METHODS),
    "min_area": ("a share above 0 and up to 1", lambda value: _is_number(value, 1e-9, 1)),
    "mirror": ("True or False", lambda value: isinstance(value, bool)),
    "probability": _share(),
    "saturation": _share(),
    "side": _pixels(1),
    "std_rgb": ("three numbers of 0 to 255", lambda value: _is_colour(value, 0)),
    "strength": _share(),
}


def parse_chain(spec: str, table: Mapping[str, type], kind: str = "op") -> tuple[Any, ...]:
    """Reads a chain of ops such as `"decode_random_crop(224, min_area=0.3)|flip"`.

    Args:
      spec: the text.
      table: name -> op.
      kind: what an op of the table is called in an error.

    Raises:
      OptionError: the text is not such a chain, or names an unknown op or argument.
    """
    return tuple(_parse_op(part.strip(), spec, table, kind) for part in spec.split("|"))


def _parse_op(text: str, spec: str, table: Mapping[str, type], kind: str) -> Any:
    try:
        name, positional, named = parse_call(text)
    except ValueError as error:
        raise OptionError(f"ops {spec!r}: {text!r} is not an op; write a chain such as decode|resize(224)") from error
    if name not in table:
        raise OptionError(f"ops {spec!r}: {unknown(kind, name, table)}")
    try:
        op = table[name](*positional, **named)
    except TypeError as error:
        wanted = ", ".join(field.name for field in dataclasses.fields(table[name])) or "no argument"
        raise OptionError(f"ops {spec!r}: {text!r} does not fit; {name} takes {wanted}") from error
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        allowed, fits = _ARGUMENTS[field.name]
        if not fits(value):
            raise OptionError(f"ops {spec!r}: in {text!r} {field.name} is {value!r}; it must be {allowed}")
    return op
