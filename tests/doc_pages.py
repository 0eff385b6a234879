"""What the pages of the documentation show: blocks, the commands in them, and what makes them right."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from beam_jobs.common.settings import from_mapping
from pipeline.cli import cli
from pipeline.cli.ingest import parse_engine
from pipeline.config import build
from pipeline.settings.known_settings import target_options
from pipeline.settings.layers import gather

ROOT = Path(__file__).parent.parent
SHELL = {"bash", "sh"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block, or an indented one, whose language is empty.

    `line` is that of its first line of code; `title`, as in `yaml title="pipeline.yaml"`, the file that it is. Comments
    before it say the rest: `<!-- not run: EXCUSE -->`, `<!-- exit code: 3 -->` for a command that is to fail,
    `<!-- printed -->` for what the Python before it prints, `<!-- fresh process -->` for what must come before
    TensorFlow has looked at its devices.
    """

    page: str
    line: int
    language: str
    code: str
    excuse: str = ""
    title: str = ""
    exit_code: int = 0
    printed: bool = False
    fresh: bool = False

    @property
    def file(self) -> str:
        """The path in the title, or of a module in the first line, when the block is the content of a file."""
        found = re.match(r"# ([\w/]+\.py)\n", self.code)
        return self.title or (found[1] if found else "")

    @property
    def commands(self) -> Iterator[list[str]]:
        """The words of every command, continued lines joined, comments and variables before it left out.

        An indented block may be anything, so that only what begins with `feedline` is a command there.
        """
        for line in self.code.replace("\\\n", " ").splitlines():
            if not self.language and not re.match(r"(?:\w+=\S* )*feedline ", line):
                continue
            words = shlex.split(line, comments=True)
            while words and re.match(r"\w+=", words[0]):
                words = words[1:]
            if words:
                yield words


FENCE = re.compile(
    r"(?P<notes>(?:^<!-- .+ -->\n)*)"
    r"^(?P<margin> *)```(?P<language>\w*)(?: title=\"(?P<title>.+)\")?\n(?P<code>(?:.*\n)*?)(?P=margin)```$",
    re.MULTILINE,
)
_NOTE = re.compile(r"<!-- (not run|exit code|printed|fresh process)(?:: (.+))? -->")
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")


def every_page() -> list[str]:
    """The names of all pages, without their ending, those of a folder as `recipes/NAME`."""
    docs = ROOT / "docs"
    found = sorted(path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md"))
    return [*found, "README", "CONTRIBUTING"]


@functools.cache
def text_of(page: str) -> str:
    """The text of a page; empty when there is none, which fails a test, and not all of them."""
    path = ROOT / f"{page}.md" if page.isupper() else ROOT / "docs" / f"{page}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@functools.cache
def blocks(page: str) -> tuple[Block, ...]:
    """The fenced blocks of a page."""
    return tuple(fenced(page, text_of(page)))


def fenced(page: str, text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        notes = dict(_NOTE.findall(found["notes"]))
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start("code")) + 1,
            language=found["language"],
            code=textwrap.dedent(found["code"]),
            excuse=notes.get("not run", ""),
            title=found["title"] or "",
            exit_code=int(notes.get("exit code", 0)),
            printed="printed" in notes,
            fresh="fresh process" in notes,
        )


def indented(page: str, text: str) -> Iterator[Block]:
    """The indented blocks, which say no language."""
    text = FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)
    for found in _INDENTED.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page=page, line=line, language="", code=textwrap.dedent(found.group()))


# --- what is right


def check_settings(settings: Mapping[str, Any]) -> None:
    """Checks a `pipeline.yaml` as `feedline run` and its targets do; what a page leaves out is made up.

    Raises:
      FeedlineError: a setting is unknown or has a value that is not allowed.
    """
    from trainer.input_fn import check_options
    from trainer.models import check_model

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(dict(settings), file)
        file.flush()
        found = gather(file.name, {}, (), environ={}).values
    for section, options in target_options().values():
        if section in found:
            from_mapping(options, found[section], section)
    if "engine" in found:
        parse_engine(None, (), found["engine"])
    if "dataset" not in found:
        found = {**found, "ingest": {"source": "photos", **found.get("ingest", {})}}
    config = build({"root": "work", **found})
    check_options(config.input)
    check_model(config.train.model)


def check_yaml(values: Any) -> None:
    """Checks the values of a block of YAML, a `pipeline.yaml`.

    Raises:
      FeedlineError: a name or a value is not allowed.
    """
    assert isinstance(values, Mapping), f"{values!r} is no mapping"
    check_settings(values)


def check_feedline(arguments: Sequence[str]) -> None:
    """Lets the command line parse arguments without running them; settings in them must be settings.

    Raises:
      click.ClickException: there is no such command or option, or a value is not allowed.
      FeedlineError: a setting is unknown or has a value that is not allowed.
    """
    command, context, rest = _resolved(arguments)
    context = command.make_context(command.name, rest, parent=context)
    settings: dict[str, Any] = {}
    for assignment in context.params.get("assignments", ()):
        key, _, value = assignment.partition("=")
        section, _, name = key.partition(".")
        settings.setdefault(section, {})[name] = yaml.safe_load(value)
    engine = settings.pop("engine", {}) if context.params.get("target") else {}  # --target stands for its runner
    check_settings(settings)
    if engine:
        parse_engine(context.params["target"], (), engine)
    if "runner_options" in context.params:
        parse_engine(context.params["runner"], context.params["runner_options"])


def check_mention(text: str) -> None:
    """Checks a command in a sentence, which may leave arguments out, name them in capitals, or join words by `|`.

    Raises:
      click.ClickException: there is no such command or option, or a value is not one of the choices.
    """
    words = [word.split("|") for word in shlex.split(text.replace("\\|", "|"))]
    for arguments in itertools.product(*words):
        command, context, rest = _resolved([word for word in arguments if word != "COMMAND"])
        known = {name: option for option in command.get_params(context) for name in option.opts}
        for word, following in itertools.zip_longest(rest, rest[1:], fillvalue=""):
            if not word.startswith("-"):
                continue
            if word not in known:
                raise click.NoSuchOption(word, ctx=context)
            if isinstance(known[word].type, click.Choice) and following and not following.isupper():
                known[word].type.convert(following, known[word], context)


def _resolved(arguments: Sequence[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Returns the command, the context of its group, and the arguments that are its own."""
    command, rest = cli, list(arguments)  # type: click.Command, list[str]
    context = click.Context(cli, info_name="feedline", **cli.context_settings)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        _, found, rest = command.resolve_command(context, rest)
        assert found
        command = found
    return command, context, rest
