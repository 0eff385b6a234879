"""What several commands share: options of the ingest and how results are printed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from beam_jobs import visible
from beam_jobs.errors import GateFailed
from beam_jobs.options import (
    DUPLICATE_POLICIES,
    FACTS,
    NEAR_DUPLICATE_POLICIES,
    PIXEL_POLICIES,
    RESIZE_FITS,
    SOURCE_KINDS,
    parse_splits,
)

if TYPE_CHECKING:
    from pipeline.summary import RunSummary

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")


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
    if "extra_columns" in given:
        nested["columns"]["extra"] = tuple(given["extra_columns"])
    return {**settings, **{name: values for name, values in nested.items() if values}}


def say(line: str) -> None:
    """Prints a line of progress; on standard error, so that standard output holds the result alone."""
    echo(line, err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Prints lines; controls that names and labels hold reach the terminal as escapes."""
    click.echo(visible.text(text), err=err)


def program() -> str:
    """Returns what to type for this program: its name, or the way it was called when it is not on the search path."""
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return "python -m pipeline"
    return "feedline" if shutil.which("feedline") else sys.argv[0]


def check_pushed(summary: RunSummary) -> None:
    """Raises `GateFailed` when the model was not pushed; called last, so that the summary is printed all the same."""
    if summary.blessed:
        return
    from pipeline.summary import refusal

    raise GateFailed(f"{refusal(summary)}; the model was not pushed, train longer or lower the limit")


def print_json(values: Mapping[str, Any]) -> None:
    """Prints a result for machines."""
    click.echo(visible.to_json(values))


_PLAIN = (
    *("source_kind", "stratify", "seed", "shard_mb", "shards", "duplicates", "near_duplicates", "near_distance"),
    *("facts", "max_reject_ratio", "threads"),
)
_COLUMNS = (
    *("image_column", "label_column", "labels_column", "label_separator", "mask_column", "weight_column"),
    *("key_column", "group_column", "split_column"),
)
_PIXELS = ("policy", "side_px", "fit", "quality")
_HTTP = ("http_timeout_s", "http_retries", "http_per_host", "http_allow_private")
_LIMITS = ("max_bytes", "max_pixels", "max_side_px", "min_side_px", "max_aspect", "max_seconds")
_INGEST_OPTIONS = (
    click.option("--source-kind", type=click.Choice(SOURCE_KINDS), help="What SOURCE is.  [default: auto]"),
    click.option("--splits", metavar="NAME=SHARE,...", help="Splits and shares.  [default: train=0.9,eval=0.1]"),
    click.option("--stratify", is_flag=True, default=None, help="Cut every class by the shares on its own."),
    click.option("--seed", type=int, help="Salt of the split and of the order.  [default: 0]"),
    click.option("--shard-mb", type=float, help="Aimed size of a shard in MB.  [default: 128]"),
    click.option("--shards", type=int, help="Shards a split, instead of --shard-mb."),
    click.option("--duplicates", type=click.Choice(DUPLICATE_POLICIES), help="Exact copies.  [default: keep]"),
    click.option(
        "--near-duplicates", type=click.Choice(NEAR_DUPLICATE_POLICIES), help="Images that look alike.  [default: off]"
    ),
    click.option("--near-distance", type=int, help="Bits of 64 in which their hashes may differ.  [default: 3]"),
    click.option("--policy", type=click.Choice(PIXEL_POLICIES), help="What becomes of the pixels.  [default: copy]"),
    click.option("--side-px", type=int, help="Side that resize and raw aim at.  [default: 256]"),
    click.option("--fit", type=click.Choice(RESIZE_FITS), help="Side that resize measures.  [default: short]"),
    click.option("--quality", type=int, help="Of the JPEG files of resize, 1-100.  [default: 90]"),
    click.option("--facts", type=click.Choice(FACTS), help="basic leaves out channel statistics.  [default: all]"),
    click.option("--max-reject-ratio", type=float, help="Share of bad images that stops the run.  [default: 0.05]"),
    click.option("--threads", type=int, help="Threads a worker; 0 is one a core.  [default: 0]"),
    click.option("--image-column", help="Column of a table with the path.  [default: image]"),
    click.option("--label-column", help="Column with the class name; '' for none.  [default: label]"),
    click.option("--labels-column", help="Column with any number of class names, instead of --label-column."),
    click.option("--label-separator", help="What parts the names in --labels-column.  [default: |]"),
    click.option("--mask-column", help="Column with the path of a class mask, a PNG."),
    click.option("--weight-column", help="Column with the weight of the image in the loss."),
    click.option("--key-column", help="Column with the identity of the image.  [default: its path]"),
    click.option("--group-column", help="Column whose equal values stay in one split."),
    click.option("--split-column", help="Column that names the split."),
    click.option("--extra-column", "extra_columns", multiple=True, help="Column to copy into the records; repeatable."),
    click.option("--max-bytes", type=int, help="Largest file in bytes.  [default: 52428800]"),
    click.option("--max-pixels", type=int, help="Largest height x width.  [default: 64000000]"),
    click.option("--max-side-px", type=int, help="Longest side.  [default: 32768]"),
    click.option("--min-side-px", type=int, help="Shortest side.  [default: 8]"),
    click.option("--http-timeout-s", type=float, help="Seconds without a byte that end an attempt.  [default: 20]"),
    click.option("--http-retries", type=int, help="Further attempts to fetch an image.  [default: 3]"),
    click.option("--http-per-host", type=int, help="Requests to one host at a time.  [default: 8]"),
    click.option(
        "--http-allow-private", is_flag=True, default=None, help="Ask loopback, link-local and private addresses too."
    ),
    click.option("--max-aspect", type=float, help="Longest side divided by shortest.  [default: 20]"),
    click.option("--max-seconds", type=float, help="Computing time that decoding an image may take.  [default: 60]"),
)
