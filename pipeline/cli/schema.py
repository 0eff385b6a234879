"""`feedline schema`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from beam_jobs import storage
from beam_jobs.common.strings import plural
from beam_jobs.errors import DataError, OptionError
from beam_jobs.storage import disk
from pipeline.cli.click_groups import DIR, FILE, PATH, Group
from pipeline.cli.common import echo, json_option, print_json, say

if TYPE_CHECKING:
    from tensorflow_metadata.proto.v0 import schema_pb2

    from components.schema.schema_text import Difference, Row

_COLUMNS = ("name", "type", "presence", "shape", "domain")


@click.group("schema", cls=Group)
def command() -> None:
    """Infer, read and compare schemas.

    A schema lists the features of a dataset with their types and limits. `feedline run --schema FILE` validates new
    data against it.

    \b
    Examples:
      feedline schema init dataset --out schema.pbtxt
      feedline schema show schema.pbtxt
      feedline schema diff schema.pbtxt dataset
    """


@command.command("init")
@click.argument("dataset", type=DIR)
@click.option("--out", type=FILE, default="schema.pbtxt", show_default=True, help="File to write.")
@click.option("--overwrite", is_flag=True, help="Replace the file in --out.")
@json_option
def init(dataset: str, out: str, overwrite: bool, as_json: bool) -> None:
    """Infer the schema of DATASET, and write it to a file for review.

    \b
    Example:
      feedline schema init dataset --out schema.pbtxt
    """
    from beam_jobs.dataset import manifest

    manifest.load(dataset)  # a quick check before the slow inference
    disk.check_file("--out", out)
    if storage.exists(out) and not overwrite:
        raise OptionError(f"--out {out} exists, and may have been reviewed; name another file or give --overwrite")
    from components.schema import schema_text

    schema = _infer_schema(dataset)
    try:
        schema_text.write_schema(schema, out)
    except OSError as error:
        raise OptionError(f"--out {out} cannot be written: {error.strerror or error}") from error
    if as_json:
        print_json({"schema": os.path.abspath(out), "features": len(schema.feature)})
    else:
        echo(out)
        say(f"{len(schema.feature)} features; review them, then give the file to `feedline run --schema`")


@command.command("show")
@click.argument("schema", type=PATH)
@json_option
def show(schema: str, as_json: bool) -> None:
    """Show SCHEMA as a table.

    SCHEMA is a schema file, or a dataset to infer it from.

    \b
    Examples:
      feedline schema show schema.pbtxt
      feedline schema show dataset
    """
    from components.schema.schema_text import rows

    features = rows(_load_schema(schema))
    if as_json:
        print_json({"features": [row.to_json() for row in features]})
        return
    for line in _table_lines(features):
        echo(line)


@command.command("diff")
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@json_option
def diff(old: str, new: str, as_json: bool) -> None:
    """Compare the schemas OLD and NEW.

    Each is a schema file, or a dataset to infer it from. The exit code is 0 when they are equal, else 3.

    \b
    Examples:
      feedline schema diff schema.pbtxt dataset
      feedline schema diff old.pbtxt new.pbtxt
    """
    from components.schema.schema_text import difference

    differences = difference(_load_schema(old), _load_schema(new))
    if as_json:
        print_json(_as_json(differences))
    else:
        for line in _difference_lines(differences):
            echo(line)
    if len(differences):
        raise DataError(f"{old} and {new} differ in {plural(len(differences), 'feature')}")
    if not as_json:
        echo("equal")


def _load_schema(path: str) -> schema_pb2.Schema:
    from beam_jobs.dataset import manifest
    from components.schema import schema_text

    if os.path.isdir(path) or manifest.is_published(path):
        return _infer_schema(path)
    return schema_text.read_schema(path)


def _infer_schema(directory: str) -> schema_pb2.Schema:
    from beam_jobs.dataset import manifest

    manifest.load(directory)
    say(f"reading {directory} for its statistics")
    from components.schema.component import infer_from_dataset

    return infer_from_dataset(directory)


def _table_lines(rows: list[Row]) -> list[str]:
    from components.schema.schema_text import domain_text

    table = [_COLUMNS, *((row.name, row.type, row.presence, row.shape, domain_text(row)) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    details = ["", *(f"    {row.other}" if row.other else "" for row in rows)]  # no details below the heading
    pairs = zip(lines, details, strict=True)
    return [line for pair in pairs for line in filter(None, pair)]


def _difference_lines(difference: Difference) -> list[str]:
    from components.schema.schema_text import changes, domain_text

    lines = []
    for sign, rows in (("-", difference.removed), ("+", difference.added)):
        for row in rows:
            cells = (row.type, row.presence, row.shape, domain_text(row), row.other)
            lines.append(f"{sign} {row.name}: {', '.join(cell for cell in cells if cell)}")
    for name, (old, new) in difference.changed.items():
        for field, (old_text, new_text) in changes(old, new).items():
            lines.append(f"~ {name}: {field} {old_text or 'none'} -> {new_text or 'none'}")
    return lines


def _as_json(difference: Difference) -> dict[str, Any]:
    return {
        "equal": not len(difference),
        "added": [row.to_json() for row in difference.added],
        "removed": [row.to_json() for row in difference.removed],
        "changed": {
            name: {"old": old.to_json(), "new": new.to_json()} for name, (old, new) in difference.changed.items()
        },
    }
