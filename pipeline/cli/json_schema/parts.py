"""Parts of schemas. Every key has a meaning; objects are closed, and lack no key but those they `may_lack`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]


def text(meaning: str, values: Iterable[str] = ()) -> Schema:
    """Returns a text, one of `values` when there are any."""
    return {"type": "string", **({"enum": list(values)} if values else {}), "description": meaning}


def whole(meaning: str, least: int | None = 0) -> Schema:
    """Returns a whole number of at least `least`; None for any."""
    return {"type": "integer", **({} if least is None else {"minimum": least}), "description": meaning}


def number(meaning: str) -> Schema:
    """Returns a number."""
    return {"type": "number", "description": meaning}


def share(meaning: str) -> Schema:
    """Returns a number from 0 to 1."""
    return {"type": "number", "minimum": 0, "maximum": 1, "description": meaning}


def truth(meaning: str) -> Schema:
    """Returns true or false."""
    return {"type": "boolean", "description": meaning}


def sha256(meaning: str) -> Schema:
    """Returns a SHA-256 in hex."""
    return {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": meaning}


def many(items: Schema, meaning: str) -> Schema:
    """Returns an array."""
    return {"type": "array", "items": items, "description": meaning}


def named(values: Schema, meaning: str) -> Schema:
    """Returns an object whose keys are names from the data."""
    return {"type": "object", "additionalProperties": values, "description": meaning}


def anything(meaning: str) -> Schema:
    """Returns an object whose keys another page describes."""
    return {"type": "object", "description": meaning}


def one(meaning: str, /, **keys: Schema) -> Schema:
    """Returns an object of exactly these keys; a `_` at the end of a name is left out, for words of Python."""
    properties = {name.rstrip("_"): schema for name, schema in keys.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "description": meaning,
    }


def may_lack(schema: Schema, *names: str) -> Schema:
    """Returns an object whose keys are all there but for some that may be absent."""
    return {**schema, "required": [name for name in schema["required"] if name not in names]}


def or_null(schema: Schema) -> Schema:
    """Returns what may also be null."""
    return {"anyOf": [schema, {"type": "null"}], "description": schema["description"]}


def either(*schemas: Schema) -> Schema:
    """Returns a choice; the description of each says when it is taken."""
    return {"type": "object", "anyOf": list(schemas)}
