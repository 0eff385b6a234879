"""Schema files, the features of a schema as rows of a table, and the differences of two schemas. Imports no TensorFlow.

A schema file contains a `tensorflow.metadata.v0.Schema` in text format.
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
_MAX_BYTES = 16 << 20  # maximum size of a schema file; a category needs about 30 bytes
SCHEMA_NAME = "schema.pbtxt"  # inside a `Schema` artifact, where the components of TFX look for it


def read_schema_text(path: str) -> str:
    """Returns the text of a schema file after validating it.

    Raises:
      OptionError: the file cannot be read, or is not a schema.
    """
    return _parse_file(path)[0]


def read_schema(path: str) -> schema_pb2.Schema:
    """Returns the schema in a file.

    Raises:
      OptionError: the file cannot be read, or is not a schema.
    """
    return _parse_file(path)[1]


def write_schema(schema: schema_pb2.Schema, path: str) -> None:
    """Writes a schema file, atomically.

    Raises:
      OSError: the file cannot be written.
    """
    storage.write_bytes(path, text_format.MessageToString(schema, as_utf8=True).encode())


def _parse_file(path: str) -> tuple[str, schema_pb2.Schema]:
    try:
        text = storage.read_at_most(path, _MAX_BYTES).decode()
        schema = text_format.Parse(text, schema_pb2.Schema())
    except RecursionError:
        raise OptionError(f"schema {path} cannot be used: it is nested too deep; {_REMEDY}") from None
    except (OSError, ValueError, text_format.ParseError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())  # `strerror` is without the path
        raise OptionError(f"schema {path} cannot be used: {reason}; {_REMEDY}") from error
    if not schema.feature:
        raise OptionError(f"schema {path} names no feature; {_REMEDY}")
    return text, schema


SCHEMA_ROW = "(schema)"  # name of the row with fields of the schema that belong to no feature
_TYPES = {schema_pb2.BYTES: "bytes", schema_pb2.INT: "int", schema_pb2.FLOAT: "float", schema_pb2.STRUCT: "struct"}
_MAX_VALUES_LENGTH = 60  # characters


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table of a schema: a feature.

    Attributes:
      name: name of the feature.
      type: `bytes`, `int`, `float` or `struct`; `any` if the schema has no type.
      presence: `required`, `in 90 %` of the records, `at least 1` record, or `optional`; may combine two of them.
      shape: number of values per record, such as `1`, `2x3`, `0-5` or `1 or more`; `any` if the schema has none.
      domain: range or kind of the allowed values; empty if all values are allowed.
      values: allowed texts, if the domain is a set of texts; otherwise empty.
      other: all other fields of the schema, in its text format.
    """

    name: str
    type: str = ""
    presence: str = ""
    shape: str = ""
    domain: str = ""
    values: tuple[str, ...] = ()
    other: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the row as JSON values."""
        return {**asdict(self), "values": list(self.values)}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Differences between two schemas.

    Attributes:
      added: rows that only the new schema has.
      removed: rows that only the old schema has.
      changed: feature -> its rows in the old and in the new schema.
    """

    added: tuple[Row, ...]
    removed: tuple[Row, ...]
    changed: Mapping[str, tuple[Row, Row]]

    def __len__(self) -> int:
        """Returns the number of features that differ."""
        return len(self.added) + len(self.removed) + len(self.changed)


def rows(schema: schema_pb2.Schema) -> list[Row]:
    """Returns a row for each feature, in the order of the schema."""
    domains = {domain.name: domain for domain in schema.string_domain}
    feature_rows = [_feature_row(feature, domains) for feature in schema.feature]
    other_fields = schema_pb2.Schema()
    other_fields.CopyFrom(schema)
    del other_fields.feature[:], other_fields.string_domain[:]
    other = _one_line(other_fields)
    return [*feature_rows, Row(name=SCHEMA_ROW, other=other)] if other else feature_rows


def difference(old: schema_pb2.Schema, new: schema_pb2.Schema) -> Difference:
    """Returns the differences, ignoring the order of the features and of the values of a set."""
    old_rows, new_rows = ({row.name: row for row in rows(schema)} for schema in (old, new))
    return Difference(
        added=tuple(row for name, row in new_rows.items() if name not in old_rows),
        removed=tuple(row for name, row in old_rows.items() if name not in new_rows),
        changed={
            name: (row, new_rows[name])
            for name, row in old_rows.items()
            if name in new_rows and _sorted_fields(row) != _sorted_fields(new_rows[name])
        },
    )


def changes(old: Row, new: Row) -> dict[str, tuple[str, str]]:
    """Returns name of the field -> its texts in the old and in the new row, for the fields that differ."""
    before, after = _sorted_fields(old), _sorted_fields(new)
    return {
        name: _set_change(old.values, new.values) if name == "values" else (before[name], after[name])
        for name in before
        if before[name] != after[name]
    }


def domain_text(row: Row) -> str:
    """Returns the domain of a row as text for a table; a long list of values is shortened."""
    return _join_shortened(row.values) if row.values else row.domain


def _sorted_fields(row: Row) -> dict[str, Any]:
    return {**asdict(row), "values": sorted(row.values)}


def _set_change(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, str]:
    """Returns, for each set, its size and the values that the other set lacks: complete lists would be too long."""
    removed, added = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    return (
        f"{len(old)} values" + (f", with {_join_shortened(removed)}" if removed else ""),
        f"{len(new)} values" + (f", with {_join_shortened(added)}" if added else ""),
    )


def _join_shortened(values: Iterable[str]) -> str:
    values = list(values)
    text = ", ".join(values)
    if len(text) <= _MAX_VALUES_LENGTH:
        return text
    return f"{text[:_MAX_VALUES_LENGTH]}... ({len(values):,} values)"


def _feature_row(feature: schema_pb2.Feature, domains: Mapping[str, schema_pb2.StringDomain]) -> Row:
    other_fields = schema_pb2.Feature()
    other_fields.CopyFrom(feature)
    domain, values = _remove_domain(other_fields, domains)
    for name in ("name", "type", "presence", "shape", "value_count"):
        other_fields.ClearField(name)
    return Row(
        name=feature.name,
        type=_TYPES.get(feature.type, "any"),
        presence=_presence_text(feature.presence),
        shape=_shape_text(feature),
        domain=domain,
        values=values,
        other=_one_line(other_fields),
    )


def _presence_text(presence: schema_pb2.FeaturePresence) -> str:
    count = f"at least {presence.min_count:,}"
    if presence.min_fraction <= 0:
        return count if presence.min_count else "optional"
    share = "required" if presence.min_fraction >= 1 else f"in {100 * presence.min_fraction:g} %"
    return f"{share}, {count}" if presence.min_count > 1 else share


def _shape_text(feature: schema_pb2.Feature) -> str:
    kind = feature.WhichOneof("shape_type")
    if kind == "shape":
        return "x".join(str(dim.size) for dim in feature.shape.dim) or "scalar"
    if kind != "value_count":
        return "any"
    least, most = feature.value_count.min, feature.value_count.max
    if not feature.value_count.HasField("max"):
        return f"{least} or more"
    return str(least) if least == most else f"{least}-{most}"


def _remove_domain(
    feature: schema_pb2.Feature, domains: Mapping[str, schema_pb2.StringDomain]
) -> tuple[str, tuple[str, ...]]:
    """Removes the domain from a feature, and returns the range or kind of the values, and the values of a set."""
    kind = feature.WhichOneof("domain_info")
    if kind == "domain" and feature.domain in domains:
        values = tuple(domains[feature.domain].value)
        feature.ClearField("domain")
        return "set", values
    if kind not in {"string_domain", "int_domain", "float_domain", "bool_domain"}:
        return "", ()
    message = getattr(feature, kind)
    values = tuple(message.value) if kind == "string_domain" else ()
    text = {"string_domain": "set", "bool_domain": "true or false"}.get(kind) or _range_text(message)
    for name in ("value", "min", "max"):
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    if not message.ListFields():
        feature.ClearField(kind)
    return text, values


def _range_text(domain: schema_pb2.IntDomain | schema_pb2.FloatDomain) -> str:
    least = _number_text(domain.min) if domain.HasField("min") else ""
    most = _number_text(domain.max) if domain.HasField("max") else ""
    if least and most:
        return f"{least} to {most}"
    return f"{least} or more" if least else f"{most} or less" if most else "any number"


def _number_text(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return np.format_float_positional(np.float32(value), trim="-")  # the shortest text that identifies a float32


def _one_line(message: Message) -> str:
    return text_format.MessageToString(message, as_one_line=True, as_utf8=True)
