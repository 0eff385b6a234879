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
# Kind of change -> the column that is shown as old and new value behind the key.
_PAIRS = {"renamed": "key", "relabelled": "label", "changed": "", "moved": "split", "annotated": ""}
_TITLES = {"changed": "other bytes", "annotated": "other annotations"}


@click.command("diff", cls=Command)
@click.argument("old", metavar="A", type=DIR)
@click.argument("new", metavar="B", type=DIR)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="INTEGER",
    default=10,
    help="Most lines to show of each kind of change; 0 is all.  [default: 10]",
)
@click.option("--exit-code", is_flag=True, help="Exit with code 3 when the datasets differ.")
@json_option
def command(old: str, new: str, limit: int, exit_code: bool, as_json: bool) -> None:
    """Say what changed between two datasets.

    From A to B: images, labels, splits, classes, sizes and options. Shards are not read; everything is in dataset.json
    and the image table.

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


def _print(difference: Difference, names: tuple[str, str], limit: int) -> None:
    for side, name, digest, written in zip("AB", names, difference.digests, difference.written, strict=True):
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
    for kind in (*_SIGNS, *_PAIRS):
        yield from _image_lines(kind, getattr(difference, kind))
    for kind, names in difference.labels.items():
        yield from ("", f"classes {kind}")
        yield from _limit_lines([f"  {strings.line(name)}" for name in names], limit)
    for split, changes in difference.classes.items():
        yield from ("", f"images of a class in {strings.line(split)}, change of its share")
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
    for kind in (*_SIGNS, *_PAIRS):
        remark = ""
        if kind == "changed" and difference.stored_otherwise:
            remark = f", {difference.stored_otherwise:,} of them from the same source, stored otherwise"
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
    name = _PAIRS[kind]
    if not name:
        return ""
    before, after = (strings.line(image[f"{side}{name}"]) or "(none)" for side in ("", "new_"))
    return f" -> {after}" if name == "key" else f"  {before} -> {after}"


def _fact_lines(difference: Difference) -> Iterator[str]:
    for split, changes in difference.facts.items():
        differing = [change for change in changes if change.jensen_shannon > 0 or change.old != change.new]
        if differing:
            yield from ("", f"sizes of images in {strings.line(split)}: Jensen-Shannon, minimum / median / maximum")
        for change in differing:
            before, after = (" / ".join(f"{value:,.6g}" for value in side) for side in (change.old, change.new))
            yield f"  {change.name:<11} {change.jensen_shannon:.3f}  {before} -> {after}"


def _option_lines(options: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    from beam_jobs.dataset.diff import option_texts

    for name, values in options.items():
        before, after = map(strings.line, option_texts(values))
        yield f"  {strings.line(name)}  {before} -> {after}"


def _limit_lines(lines: list[str], limit: int) -> Iterator[str]:
    shown = lines[: limit or len(lines)]
    yield from shown
    yield from _remaining_line(len(lines) - len(shown))


def _remaining_line(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count:,} more; --limit 0 lists them all"
