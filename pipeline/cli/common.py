"""What several commands share: options of the ingest, `--json`, and how results are printed."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from beam_jobs.common import strings
from beam_jobs.errors import OptionError
from beam_jobs.options import (
    DUPLICATE_POLICIES,
    FACTS,
    FLOAT32_LOSSES,
    NEAR_DUPLICATE_POLICIES,
    PIXEL_POLICIES,
    RESIZE_FITS,
    SOURCE_KINDS,
    SPLIT_CONFLICTS,
    UNREADABLE,
    parse_splits,
)
from pipeline.cli.click_groups import Option
from pipeline.cli.completion import ASSIGNMENT
from pipeline.cli.param_types import FILE

if TYPE_CHECKING:
    from beam_jobs.options import IngestOptions

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Adds `--json` to a command that gives a result, and `--json-schema`, which says what that object is."""
    for option in reversed(_JSON_OPTIONS):
        function = option(function)
    return function


def config_option(meaning: str, *, required: bool = False) -> Callable[[F], F]:
    """Adds `--config`; it means the same file everywhere, and the help says what of it counts."""
    return click.option("-c", "--config", "config_path", type=FILE, required=required, help=meaning)


set_option = click.option(
    "--set",
    "assignments",
    type=ASSIGNMENT,
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting, such as train.epochs=20; repeatable.",
)


def _print_schema(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from pipeline.cli.json_schema import schema_of

    print_json(schema_of(context.command_path.partition(" ")[2]))
    context.exit()


def ingest_options(function: F) -> F:
    """Adds the options of the ingest to a command; `ingest_settings` turns what they hold into settings."""
    for option in reversed(_INGEST_OPTIONS):
        function = option(function)
    return function


def ingest_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings from the values of `ingest_options`; what was not given is left out.

    Raises:
      OptionError: --splits is not of the form train=0.9,eval=0.1.
    """
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    settings = {name: given[name] for name in _PLAIN if name in given}
    if "splits" in given:
        settings["splits"] = parse_splits(given["splits"])
    nested = {
        "columns": {name.removesuffix("_column"): given[name] for name in _COLUMNS if name in given},
        "pixels": {name: given[name] for name in _PIXELS if name in given},
        "limits": {name: given[name] for name in _LIMITS if name in given},
        "http": {name.removeprefix("http_"): given[name] for name in _HTTP if name in given},
    }
    if "allow_buckets" in given:
        settings["allow_buckets"] = tuple(given["allow_buckets"])
    if "extra_columns" in given:
        nested["columns"]["extra"] = tuple(given["extra_columns"])
    return {**settings, **{name: values for name, values in nested.items() if values}}


def say(line: str) -> None:
    """Prints a line of progress; on standard error, so that standard output holds the result alone."""
    echo(line, err=True)


def echo(*lines: str, err: bool = False) -> None:
    """Prints lines; controls that names and labels hold, line feeds too, reach the terminal as escapes."""
    click.echo(strings.lines(lines), err=err)


def colour() -> bool | None:
    """Returns False where colours are switched off (https://no-color.org); None where a terminal gets them."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def program() -> str:
    """Returns what to type for this program: its name, or the way it was called when it is not on the search path."""
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return "python -m pipeline"
    return "feedline" if shutil.which("feedline") else sys.argv[0]


def terminal_columns(unknown: int = 80) -> int:
    """Returns how wide the terminal is, in characters; `unknown` for one that does not say, which may call that 0."""
    return shutil.get_terminal_size((unknown, 24)).columns or unknown


def check_useful(values: Mapping[str, Any], options: IngestOptions) -> None:
    """Refuses what was typed and would change nothing.

    Args:
      values: of `ingest_options`, as they were given.
      options: what they and all other layers come to.

    Raises:
      OptionError: an option belongs to another one that is not set so.
    """
    chosen = {"policy": options.pixels.policy, "near_duplicates": options.near_duplicates}
    for name, (other, wanted) in _PARTS.items():
        if values.get(name) is not None and chosen[other] not in wanted:
            # What is added to a dataset is treated like the rest of it: there the other option has no choice.
            adds = options.append or options.retry_rejects
            remedy = "leave it out" if adds else f"give {_flag(other)} {' or '.join(wanted)} too, or leave it out"
            raise OptionError(f"{_flag(name)} is of no use to {_flag(other)} {chosen[other]}; {remedy}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def print_json(values: Mapping[str, Any]) -> None:
    """Prints a result for machines."""
    click.echo(strings.to_json(values))


_PLAIN = (
    *("source_kind", "stratify", "seed", "shard_mb", "shards", "duplicates", "near_duplicates", "near_distance"),
    *("split_conflicts", "facts", "max_reject_ratio", "unreadable", "float32_loss", "threads"),
)
_COLUMNS = (
    *("image_column", "label_column", "labels_column", "label_separator", "mask_column", "weight_column"),
    *("key_column", "group_column", "split_column", "max_value_bytes"),
)
_PIXELS = ("policy", "side_px", "fit", "quality")
# Option -> another, and the values of that one with which it does something.
_PARTS = {
    "side_px": ("policy", ("resize", "raw")),
    "fit": ("policy", ("resize",)),
    "quality": ("policy", ("resize",)),
    "near_distance": ("near_duplicates", NEAR_DUPLICATE_POLICIES[1:]),
}
_HTTP = ("http_timeout_s", "http_retries", "http_per_host", "http_allow_private")
_LIMITS = (
    "max_bytes",
    "max_pixels",
    "max_side_px",
    "min_side_px",
    "max_aspect",
    "max_seconds",
    "mask_classes",
    "mask_ignore",
)
_JSON_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
    click.option(
        "--json-schema",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_schema,
        help="Print the JSON Schema of that object; do nothing else.",
    ),
)


def _under(heading: str) -> Callable[..., Any]:
    return functools.partial(click.option, cls=Option, heading=heading)


_split, _twins, _pixels, _column = map(_under, ("Splits and shards", "Duplicates", "Pixels", "Columns of a table"))
_limit, _http = map(_under, ("Limits of an image", "Images on web servers"))
_INGEST_OPTIONS = (
    click.option(
        "--source-kind",
        type=click.Choice(SOURCE_KINDS),
        metavar="KIND",
        help=f"What the source is: {', '.join(SOURCE_KINDS)}.  [default: auto]",
    ),
    click.option("--threads", type=int, help="Threads per worker; 0 is one per core.  [default: 0]"),
    click.option(
        "--max-reject-ratio",
        type=float,
        help="Share of bad images, 0-1, above which nothing is published.  [default: 0.05]",
    ),
    click.option(
        "--unreadable",
        type=click.Choice(UNREADABLE),
        help="Images that are there and that three passes could not read: name them and publish nothing, or reject "
        "them, and try them again in the next run.  [default: stop]",
    ),
    click.option(
        "--allow-bucket",
        "allow_buckets",
        metavar="URL",
        multiple=True,
        help="Bucket that a table may name besides its own and that of --out, such as s3://photos; repeatable.",
    ),
    _split(
        "--splits",
        metavar="NAME=SHARE,...",
        help="Splits and their shares, scaled to a sum of 1.  [default: train=0.9,eval=0.1]",
    ),
    _split("--stratify", is_flag=True, default=None, help="Apply the shares to every class on its own."),
    _split(
        "--split-conflicts",
        type=click.Choice(SPLIT_CONFLICTS),
        help="Images that belong together and that a split column or an existing dataset puts into two splits: name "
        "them, or publish nothing.  [default: report]",
    ),
    _split("--seed", type=int, help="Seed of the split and of the order; another seed is another split.  [default: 0]"),
    _split("--shard-mb", type=float, help="Target size of a shard in MB.  [default: 128]"),
    _split("--shards", type=int, help="Shards per split; 0 lets --shard-mb decide.  [default: 0]"),
    _twins(
        "--duplicates",
        type=click.Choice(DUPLICATE_POLICIES),
        help="Exact copies: keep all in one split, drop all but one, or keep and report them.  [default: keep]",
    ),
    _twins(
        "--near-duplicates",
        type=click.Choice(NEAR_DUPLICATE_POLICIES),
        help="Images that look alike: report them, group them in one split, or drop all but one.  [default: off]",
    ),
    _twins("--near-distance", type=int, help="How many of the 64 hash bits may differ, 0-8.  [default: 3]"),
    _pixels(
        "--policy",
        type=click.Choice(PIXEL_POLICIES),
        help="Copy files as they are, resize them, or store raw pixels of one size.  [default: copy]",
    ),
    _pixels("--side-px", type=int, help="Side of the images that resize and raw store, in pixels.  [default: 256]"),
    _pixels(
        "--fit",
        type=click.Choice(RESIZE_FITS),
        help="Side that resize brings to --side-px: short, or inside for the long one.  [default: short]",
    ),
    _pixels("--quality", type=int, help="JPEG quality of resized images, 1-100.  [default: 90]"),
    _pixels(
        "--facts",
        type=click.Choice(FACTS),
        help="What to measure of each image; basic leaves out channel statistics.  [default: all]",
    ),
    _column("--image-column", metavar="NAME", help="Column with the path or URL.  [default: image]"),
    _column("--label-column", metavar="NAME", help="Column with the class name; '' for none.  [default: label]"),
    _column(
        "--labels-column", metavar="NAME", help="Column with any number of class names, instead of --label-column."
    ),
    _column("--label-separator", metavar="TEXT", help="Separator of the names in --labels-column.  [default: |]"),
    _column("--mask-column", metavar="NAME", help="Column with the path of a class mask: PNG, TIFF or BMP."),
    _column("--weight-column", metavar="NAME", help="Column with the weight of the image in the loss."),
    _column("--key-column", metavar="NAME", help="Column with the identity of the image.  [default: its path]"),
    _column("--group-column", metavar="NAME", help="Column with a group; images of one group stay in one split."),
    _column("--split-column", metavar="NAME", help="Column that names the split."),
    _column(
        "--extra-column",
        "extra_columns",
        metavar="NAME",
        multiple=True,
        help="Column to copy into the records; repeatable.",
    ),
    _column(
        "--max-value-bytes",
        type=int,
        help="Largest cell of an --extra-column, and all labels of an image, in bytes.  [default: 1048576]",
    ),
    _column(
        "--float32-loss",
        type=click.Choice(FLOAT32_LOSSES),
        help="Where float32 changes numbers of extra columns: report them, or refuse to publish.  [default: report]",
    ),
    _limit("--max-bytes", type=int, help="Largest file in bytes.  [default: 52428800]"),
    _limit("--max-pixels", type=int, help="Largest height x width, in pixels.  [default: 64000000]"),
    _limit("--max-side-px", type=int, help="Longest side in pixels.  [default: 32768]"),
    _limit("--min-side-px", type=int, help="Shortest side in pixels.  [default: 8]"),
    _limit("--max-aspect", type=float, help="Longest side divided by shortest.  [default: 20]"),
    _limit("--max-seconds", type=float, help="Longest computing time of decoding, in seconds.  [default: 60]"),
    _limit("--mask-classes", type=int, help="Classes of the masks; 0 takes every value for one.  [default: 0]"),
    _limit("--mask-ignore", type=int, help="Value of mask pixels without a class, such as 255.  [default: -1]"),
    _http("--http-timeout-s", type=float, help="Seconds without a byte after which an attempt ends.  [default: 20]"),
    _http("--http-retries", type=int, help="Further attempts after a failed one.  [default: 3]"),
    _http("--http-per-host", type=int, help="Requests to one host at a time.  [default: 8]"),
    _http(
        "--http-allow-private",
        is_flag=True,
        default=None,
        help="Fetch from loopback, link-local and private addresses too.",
    ),
)
