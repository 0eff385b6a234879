"""The page about `--json`, generated from the schemas: `python -m pipeline.cli.json_schema > docs/json.md`."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.cli import error_output
from pipeline.cli.command_reference import every_command
from pipeline.cli.json_schema import RESULTS
from pipeline.cli.json_schema.parts import Schema

_INTRODUCTION = """# JSON

<!-- Made from the code by `python -m pipeline.cli.json_schema > docs/json.md`; change the schemas, not this page. -->

Every command that gives a result prints it with `--json` as one object on standard output, and nothing else there.
Progress goes to standard error as ever.

```bash
feedline verify dataset --json
```

`--json-schema`, as in `feedline verify --json-schema`, prints the [JSON Schema](https://json-schema.org) of that
object, draft 2020-12, and does nothing else; the other arguments may be left out. It is an option of the command and
not a command of its own, so that it stands in the same help as `--json` and needs no second way of naming commands.
Each key below is always there, unless its meaning says when it is absent. Later releases may add keys; those that are
there keep their meaning.

## Errors

When a command with `--json` fails, the last line of standard error is one object, too:

```json
{"error": {"message": "nothing does not exist; give a folder", "code": 2, "kind": "source_error"}}
```

`message` is what people would have read, and changes as it gets clearer. `code` is the [exit code](command-line.md),
and `kind` one of these:

| kind | code | meaning |
|---|---|---|
"""
_CHECKS = """
Where a check fails after its result is there, as in `feedline verify`, `feedline schema diff` and a `feedline run`
whose model is not pushed, standard output holds the result and standard error the object. `feedline doctor`,
`feedline predict` and `feedline diff --exit-code` say it all in their results and end with the code alone.
"""


def page() -> str:
    """Returns the page."""
    kinds = [f"| `{kind}` | {code} | {meaning} |" for kind, code, meaning in error_output.kinds()]
    parts = [f"{_INTRODUCTION}" + "\n".join(kinds), _CHECKS.strip("\n")]
    known: dict[int, str] = {}
    for command in commands():
        schema = RESULTS[command]
        parts.append(f"## feedline {command}")
        for result in schema.get("anyOf", [schema]):
            parts.append(result["description"])
            if id(result) in known:
                parts.append(f"The keys are those of {known[id(result)]}.")
                continue
            rows = _rows(result, "", f"[feedline {command}](#feedline-{command.replace(' ', '-')})", known)
            parts.append("\n".join(["| key | type | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def commands() -> Iterator[str]:
    """Yields the commands that have `--json`, without the name of the program."""
    for command, context in every_command():
        if any("--json" in parameter.opts for parameter in command.params):
            yield context.command_path.partition(" ")[2]


def _rows(schema: Schema, where: str, command: str, known: dict[int, str]) -> Iterator[str]:
    """Yields the rows of an object, and of those inside of it that no earlier row has shown."""
    known[id(schema)] = f"`{where.rstrip('.')}` of {command}" if where else command
    for name, value in schema["properties"].items():
        found = list(_objects(value, f"{where}{name}"))
        earlier = [f" The keys are those of {known[id(inner)]}." for inner, _ in found if id(inner) in known]
        yield f"| `{where}{name}` | {_type(value)} | {value['description']}{''.join(earlier)} |"
        for inner, place in found:
            if id(inner) not in known:
                yield from _rows(inner, f"{place}.", command, known)


def _objects(schema: Schema, place: str) -> Iterator[tuple[Schema, str]]:
    """Yields the objects with keys of their own that a value is or holds, and where."""
    if "properties" in schema:
        yield schema, place
    for option in schema.get("anyOf", []):
        yield from _objects(option, place)
    for key, suffix in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(schema.get(key), dict):
            yield from _objects(schema[key], f"{place}{suffix}")


def _type(schema: Schema) -> str:
    if "anyOf" in schema:
        return f"{_type(schema['anyOf'][0])}, may be null"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array: {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object by name: {_type(schema['additionalProperties'])}"
    kind = str(schema.get("type", "anything"))
    return {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(kind, kind)
