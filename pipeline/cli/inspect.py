"""`feedline inspect`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.errors import BadImage, OptionError, SourceError
from beam_jobs.storage import disk
from pipeline.cli.click_groups import DIR, PATH, Command
from pipeline.cli.common import echo, json_option, print_json, say
from pipeline.runs.dataset_lines import aligned

if TYPE_CHECKING:
    from beam_jobs.inspect.pictures import Picture
    from beam_jobs.inspect.view import View

_WIDTH = 80  # columns of a line without a terminal
_LABEL_WIDTH = 11
_INDENT = "  "
_NAME_WIDTH = 29  # columns for the name of a feature, before values of 48 characters
_MIN_NAME_WIDTH = 40  # columns for a name in a table; a shorter name is never broken
_DRAWN_COLUMNS, _DRAWN_ROWS = 64, 24


@click.command("inspect", cls=Command)
@click.argument("path", type=PATH)
@click.option(
    "-n",
    "--records",
    "limit",
    type=click.IntRange(min=0),
    metavar="INTEGER",
    default=5,
    help="Records to show.  [default: 5]",
)
@click.option("--key", help="Show only the image of a dataset with this key.")
@click.option("--draw", is_flag=True, help="Draw the shown images on a terminal with colours.")
@click.option("--export", "export_dir", type=DIR, help="Directory to write the shown images to.")
@json_option
def command(path: str, limit: int, key: str | None, draw: bool, export_dir: str | None, as_json: bool) -> None:
    """Show the content of a dataset, a TFRecord file or a Parquet table.

    PATH is a dataset, a Parquet table, such as the rejects of an ingest, or a TFRecord file, or a directory or pattern
    of TFRecord files. TFRecord files may be of any project: the command prints their counts, sizes, compression and
    features, and finds image, label and key in well-known layouts. Of a Parquet table, it prints columns and rows.

    \b
    Examples:
      feedline inspect dataset
      feedline inspect dataset --key cat/1.jpg --export pictures
      feedline inspect dataset/rejects.parquet -n 20
      feedline inspect other.tfrecord.gz -n 2 --draw
      feedline inspect tensorflow_datasets/mnist/3.0.1
    """
    if draw and as_json:
        raise click.UsageError("--draw and --json exclude each other; give only one of them")
    from beam_jobs.inspect.view import damage_error

    view = _load_view(path, limit, key)
    if as_json:
        print_json(view.values)
    else:
        _print(view, _colour_system(draw))
    if export_dir:
        _export(view, export_dir)
    error = damage_error(view)
    if error:
        raise error


def _load_view(path: str, limit: int, key: str | None) -> View:
    """Returns the content of a dataset, of its image with the key, of a Parquet table, or of TFRecord files."""
    from beam_jobs.dataset import manifest
    from beam_jobs.inspect.parquet import is_parquet, view_table
    from beam_jobs.inspect.view import view_dataset, view_files, view_key

    if key is not None and os.path.isfile(path):
        raise OptionError(f"--key finds an image of a dataset, but {path} is a file; name the directory of the dataset")
    if key is not None:
        return view_key(path, key)
    try:
        is_published = manifest.is_published(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    if is_published:
        return view_dataset(path, limit)
    return view_table(path, limit) if is_parquet(path) else view_files(path, limit)


# --- as text


def _print(view: View, colour_system: str) -> None:
    from beam_jobs.inspect.pictures import pictures
    from beam_jobs.inspect.view import FILE_COLUMNS

    if view.headline:
        echo(view.headline)
    echo(*aligned(view.properties, _LABEL_WIDTH, _line_width()).splitlines())
    for columns, rows in ((FILE_COLUMNS, view.files), (view.feature_columns, view.features)):
        if rows:
            echo("")
            _print_table(columns, rows)
    if view.features and view.features_of:
        echo(f"(features of {strings.line(view.features_of)})")
    drawings = pictures(view.records, view.roles, _DRAWN_COLUMNS) if colour_system else None
    for values in view.records:
        echo("")
        _print_record(values)
        if drawings:
            _draw(next(drawings), colour_system)


def _print_record(values: dict[str, list]) -> None:
    from beam_jobs.inspect.summary import shown_name, shown_value

    for name, value in sorted(values.items()):
        echo(f"{_INDENT}{strings.line(shown_name(name)):<{_NAME_WIDTH}} {shown_value(value)}")


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; it has borders if the output is a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    is_styled = is_terminal and not os.environ.get("NO_COLOR")
    console = Console(
        file=sys.stdout,
        width=_line_width() - len(_INDENT),
        color_system="auto" if is_styled else None,
        highlight=False,
        soft_wrap=False,
    )
    table = Table(
        box=box.ROUNDED if is_terminal else None,
        header_style="bold" if is_styled else "",
        padding=(0, 1) if is_terminal else (0, 2, 0, 0),
        pad_edge=is_terminal,
    )
    name_width = min(_MIN_NAME_WIDTH, max(len(strings.line(row[0])) for row in rows))
    for index, name in enumerate(columns):
        is_number = name in ("records", "bytes")
        table.add_column(
            name,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
            min_width=name_width if not index else None,
        )
    for row in rows:
        table.add_row(*(Text(strings.line(cell)) for cell in row))
    with console.capture() as output:
        console.print(table)
    click.echo("\n".join(f"{_INDENT}{line.rstrip()}" for line in output.get().splitlines()), color=is_styled)


def _line_width() -> int:
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0  # some terminals give 0
    return columns or _WIDTH


# --- as pictures


def _colour_system(draw: bool) -> str:
    """Returns `truecolor` or `256`; empty without `--draw`. Prints why the terminal cannot draw, then returns empty."""
    if not draw:
        return ""
    from rich.console import Console

    from beam_jobs.inspect.pictures import BLOCK

    system = Console(file=sys.stdout).color_system if sys.stdout.isatty() else None
    reason = ""
    if not sys.stdout.isatty():
        reason = "standard output is not a terminal"
    elif os.environ.get("NO_COLOR"):
        reason = "NO_COLOR is set"
    elif system not in ("truecolor", "256"):
        reason = "the terminal does not report 256 colours"
    elif BLOCK.encode(sys.stdout.encoding or "ascii", "ignore") == b"":
        reason = f"the encoding of the terminal, {sys.stdout.encoding}, has no block characters"
    if reason:
        say(f"--draw: {reason}; --export DIR writes the images")
    return "" if reason else str(system)


def _draw(picture: Picture, colour_system: str) -> None:
    from beam_jobs.inspect.pictures import half_blocks

    if picture.image is None:
        echo(f"  ({strings.line(picture.remark)})")
        return
    columns = min(_DRAWN_COLUMNS, _line_width())
    # The escapes are generated from pixel values and contain no text of the data.
    click.echo(half_blocks(picture.image, columns, _DRAWN_ROWS, colour_system == "truecolor"), color=True)


def _export(view: View, directory: str) -> None:
    from beam_jobs.inspect.pictures import image_file

    exported_count = 0
    for index, values in enumerate(view.records):
        try:
            suffix, data = image_file(values, view.roles)
        except BadImage as error:
            if view.roles.image:
                say(f"record {index} is not exported: {strings.line(error.detail)}")
            continue
        # The file name has no key: an untrusted key could be a path outside of the directory.
        target = storage.join(directory, f"{index:05d}.{suffix}")
        disk.write_file("--export", target, data)
        exported_count += 1
        say(target)
    if not exported_count:
        raise OptionError("no selected record has an image in a feature with a known name; nothing can be exported")
