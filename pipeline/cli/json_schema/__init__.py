"""What `--json` prints, as JSON Schema (draft 2020-12). Nothing here imports what makes those results."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.cli.json_schema import data, look, machine, runs
from pipeline.cli.json_schema.parts import Schema, one, text, whole

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Command, without the name of the program -> what its result is.
RESULTS: Mapping[str, Schema] = {**data.SCHEMAS, **look.SCHEMAS, **runs.SCHEMAS, **machine.SCHEMAS}
# On standard error, its last line, when `--json` was given and the exit code is not 0 and stands in no result.
ERROR = one(
    "Why a command ended.",
    error=one(
        "The mistake.",
        message=text("For people, with the remedy."),
        code=whole("The exit code.", 1),
        kind=text("For machines."),
    ),
)


def schema_of(command: str) -> Schema:
    """Returns the schema of what a command, such as `schema diff`, prints with `--json`."""
    return {"$schema": DIALECT, "title": f"feedline {command} --json", **RESULTS[command]}
