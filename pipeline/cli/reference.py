"""The generated pages of the documentation: of the command line, of `pipeline.yaml` and of `--json`.

The command line's holds what `--help` says; that of `pipeline.yaml` the names, types and defaults of the dataclasses
and what their docstrings say of a setting; that of `--json` the schemas. So no page can say what the code does not.
Each is made by `python -m pipeline.cli.reference NAME > docs/NAME.md`, NAME being `cli-reference`, `pipeline-yaml` or
`json`.
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
from pipeline.cli import cli, common
from pipeline.cli.click_groups import GENERAL, summary
from pipeline.cli.json_schema import RESULTS
from pipeline.cli.json_schema.data import Schema
from pipeline.cli.run import command, option_names
from pipeline.config import TARGET_SECTIONS
from pipeline.settings.catalog import names, sections, target_options

_COMMANDS_INTRODUCTION = """# Command reference

<!-- Made from the code by `python -m pipeline.cli.reference cli-reference > docs/cli-reference.md` -->

This is what `feedline COMMAND --help` says of every command. [Command line](command-line.md) tells how they work
together, and [JSON](json.md) what `--json` prints.
"""
_BLOCK = re.compile(r"\x08\n(?P<heading>[^\n]+):\n(?P<lines>(?: +[^\n]*(?:\n|$))+)")


def commands_page() -> str:
    """Returns the page."""
    return "\n".join(
        [_COMMANDS_INTRODUCTION, *(_command_section(command, context) for command, context in every_command())]
    )


def every_command() -> Iterator[tuple[click.Command, click.Context]]:
    """Yields the program, its commands and their sub-commands, each with a context that knows how it is called."""
    yield from _below(cli, click.Context(cli, info_name="feedline", **cli.context_settings))


def examples(command: click.Command) -> list[str]:
    """Returns the lines under `Example:` or `Examples:` in the help of a command."""
    return [
        line
        for block in _BLOCK.finditer(_help_of(command))
        if block["heading"].startswith("Example")
        for line in textwrap.dedent(block["lines"]).splitlines()
    ]


def _below(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _below(found, click.Context(found, info_name=name, parent=context))


def _command_section(command: click.Command, context: click.Context) -> str:
    parts = [f"## {context.command_path}", summary(command)]
    usage = " ".join(command.collect_usage_pieces(context))
    parts.append(f"```text\n{context.command_path} {usage}\n```")
    parts += _prose(command)
    if lines := examples(command):
        parts.append("\n".join(["```text", *lines, "```"]))
    if isinstance(command, click.Group):
        names = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        rows = [f"| `{name}` | {_cell(summary(found))} |" for name, found in names if found]
        parts.append("\n".join(["| command | what it does |", "|---|---|", *rows]))
    parts += _option_tables(command, context)
    return "\n\n".join(parts) + "\n"


def _prose(command: click.Command) -> Iterator[str]:
    """Yields the paragraphs behind the summary; a block that is no example becomes a block of text."""
    rest = _help_of(command).partition("\n\n")[2]
    for paragraph in rest.split("\n\n"):
        block = _BLOCK.match(f"{paragraph}\n")
        if block is None:
            yield " ".join(paragraph.split())
        elif not block["heading"].startswith("Example"):
            yield f"{block['heading']}:\n\n```text\n{textwrap.dedent(block['lines']).rstrip()}\n```"


def _option_tables(command: click.Command, context: click.Context) -> Iterator[str]:
    headings: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record:
            row = f"| `{_cell(record[0])}` | {_prose_cell(' '.join(record[1].split()))} |"
            headings.setdefault(getattr(parameter, "heading", GENERAL), []).append(row)
    for heading, rows in headings.items():
        yield "\n".join([f"| {heading.lower()} | meaning |", "|---|---|", *rows])


def _help_of(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _prose_cell(text: str) -> str:
    """Returns a cell of prose; two brackets in a row would be a link of Markdown."""
    return _cell(text).replace("] [", "] \\[")


_MORE_PAGES = {
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

One file holds every setting of a pipeline. `feedline init DIR` writes one to start from; this is the shortest that
works:

```yaml
root: work
ingest: {source: photos}
```

Paths are relative to the directory you start the command in. A key that does not exist ends the command, and the
message names the nearest one that does; a key that stands twice does too. The file is read as YAML 1.2: `1e-3` is a
number, and only `true` and `false` are truth values.

## What wins

Each of these wins over the ones before it:

1. the defaults below;
2. the file, `feedline run --config pipeline.yaml`;
3. the environment: `FEEDLINE_` and the key in upper case, with two underscores between levels;
4. the command line: options such as `--epochs`, and `--set train.epochs=20`, which wins where both name a setting.

```bash
FEEDLINE_TRAIN__EPOCHS=20 feedline run --config pipeline.yaml --set train.learning_rate=0.001
```

Values of the environment and of `--set` are read as YAML, so `[a, b]`, `{train: 0.8, eval: 0.2}`, `true` and `null`
mean what they do in the file; a number for a setting that is text stays as it is written. A section is merged setting
by setting, and `null` for a section removes what earlier layers set in it. Names in the environment are read in
lower case; for an entry with capitals use the file or `--set`.

A setting that is a mapping, such as `ingest.splits`, is replaced as a whole, its default too, by a mapping.
`FEEDLINE_INGEST__SPLITS__TEST=0.1` and `--set ingest.splits.test=0.1` set one entry and keep the others, those of the
default where no layer gave any; `null` takes an entry away. Splits are parts of their sum, so one more would make the
others smaller than they were written. Where shares below 1 no longer add up to 1 after an entry was set, the command
ends, and the message shows all shares and their sum:

```bash
FEEDLINE_INGEST__SPLITS__TRAIN=0.8 FEEDLINE_INGEST__SPLITS__TEST=0.1 feedline run --config pipeline.yaml
```

A variable that begins with `FEEDLINE_` and is no setting is an error that names the nearest one which is, so that a
typing mistake, such as `FEEDLINE_TRAIN_EPOCHS`, is not passed over. An empty one counts as not set. Not looked at are
`FEEDLINE_BROWSER` and `FEEDLINE_TEST_...`, which are switches of the project's own tests, and `FEEDLINE_SERVICE_...`
and `FEEDLINE_PORT...`, which Kubernetes sets where a service is called `feedline`.

## Where a value came from

`feedline run --show-config` prints the whole configuration as YAML and runs nothing. Behind each value stands
`default`, `file NAME`, `environment NAME` or `option NAME`; several behind a mapping whose entries came from several.
Secrets are printed as `***`: the password of a URL, and what stands behind a name such as `token` or `secret_key`.
But for them the output is itself a configuration. `--json` gives the same to machines. A value that is not allowed is
named with its key and the layer it came from, too.

```bash
feedline run --config pipeline.yaml --show-config
```
"""
_TARGETS = f"""## Targets

`{"`, `".join(TARGET_SECTIONS)}` hold the settings of where the work is done. A target reads its own section and passes
over the values of the others, so one file serves them all; names are checked in each. `feedline compile` reads
`kubeflow` and `airflow`. `engine` says what runs the Beam jobs of an ingest, `runner: flink` or `runner: dataflow`,
with the settings of that runner. `feedline ingest --config pipeline.yaml` reads it, and the section `ingest` without
its source; `--runner` and `--runner-option` win over it. `feedline doctor` reads it, and `feedline run`, which works in
its own process, says that it leaves it out.
"""


def settings_page() -> str:
    """Returns the page."""
    options = _options_of_run()
    parts = [_SETTINGS_INTRODUCTION]
    for section, cls in sections().items():
        parts.append("\n".join(_settings_section(section, cls, options)))
    parts.append(_TARGETS)
    for section, (where, cls) in target_options().items():
        more = f"More in [{section}]({section}.md).\n"
        parts.append("\n".join([f"### {where}\n", more, *_settings_table(where, cls, {})]))
    return "\n".join(parts)


def _settings_section(section: str, cls: type, options: Mapping[str, str]) -> Iterator[str]:
    yield f"{'###' if '.' in section else '##'} {section or 'Top level'}\n"
    if section:
        parent, _, name = section.rpartition(".")
        yield f"{_sentence(_spelled_out(meanings(sections()[parent])[name], sections()[parent]))}\n"
    pages = " and ".join(f"[{title}]({file}.md)" for title, file in _MORE_PAGES.get(section, ()))
    if pages:
        yield f"More in {pages}.\n"
    yield from _settings_table(section, cls, options)


def _settings_table(section: str, cls: type, options: Mapping[str, str]) -> Iterator[str]:
    yield "| setting | type | default | meaning |"
    yield "|---|---|---|---|"
    meaning_of = meanings(cls)
    for name, item in fields(cls).items():
        key = f"{section}.{name}" if section else name
        if item.section or (section in sections() and name not in names(section)):
            continue
        option = f" Option `{options[key]}`." if key in options else ""
        meaning = _sentence(_spelled_out(meaning_of[name], cls)) + option
        cells = (f"`{name}`", _setting_type(item), _setting_default(item), meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _sentence(text: str) -> str:
    start = text if text.startswith("`") else text[:1].upper() + text[1:]
    return start if start.endswith(".") else f"{start}."


def _spelled_out(text: str, cls: type) -> str:
    """Returns the text with the constants of its module, such as `SOURCE_KINDS`, replaced by what they hold."""
    module = sys.modules[cls.__module__]

    def values(name: re.Match[str]) -> str:
        constant = getattr(module, name[1], None)
        return ", ".join(f"`{value}`" for value in constant) if isinstance(constant, (tuple, dict)) else name[0]

    return re.sub(r"`([A-Z_]+)`", values, text.replace("None", "`null`"))


def _setting_type(item: OptionField) -> str:
    """Returns what may stand for a setting, its range included, such as `whole number of at least 1`."""
    text = settings.allowed(item.hint, item.annotations)
    text = re.sub(r"\ba (?=\w)|, as .*", "", text)
    return f"number {text}" if text.startswith(("between", "from")) else text


def _setting_default(item: OptionField) -> str:
    return "none: must be given" if item.is_required else f"`{one_line(item.default)}`"


def _options_of_run() -> dict[str, str]:
    """Returns dotted key -> option of `feedline run`."""
    return option_names(command, {str(parameter.name): "a=1" for parameter in command.params})


_JSON_INTRODUCTION = """# JSON

<!-- Made from the code by `python -m pipeline.cli.reference json > docs/json.md`; change the schemas. -->

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
_JSON_CHECKS = """
Where a check fails after its result is there, as in `feedline verify`, `feedline schema diff` and a `feedline run`
whose model is not pushed, standard output holds the result and standard error the object. `feedline doctor`,
`feedline predict` and `feedline diff --exit-code` say it all in their results and end with the code alone.
"""


def json_page() -> str:
    """Returns the page."""
    kinds = [f"| `{kind}` | {code} | {meaning} |" for kind, code, meaning in common.mistake_kinds()]
    parts = [f"{_JSON_INTRODUCTION}" + "\n".join(kinds), _JSON_CHECKS.strip("\n")]
    known: dict[int, str] = {}
    for name in commands_with_json():
        schema = RESULTS[name]
        parts.append(f"## feedline {name}")
        for result in schema.get("anyOf", [schema]):
            parts.append(result["description"])
            if id(result) in known:
                parts.append(f"The keys are those of {known[id(result)]}.")
                continue
            rows = _json_rows(result, "", f"[feedline {name}](#feedline-{name.replace(' ', '-')})", known)
            parts.append("\n".join(["| key | type | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def commands_with_json() -> Iterator[str]:
    """Yields the commands that have `--json`, without the name of the program."""
    for member, context in every_command():
        if any("--json" in parameter.opts for parameter in member.params):
            yield context.command_path.partition(" ")[2]


def _json_rows(schema: Schema, where: str, command: str, known: dict[int, str]) -> Iterator[str]:
    """Yields the rows of an object, and of those inside of it that no earlier row has shown."""
    known[id(schema)] = f"`{where.rstrip('.')}` of {command}" if where else command
    for name, value in schema["properties"].items():
        found = list(_json_objects(value, f"{where}{name}"))
        earlier = [f" The keys are those of {known[id(inner)]}." for inner, _ in found if id(inner) in known]
        yield f"| `{where}{name}` | {_json_type(value)} | {value['description']}{''.join(earlier)} |"
        for inner, place in found:
            if id(inner) not in known:
                yield from _json_rows(inner, f"{place}.", command, known)


def _json_objects(schema: Schema, place: str) -> Iterator[tuple[Schema, str]]:
    """Yields the objects with keys of their own that a value is or holds, and where."""
    if "properties" in schema:
        yield schema, place
    for option in schema.get("anyOf", []):
        yield from _json_objects(option, place)
    for key, suffix in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(schema.get(key), dict):
            yield from _json_objects(schema[key], f"{place}{suffix}")


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
