"""A schema as people review it: its text file, its rows, and what differs between two. Imports no TensorFlow.

A file is text of a `tensorflow.metadata.v0.Schema`, for people to read and edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from google.protobuf import text_format
from google.protobuf.message import Message
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_jobs import storage
from beam_jobs.errors import OptionError

_REMEDY = "`feedline schema init DATASET --out FILE` writes one"
_MAX_BYTES = 16 << 20  # a category takes 30
SCHEMA_NAME = "schema.pbtxt"  # inside a `Schema` artifact, where the components of TFX look for it


def read_schema_text(path: str) -> str:
    """Returns the text of a schema file, which is known to be a schema.

    Raises:
      OptionError: it cannot be read, or is not a schema.
    """
    return _parse_file(path)[0]


def read_schema(path: str) -> schema_pb2.Schema:
    """Returns the schema of a file.

    Raises:
      OptionError: it cannot be read, or is not a schema.
    """
    return _parse_file(path)[1]


def write_schema(schema: schema_pb2.Schema, path: str) -> None:
    """Writes a schema file, atomically.

    Raises:
      OSError: it cannot be written.
    """
    storage.write_bytes(path, text_format.MessageToString(schema, as_utf8=True).encode())


def _parse_file(path: str) -> tuple[str, schema_pb2.Schema]:
    try:
        text = storage.read_at_most(path, _MAX_BYTES).decode()
        schema = text_format.Parse(text, schema_pb2.Schema())
    except RecursionError:
        raise OptionError(f"schema {path} cannot be used: it is nested too deep; {_REMEDY}") from None
    except (OSError, ValueError, text_format.ParseError) as error:
        what = getattr(error, "strerror", None) or " ".join(str(error).split())  # without the path once more
        raise OptionError(f"schema {path} cannot be used: {what}; {_REMEDY}") from error
    if not schema.feature:
        raise OptionError(f"schema {path} names no feature; {_REMEDY}")
    return text, schema


WHOLE_SCHEMA = "(schema)"  # the row about the schema as a whole
_TYPES = {schema_pb2.BYTES: "bytes", schema_pb2.INT: "int", schema_pb2.FLOAT: "float", schema_pb2.STRUCT: "struct"}
_SHOWN_VALUES = 60  # characters


@dataclass(frozen=True, kw_only=True)
class Row:
    """One feature.

    Attributes:
      name: of the feature.
      type: `bytes`, `int`, `float` or `struct`; `any` when the schema does not say.
      presence: `required`, `in 90 %`, `at least 1` (record of all), `optional`.
      shape: values a record, such as `1`, `2x3`, `0-5` or `1 or more`; `any` when the schema does not say.
      domain: range or kind of the values; empty for any.
      values: closed set of texts; empty unless the domain is one.
      other: everything else that the schema says, as it stands in the file.
    """

    name: str
    type: str = ""
    presence: str = ""
    shape: str = ""
    domain: str = ""
    values: tuple[str, ...] = ()
    other: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {**asdict(self), "values": list(self.values)}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What differs between two schemas.

    Attributes:
      added: rows that only the new one has.
      removed: rows that only the old one has.
      changed: feature -> the row of the old and of the new.
    """

    added: tuple[Row, ...]
    removed: tuple[Row, ...]
    changed: Mapping[str, tuple[Row, Row]]

    def __len__(self) -> int:
        """Returns the number of features that differ."""
        return len(self.added) + len(self.removed) + len(self.changed)


def rows(schema: schema_pb2.Schema) -> list[Row]:
    """Returns a row a feature, in the order of the schema."""
    domains = {domain.name: domain for domain in schema.string_domain}
    found = [_row(feature, domains) for feature in schema.feature]
    whole = schema_pb2.Schema()
    whole.CopyFrom(schema)
    del whole.feature[:], whole.string_domain[:]
    other = _one_line(whole)
    return [*found, Row(name=WHOLE_SCHEMA, other=other)] if other else found


def difference(old: schema_pb2.Schema, new: schema_pb2.Schema) -> Difference:
    """Returns what differs; the order of features does not matter, nor that of the values of a set."""
    before, after = ({row.name: row for row in rows(schema)} for schema in (old, new))
    return Difference(
        added=tuple(row for name, row in after.items() if name not in before),
        removed=tuple(row for name, row in before.items() if name not in after),
        changed={
            name: (row, after[name])
            for name, row in before.items()
            if name in after and _compared(row) != _compared(after[name])
        },
    )


def changes(old: Row, new: Row) -> dict[str, tuple[str, str]]:
    """Returns field -> its text in the old and in the new row, of the fields that differ."""
    before, after = _compared(old), _compared(new)
    return {
        name: _set_change(old.values, new.values) if name == "values" else (before[name], after[name])
        for name in before
        if before[name] != after[name]
    }


def shown_domain(row: Row) -> str:
    """Returns the domain of a row for a table: the values of a set, as many as fit."""
    return _some(row.values) if row.values else row.domain


def _compared(row: Row) -> dict[str, Any]:
    return {**asdict(row), "values": sorted(row.values)}


def _set_change(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, str]:
    """Returns what each set has that the other has not: two long lists would hide it."""
    before, after = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    return (
        f"{len(old)} values" + (f", with {_some(before)}" if before else ""),
        f"{len(new)} values" + (f", with {_some(after)}" if after else ""),
    )


def _some(values: Iterable[str]) -> str:
    values = list(values)
    text = ", ".join(values)
    if len(text) <= _SHOWN_VALUES:
        return text
    return f"{text[:_SHOWN_VALUES]}... ({len(values):,} values)"


def _row(feature: schema_pb2.Feature, domains: Mapping[str, schema_pb2.StringDomain]) -> Row:
    rest = schema_pb2.Feature()
    rest.CopyFrom(feature)
    domain, values = _take_domain(rest, domains)
    for name in ("name", "type", "presence", "shape", "value_count"):
        rest.ClearField(name)
    return Row(
        name=feature.name,
        type=_TYPES.get(feature.type, "any"),
        presence=_presence(feature.presence),
        shape=_shape(feature),
        domain=domain,
        values=values,
        other=_one_line(rest),
    )


def _presence(presence: schema_pb2.FeaturePresence) -> str:
    count = f"at least {presence.min_count:,}"
    if presence.min_fraction <= 0:
        return count if presence.min_count else "optional"
    share = "required" if presence.min_fraction >= 1 else f"in {100 * presence.min_fraction:g} %"
    return f"{share}, {count}" if presence.min_count > 1 else share


def _shape(feature: schema_pb2.Feature) -> str:
    kind = feature.WhichOneof("shape_type")
    if kind == "shape":
        return "x".join(str(dim.size) for dim in feature.shape.dim) or "scalar"
    if kind != "value_count":
        return "any"
    least, most = feature.value_count.min, feature.value_count.max
    if not feature.value_count.HasField("max"):
        return f"{least} or more"
    return str(least) if least == most else f"{least}-{most}"


def _take_domain(
    rest: schema_pb2.Feature, domains: Mapping[str, schema_pb2.StringDomain]
) -> tuple[str, tuple[str, ...]]:
    """Returns the kind or range of the values and the values of a set, and takes what they say out of the feature."""
    kind = rest.WhichOneof("domain_info")
    if kind == "domain" and rest.domain in domains:
        values = tuple(domains[rest.domain].value)
        rest.ClearField("domain")
        return "set", values
    if kind not in {"string_domain", "int_domain", "float_domain", "bool_domain"}:
        return "", ()
    message = getattr(rest, kind)
    values = tuple(message.value) if kind == "string_domain" else ()
    text = {"string_domain": "set", "bool_domain": "true or false"}.get(kind) or _range(message)
    for name in ("value", "min", "max"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    if not message.ListFields():
        rest.ClearField(kind)
    return text, values


def _range(domain: schema_pb2.IntDomain | schema_pb2.FloatDomain) -> str:
    least = _number(domain.min) if domain.HasField("min") else ""
    most = _number(domain.max) if domain.HasField("max") else ""
    if least and most:
        return f"{least} to {most}"
    return f"{least} or more" if least else f"{most} or less" if most else "any number"


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return np.format_float_positional(np.float32(value), trim="-")  # as few digits as tell a float32 from others


def _one_line(message: Message) -> str:
    return text_format.MessageToString(message, as_one_line=True, as_utf8=True)
