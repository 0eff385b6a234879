"""`feedline diff`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from beam_jobs.common import strings
from pipeline.cli.click_groups import DIR, Command
from pipeline.cli.common import echo, json_option, print_json

if TYPE_CHECKING:
    from beam_jobs.dataset.diff import Changes, Difference

_EXIT_CODE = 3
_DIGEST_DIGITS = 16
_SIGNS = {"added": "+", "removed": "-"}
# Kind of change -> the column whose old and new values are printed after the key.
_COMPARED_COLUMNS = {"renamed": "key", "relabelled": "label", "changed": "", "moved": "split", "annotated": ""}
_TITLES = {"changed": "other bytes", "annotated": "other annotations"}


@click.command("diff", cls=Command)
@click.argument("old", metavar="A", type=DIR)
@click.argument("new", metavar="B", type=DIR)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="INTEGER",
    default=10,
    help="Maximum number of lines for each kind of change; 0 is all.  [default: 10]",
)
@click.option("--exit-code", is_flag=True, help="Exit with code 3 when the datasets differ.")
@json_option
def command(old: str, new: str, limit: int, exit_code: bool, as_json: bool) -> None:
    """List the differences between two datasets.

    Lists the changes from A to B: images, labels, splits, classes, sizes and options. Reads dataset.json and the image
    table, not the shards.

    \b
    Examples:
      feedline diff dataset newer_dataset
      feedline diff dataset newer_dataset --limit 0 --json
      feedline diff gs://bucket/dataset dataset --exit-code
    """
    from beam_jobs.dataset.diff import diff

    difference = diff(old, new, limit)
    if as_json:
        print_json(difference.to_json())
    else:
        _print(difference, (old, new), limit)
    if exit_code and not difference.is_equal:
        raise click.exceptions.Exit(_EXIT_CODE)


def _print(difference: Difference, paths: tuple[str, str], limit: int) -> None:
    for side, name, digest, written in zip("AB", paths, difference.digests, difference.written, strict=True):
        echo(f"{side}  {digest[:_DIGEST_DIGITS]}  {written:,} images  {strings.line(name)}")
    if difference.is_equal:
        echo("equal")
        return
    if difference.digests[0] == difference.digests[1]:
        echo("the records are equal, byte for byte")
    for line in _lines(difference, limit):
        echo(line)


def _lines(difference: Difference, limit: int) -> Iterator[str]:
    if difference.digests[0] != difference.digests[1]:
        yield from _count_lines(difference)
    for kind in (*_SIGNS, *_COMPARED_COLUMNS):
        yield from _image_lines(kind, getattr(difference, kind))
    for kind, names in difference.labels.items():
        yield from ("", f"classes {kind}")
        yield from _limit_lines([f"  {strings.line(name)}" for name in names], limit)
    for split, changes in difference.classes.items():
        yield from ("", f"images of a class in {strings.line(split)}, change of the share")
        lines = [
            f"  {change.share:+8.2%}  {change.old:>9,} -> {change.new:<9,}  {strings.line(change.label)}"
            for change in changes
        ]
        yield from _limit_lines(lines, limit)
    yield from _fact_lines(difference)
    if difference.options:
        yield from ("", "options")
        yield from _limit_lines(list(_option_lines(difference.options)), limit)


def _count_lines(difference: Difference) -> Iterator[str]:
    yield ""
    for kind in (*_SIGNS, *_COMPARED_COLUMNS):
        remark = ""
        if kind == "changed" and difference.stored_otherwise:
            remark = f", {difference.stored_otherwise:,} of them with the same source bytes, stored differently"
        yield f"{_TITLES.get(kind, kind):<18} {getattr(difference, kind).count:>9,}{remark}"


def _image_lines(kind: str, changes: Changes) -> Iterator[str]:
    if not changes.count:
        return
    yield from ("", _TITLES.get(kind, kind))
    for image in changes.images:
        key, label = (strings.line(image[name]) for name in ("key", "label"))
        if kind in _SIGNS:
            yield f"  {_SIGNS[kind]} {key}  {strings.line(image['split'])}" + (f"  {label}" if label else "")
        else:
            yield f"  ~ {key}{_old_and_new(kind, image)}"
    yield from _remaining_line(changes.count - len(changes.images))


def _old_and_new(kind: str, image: Mapping[str, Any]) -> str:
    column = _COMPARED_COLUMNS[kind]
    if not column:
        return ""
    old_value, new_value = (strings.line(image[f"{prefix}{column}"]) or "(none)" for prefix in ("", "new_"))
    return f" -> {new_value}" if column == "key" else f"  {old_value} -> {new_value}"


def _fact_lines(difference: Difference) -> Iterator[str]:
    for split, changes in difference.facts.items():
        differing = [change for change in changes if change.jensen_shannon > 0 or change.old != change.new]
        if differing:
            yield from ("", f"sizes of images in {strings.line(split)}: Jensen-Shannon, minimum / median / maximum")
        for change in differing:
            old, new = (" / ".join(f"{value:,.6g}" for value in values) for values in (change.old, change.new))
            yield f"  {change.name:<11} {change.jensen_shannon:.3f}  {old} -> {new}"


def _option_lines(options: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    from beam_jobs.dataset.diff import option_texts

    for name, values in options.items():
        old_value, new_value = map(strings.line, option_texts(values))
        yield f"  {strings.line(name)}  {old_value} -> {new_value}"


def _limit_lines(lines: list[str], limit: int) -> Iterator[str]:
    printed = lines[: limit or len(lines)]
    yield from printed
    yield from _remaining_line(len(lines) - len(printed))


def _remaining_line(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count:,} more; --limit 0 lists them all"
