"""`feedline init`."""

from __future__ import annotations

import os
import shlex

import click

from beam_jobs import storage
from beam_jobs.errors import OptionError
from pipeline.cli.common import json_option, print_json, program
from pipeline.starter import CONFIG_NAME, DEFAULT_SOURCE, files


@click.command("init")
@click.argument("directory", default=".")
@click.option("--images", help="Where your images are; written into the file.")
@json_option
def command(directory: str, images: str | None, as_json: bool) -> None:
    """Write a commented pipeline.yaml, and what goes with it, into DIRECTORY, which must be empty or new.

    \b
    Examples:
      feedline init flowers
      feedline init flowers --images photos
    """
    _check(directory)
    written = files(_from_anywhere(images)) if images else files()
    try:
        for name, text in written.items():
            storage.write_bytes(os.path.join(directory, name), text.encode())
    except OSError as error:
        raise OptionError(f"{directory} cannot be written: {error.strerror}") from error
    place = "" if os.path.samefile(directory, ".") else f"cd {shlex.quote(directory)} && "
    following = f"{place}{program()} run --config {CONFIG_NAME}"
    if as_json:
        print_json({"directory": os.path.abspath(directory), "files": list(written), "next": following})
        return
    for name in written:
        click.echo(os.path.join(directory, name))
    if not images:
        config = os.path.join(directory, CONFIG_NAME)
        click.echo(f"\nName your images in {config}, where ingest.source is {DEFAULT_SOURCE}.")
    click.echo(f"\nTry next:  {following}")


def _check(directory: str) -> None:
    if storage.is_remote(directory):
        raise OptionError(f"{directory} is not on this machine; name a local directory")
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise OptionError(f"{directory} is a file; name an empty or new directory")
    found = sorted(set(os.listdir(directory)) - {".git"}) if os.path.isdir(directory) else []
    if found:
        raise OptionError(f"{directory} holds {found[0]!r}; name an empty or new directory")


def _from_anywhere(images: str) -> str:
    """Returns a path that means the same from the directory of the project."""
    return images if storage.is_remote(images) else os.path.abspath(images)
