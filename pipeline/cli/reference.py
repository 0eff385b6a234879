"""Generates reference pages: the command line, `pipeline.yaml` and `--json`.

The sources are the help of the commands, the dataclasses of the settings with their docstrings, and the JSON schemas.
`python -m pipeline.cli.reference NAME > docs/NAME.md` writes a page; NAME is `cli-reference`, `pipeline-yaml`, `json`.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping

import click

from beam_jobs.common import settings
from beam_jobs.common.settings import OptionField, fields, meanings
from beam_jobs.common.yaml_text import one_line
from pipeline.cli import cli, errors
from pipeline.cli.click_groups import GENERAL, summary
from pipeline.cli.ingest_options import option_names
from pipeline.cli.json_schema import RESULTS
from pipeline.cli.json_schema.data import Schema
from pipeline.cli.run import command
from pipeline.config import TARGET_SECTIONS
from pipeline.settings.known_settings import names, sections, target_options

_COMMANDS_INTRODUCTION = """# Command reference

<!-- Made from the code by `python -m pipeline.cli.reference cli-reference > docs/cli-reference.md` -->

This page shows the output of `feedline COMMAND --help` for every command. [Command line](command-line.md) explains how
the commands work together, and [JSON](json.md) the output of `--json`.
"""
_INDENTED_BLOCK = re.compile(r"\x08\n(?P<heading>[^\n]+):\n(?P<lines>(?: +[^\n]*(?:\n|$))+)")


def commands_page() -> str:
    """Returns the page of the command line."""
    return "\n".join(
        [_COMMANDS_INTRODUCTION, *(_command_section(command, context) for command, context in every_command())]
    )


def every_command() -> Iterator[tuple[click.Command, click.Context]]:
    """Yields the program, its commands and their sub-commands, each with its context."""
    yield from _walk_commands(cli, click.Context(cli, info_name="feedline", **cli.context_settings))


def examples(command: click.Command) -> list[str]:
    """Returns the lines under `Example:` or `Examples:` in the help of a command."""
    return [
        line
        for block in _INDENTED_BLOCK.finditer(_help_text(command))
        if block["heading"].startswith("Example")
        for line in textwrap.dedent(block["lines"]).splitlines()
    ]


def _walk_commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            if member is not None:
                yield from _walk_commands(member, click.Context(member, info_name=name, parent=context))


def _command_section(command: click.Command, context: click.Context) -> str:
    parts = [f"## {context.command_path}", summary(command)]
    usage = " ".join(command.collect_usage_pieces(context))
    parts.append(f"```text\n{context.command_path} {usage}\n```")
    parts += _prose(command)
    if lines := examples(command):
        parts.append("\n".join(["```text", *lines, "```"]))
    if isinstance(command, click.Group):
        members = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        rows = [f"| `{name}` | {_escape_cell(summary(member))} |" for name, member in members if member]
        parts.append("\n".join(["| command | purpose |", "|---|---|", *rows]))
    parts += _option_tables(command, context)
    return "\n\n".join(parts) + "\n"


def _prose(command: click.Command) -> Iterator[str]:
    """Yields the paragraphs after the summary; indented blocks except examples become code blocks."""
    body = _help_text(command).partition("\n\n")[2]
    for paragraph in body.split("\n\n"):
        block = _INDENTED_BLOCK.match(f"{paragraph}\n")
        if block is None:
            yield " ".join(paragraph.split())
        elif not block["heading"].startswith("Example"):
            yield f"{block['heading']}:\n\n```text\n{textwrap.dedent(block['lines']).rstrip()}\n```"


def _option_tables(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yields a table for each heading of the options."""
    headings: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        help_record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and help_record:
            # In prose, `] [` would be a Markdown link.
            meaning = _escape_cell(" ".join(help_record[1].split())).replace("] [", "] \\[")
            row = f"| `{_escape_cell(help_record[0])}` | {meaning} |"
            headings.setdefault(getattr(parameter, "heading", GENERAL), []).append(row)
    for heading, rows in headings.items():
        yield "\n".join([f"| {heading.lower()} | meaning |", "|---|---|", *rows])


def _help_text(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _escape_cell(text: str) -> str:
    return text.replace("|", r"\|")


_RELATED_PAGES = {
    "": (("Data in batches", "spans"), ("Schema", "schema")),
    "ingest": (("Sources", "sources"), ("What happens to odd images", "images")),
    "gate": (("Gates", "gates"),),
    "transform": (("Transform", "transform"),),
    "input": (("From shards to batches", "input"), ("Image ops", "ops")),
    "train": (("Training", "training"), ("Models", "models")),
    "evaluate": (("Evaluation", "evaluation"),),
}
_SETTINGS_INTRODUCTION = """# pipeline.yaml

<!-- Made by `python -m pipeline.cli.reference pipeline-yaml > docs/pipeline-yaml.md`; change docstrings. -->

One file holds every setting of a pipeline. `feedline init DIR` writes one to start from; this is the shortest valid
file:

```yaml
root: work
ingest: {source: photos}
```

Paths are relative to the directory in which you start the command. An unknown key is an error, and the message gives
the nearest key; a duplicate key is an error, too. The file is read as YAML 1.2: `1e-3` is a number, and only `true` and
`false` are truth values.

## Precedence

Each layer overrides the layers before it:

1. the defaults below;
2. the file, `feedline run --config pipeline.yaml`;
3. the environment: `FEEDLINE_` and the key in upper case, with two underscores between levels;
4. the command line: options such as `--epochs`, and `--set train.epochs=20`, which overrides those options.

```bash
FEEDLINE_TRAIN__EPOCHS=20 feedline run --config pipeline.yaml --set train.learning_rate=0.001
```

Values of the environment and of `--set` are read as YAML, so `[a, b]`, `{train: 0.8, eval: 0.2}`, `true` and `null`
have the same meaning as in the file; a number for a text setting stays text. A section is merged setting by setting,
and `null` for a section removes the values of earlier layers. Names in the environment are read in lower case; for an
entry with capitals use the file or `--set`.

If the value of a setting is a mapping, as of `ingest.splits`, it replaces all entries, also those of the default.
`FEEDLINE_INGEST__SPLITS__TEST=0.1` and `--set ingest.splits.test=0.1` set one entry and keep the others, also those of
the default; `null` removes an entry. Shares are divided by their sum, so that an additional entry would change the
others. If shares below 1 do not add up to 1 after an entry was set, the command ends with an error that shows all
shares and their sum:

```bash
FEEDLINE_INGEST__SPLITS__TRAIN=0.8 FEEDLINE_INGEST__SPLITS__TEST=0.1 feedline run --config pipeline.yaml
```

A variable that begins with `FEEDLINE_` and is not a setting, such as the misspelled `FEEDLINE_TRAIN_EPOCHS`, is an
error, and the message gives the nearest variable. An empty variable counts as not set. Feedline ignores
`FEEDLINE_BROWSER` and `FEEDLINE_TEST_...`, which configure the tests of the project, and `FEEDLINE_SERVICE_...` and
`FEEDLINE_PORT...`, which Kubernetes sets for a service called `feedline`.

## The origin of a value

`feedline run --show-config` prints the complete configuration as YAML and runs nothing. A comment behind each value
gives its layer: `default`, `file NAME`, `environment NAME` or `option NAME`; a mapping may have several. Secrets are
printed as `***`: the password of a URL, and the value of a name such as `token` or `secret_key`. Without secrets, the
output is a valid configuration. `--json` prints the same as JSON. An error about a value gives its key and its layer,
too.

```bash
feedline run --config pipeline.yaml --show-config
```
"""
_TARGETS = f"""## Targets

`{"`, `".join(TARGET_SECTIONS)}` are for targets, the systems that run the pipeline or the ingest. A target reads its
own section and ignores the values in the others, so that one file works for all targets; names are checked in all.
`feedline compile` reads `kubeflow` and `airflow`. `engine` selects the runner of the Beam jobs of an ingest,
`runner: flink` or `runner: dataflow`, with its settings. `feedline ingest --config pipeline.yaml` reads it, and the
section `ingest` without its source; `--runner` and `--runner-option` override it. `feedline doctor` reads `engine`,
too. `feedline run` uses a single process and prints that it ignores the section.
"""


def settings_page() -> str:
    """Returns the page of `pipeline.yaml`."""
    values = {str(parameter.name): "a=1" for parameter in command.params}  # "a=1" is also valid for --splits
    options_by_key = option_names(command, values)  # of `feedline run`
    parts = [_SETTINGS_INTRODUCTION]
    for section, cls in sections().items():
        parts.append("\n".join(_settings_section(section, cls, options_by_key)))
    parts.append(_TARGETS)
    for section, (location, cls) in target_options().items():
        page_link = f"See [{section}]({section}.md).\n"
        parts.append("\n".join([f"### {location}\n", page_link, *_settings_table(location, cls, {})]))
    return "\n".join(parts)


def _settings_section(section: str, cls: type, options_by_key: Mapping[str, str]) -> Iterator[str]:
    yield f"{'###' if '.' in section else '##'} {section or 'Top level'}\n"
    if section:
        parent, _, name = section.rpartition(".")
        yield f"{_to_sentence(_expand_constants(meanings(sections()[parent])[name], sections()[parent]))}\n"
    pages = " and ".join(f"[{title}]({file}.md)" for title, file in _RELATED_PAGES.get(section, ()))
    if pages:
        yield f"See {pages}.\n"
    yield from _settings_table(section, cls, options_by_key)


def _settings_table(section: str, cls: type, options_by_key: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines of a table of settings; `options_by_key` contains dotted key -> option of `feedline run`."""
    yield "| setting | type | default | meaning |"
    yield "|---|---|---|---|"
    descriptions = meanings(cls)
    for name, option_field in fields(cls).items():
        key = f"{section}.{name}" if section else name
        if option_field.section or (section in sections() and name not in names(section)):
            continue
        option = f" Option `{options_by_key[key]}`." if key in options_by_key else ""
        meaning = _to_sentence(_expand_constants(descriptions[name], cls)) + option
        default = "none; required" if option_field.is_required else f"`{one_line(option_field.default)}`"
        cells = (f"`{name}`", _setting_type(option_field), default, meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _to_sentence(text: str) -> str:
    capitalised = text if text.startswith("`") else text[:1].upper() + text[1:]
    return capitalised if capitalised.endswith(".") else f"{capitalised}."


def _expand_constants(text: str, cls: type) -> str:
    """Replaces names of constants of the module of a class, such as `SOURCE_KINDS`, by their values."""
    module = sys.modules[cls.__module__]

    def values(name: re.Match[str]) -> str:
        constant = getattr(module, name[1], None)
        return ", ".join(f"`{value}`" for value in constant) if isinstance(constant, (tuple, dict)) else name[0]

    return re.sub(r"`([A-Z_]+)`", values, text.replace("None", "`null`"))


def _setting_type(option_field: OptionField) -> str:
    """Returns the type of a setting and its range, such as `whole number of at least 1`."""
    text = settings.describe_allowed(option_field.hint, option_field.annotations)
    text = re.sub(r"\ba (?=\w)|, as .*", "", text)  # without the articles and the example of the error message
    return f"number {text}" if text.startswith(("between", "from")) else text


_JSON_INTRODUCTION = """# JSON

<!-- Made from the code by `python -m pipeline.cli.reference json > docs/json.md`; change the schemas. -->

With `--json`, commands print their result as one object, and nothing else, on standard output. Progress is printed
on standard error.

```bash
feedline verify dataset --json
```

`--json-schema`, as in `feedline verify --json-schema`, prints the [JSON Schema](https://json-schema.org) of that
object, draft 2020-12, and does nothing else; other arguments are optional. Each key below is always present, unless its
description says when it is absent. Later releases may add keys and keep the meaning of existing keys.

## Errors

When a command with `--json` fails, the last line of standard error is an object, too:

```json
{"error": {"message": "nothing does not exist; give a folder", "code": 2, "kind": "source_error"}}
```

`message` is the text for users and may change between releases. `code` is the [exit code](command-line.md), and `kind`
is one of these:

| kind | code | meaning |
|---|---|---|
"""
_JSON_CHECKS = """
When `feedline verify`, `feedline schema diff` or a `feedline run` whose model is not pushed fails a check, standard
output contains the result, and standard error the error object. `feedline doctor`, `feedline predict` and
`feedline diff --exit-code` print only the result and end with the exit code.
"""


def json_page() -> str:
    """Returns the page of `--json`."""
    kinds = [f"| `{kind}` | {code} | {meaning} |" for kind, code, meaning in errors.error_kinds()]
    parts = [f"{_JSON_INTRODUCTION}" + "\n".join(kinds), _JSON_CHECKS.strip("\n")]
    references: dict[int, str] = {}
    for name in commands_with_json():
        schema = RESULTS[name]
        parts.append(f"## feedline {name}")
        for result in schema.get("anyOf", [schema]):
            parts.append(result["description"])
            if id(result) in references:
                parts.append(f"The keys are those of {references[id(result)]}.")
                continue
            rows = _json_rows(result, "", f"[feedline {name}](#feedline-{name.replace(' ', '-')})", references)
            parts.append("\n".join(["| key | type | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def commands_with_json() -> Iterator[str]:
    """Yields the commands that have `--json`, without the name of the program."""
    for member, context in every_command():
        if any("--json" in parameter.opts for parameter in member.params):
            yield context.command_path.partition(" ")[2]


def _json_rows(schema: Schema, prefix: str, command: str, references: dict[int, str]) -> Iterator[str]:
    """Yields the rows of an object and of the objects in it. Objects in `references`, id -> place, are only linked."""
    references[id(schema)] = f"`{prefix.rstrip('.')}` of {command}" if prefix else command
    for name, value in schema["properties"].items():
        objects = list(_json_objects(value, f"{prefix}{name}"))
        links = [f" The keys are those of {references[id(item)]}." for item, _ in objects if id(item) in references]
        yield f"| `{prefix}{name}` | {_json_type(value)} | {value['description']}{''.join(links)} |"
        for item, path in objects:
            if id(item) not in references:
                yield from _json_rows(item, f"{path}.", command, references)


def _json_objects(schema: Schema, path: str) -> Iterator[tuple[Schema, str]]:
    """Yields schema and path of the objects with fixed keys in a value."""
    if "properties" in schema:
        yield schema, path
    for alternative in schema.get("anyOf", []):
        yield from _json_objects(alternative, path)
    for key, suffix in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(schema.get(key), dict):
            yield from _json_objects(schema[key], f"{path}{suffix}")


def _json_type(schema: Schema) -> str:
    if "anyOf" in schema:
        return f"{_json_type(schema['anyOf'][0])}, may be null"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array: {_json_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object by name: {_json_type(schema['additionalProperties'])}"
    kind = str(schema.get("type", "anything"))
    return {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(kind, kind)


_PAGES = {"cli-reference": commands_page, "pipeline-yaml": settings_page, "json": json_page}  # of docs/

if __name__ == "__main__":
    sys.stdout.write(_PAGES[sys.argv[1]]())
