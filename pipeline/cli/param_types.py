"""Kinds of values of options and arguments: taken as they are typed, and completed in a shell."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from beam_jobs.storage import bounded_json


class Place(click.ParamType):
    """A path or a URL; the shell completes it from the files it sees.

    Args:
      name: in the help, in capitals there.
      kind: what the shell offers: `dir` for directories alone, or `file` for both.
    """

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leaves it to the shell."""
        return [CompletionItem(incomplete, type=self._kind)]


class SplitName(click.ParamType):
    """The name of a split of the dataset that the argument `dataset` names."""

    name = "split"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the splits of a dataset on this machine; a server is too slow for a TAB."""
        # An option that still lacks its value keeps click from telling arguments apart.
        dataset = ctx.params.get("dataset") or "".join(ctx.args[:1])
        path = os.path.join(dataset, "dataset.json")
        try:
            with open(path, "rb") as file:
                names = list(bounded_json.parse(file.read(bounded_json.MAX_BYTES))["splits"])
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return [CompletionItem(name) for name in names if name.isidentifier() and name.startswith(incomplete)]


FILE = Place("file", "file")
DIR = Place("dir", "dir")
PATH = Place("path", "file")
SPLIT = SplitName()
