"""`feedline init`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

import click

from beam_jobs import storage
from beam_jobs.errors import OptionError
from pipeline.cli.click_groups import Command
from pipeline.cli.common import echo, json_option, print_json, program, say
from pipeline.cli.param_types import DIR, PATH
from pipeline.settings.init_templates import CONFIG_NAME, DEFAULT_SOURCE, files


@click.command("init", cls=Command)
@click.argument("directory", type=DIR, default=".")
@click.option("--images", type=PATH, help="Where your images are; written into the file.")
@json_option
def command(directory: str, images: str | None, as_json: bool) -> None:
    """Write a commented pipeline.yaml, and what goes with it, into DIRECTORY.

    DIRECTORY is the current one unless given. It may hold files of yours, such as the images; none is ever replaced.

    \b
    Examples:
      feedline init flowers
      feedline init . --images photos
    """
    written = files(_from_anywhere(images)) if images else files()
    _check(directory, written)
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
        echo(os.path.join(directory, name))
    config = os.path.join(directory, CONFIG_NAME)
    if images and _is_missing(images):
        say(f"{images} does not exist yet; put the images there, or correct ingest.source in {config}")
    if not images and not os.path.exists(os.path.join(directory, DEFAULT_SOURCE)):
        echo("", f"Name your images in {config}, where ingest.source is {DEFAULT_SOURCE}.")
    echo("", f"Try next:  {following}")


def _check(directory: str, written: Iterable[str]) -> None:
    if storage.is_remote(directory):
        raise OptionError(f"{directory} is not on this machine; name a local directory")
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise OptionError(f"{directory} is a file; name a directory, new or not")
    found = [name for name in written if os.path.lexists(os.path.join(directory, name))]
    if found:
        raise OptionError(
            f"{directory} has {', '.join(found)} already; move what is in the way, or name another directory"
        )


def _is_missing(images: str) -> bool:
    return not (storage.is_remote(images) or set(images) & set("*?[{") or os.path.exists(images))


def _from_anywhere(images: str) -> str:
    """Returns a path that means the same from the directory of the project."""
    return images if storage.is_remote(images) else os.path.abspath(images)
