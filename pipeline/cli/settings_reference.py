"""The page about `pipeline.yaml`, generated: `python -m pipeline.cli.settings_reference > docs/pipeline-yaml.md`.

Names, types and defaults are those of the dataclasses, and what a setting means is what their docstrings say of it.
So the page cannot say anything that the code does not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping

from beam_jobs.common import settings
from beam_jobs.common.settings import Described, fields, meanings
from beam_jobs.common.yaml_text import one_line
from pipeline.cli.run import command, option_names
from pipeline.config import TARGET_SECTIONS
from pipeline.settings.catalog import names, sections
from pipeline.settings.targets import target_options

_PAGES = {
    "": (("Data in batches", "spans"), ("Schema", "schema")),
    "ingest": (("Sources", "sources"), ("What happens to odd images", "images")),
    "gate": (("Gates", "gates"),),
    "transform": (("Transform", "transform"),),
    "input": (("From shards to batches", "input"), ("Image ops", "ops")),
    "train": (("Training", "training"), ("Models", "models")),
    "evaluate": (("Evaluation", "evaluation"),),
}
_INTRODUCTION = """# pipeline.yaml

<!-- Made by `python -m pipeline.cli.settings_reference > docs/pipeline-yaml.md`; change docstrings, not this page. -->

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


def page() -> str:
    """Returns the page."""
    options = _options()
    parts = [_INTRODUCTION]
    for section, cls in sections().items():
        parts.append("\n".join(_section(section, cls, options)))
    parts.append(_TARGETS)
    for section, (where, cls) in target_options().items():
        more = f"More in [{section}]({section}.md).\n"
        parts.append("\n".join([f"### {where}\n", more, *_table(where, cls, {})]))
    return "\n".join(parts)


def _section(section: str, cls: type, options: Mapping[str, str]) -> Iterator[str]:
    yield f"{'###' if '.' in section else '##'} {section or 'Top level'}\n"
    if section:
        parent, _, name = section.rpartition(".")
        yield f"{_sentence(_spelled_out(meanings(sections()[parent])[name], sections()[parent]))}\n"
    pages = " and ".join(f"[{title}]({file}.md)" for title, file in _PAGES.get(section, ()))
    if pages:
        yield f"More in {pages}.\n"
    yield from _table(section, cls, options)


def _table(section: str, cls: type, options: Mapping[str, str]) -> Iterator[str]:
    yield "| setting | type | default | meaning |"
    yield "|---|---|---|---|"
    meaning_of = meanings(cls)
    for name, item in fields(cls).items():
        key = f"{section}.{name}" if section else name
        if item.section or (section in sections() and name not in names(section)):
            continue
        option = f" Option `{options[key]}`." if key in options else ""
        meaning = _sentence(_spelled_out(meaning_of[name], cls)) + option
        cells = (f"`{name}`", _type(item), _default(item), meaning)
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


def _type(item: Described) -> str:
    """Returns what may stand for a setting, its range included, such as `whole number of at least 1`."""
    text = settings.allowed(item.hint, item.annotations)
    text = re.sub(r"\ba (?=\w)|, as .*", "", text)
    return f"number {text}" if text.startswith(("between", "from")) else text


def _default(item: Described) -> str:
    return "none: must be given" if item.is_required else f"`{one_line(item.default)}`"


def _options() -> dict[str, str]:
    """Returns dotted key -> option of `feedline run`."""
    return option_names(command, {str(parameter.name): "a=1" for parameter in command.params})


if __name__ == "__main__":
    sys.stdout.write(page())
