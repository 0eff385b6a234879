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

_DIFFERENT = 3
_DIGITS = 16  # of a digest
_SIGNS = {"added": "+", "removed": "-"}
# Kind of change -> what of both sides is shown behind the key.
_PAIRS = {"renamed": "key", "relabelled": "label", "changed": "", "moved": "split", "annotated": ""}
_WORDS = {"changed": "other bytes", "annotated": "other annotations"}


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
    and images.parquet.

    \b
    Examples:
      feedline diff dataset newer_dataset
      feedline diff dataset newer_dataset --limit 0 --json
      feedline diff gs://bucket/dataset dataset --exit-code
    """
    from beam_jobs.dataset.diff import diff

    found = diff(old, new, limit)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found, (old, new), limit)
    if exit_code and not found.is_equal:
        raise click.exceptions.Exit(_DIFFERENT)


def _print(found: Difference, names: tuple[str, str], limit: int) -> None:
    for side, name, digest, written in zip("AB", names, found.digests, found.written, strict=True):
        echo(f"{side}  {digest[:_DIGITS]}  {written:,} images  {strings.line(name)}")
    if found.is_equal:
        echo("equal")
        return
    if found.digests[0] == found.digests[1]:
        echo("the records are equal, byte for byte")
    for line in _lines(found, limit):
        echo(line)


def _lines(found: Difference, limit: int) -> Iterator[str]:
    if found.digests[0] != found.digests[1]:
        yield from _counts(found)
    for kind in (*_SIGNS, *_PAIRS):
        yield from _images(kind, getattr(found, kind))
    for kind, names in found.labels.items():
        yield from ("", f"classes {kind}")
        yield from _limited([f"  {strings.line(name)}" for name in names], limit)
    for split, changes in found.classes.items():
        yield from ("", f"images of a class in {strings.line(split)}, change of its share")
        lines = [f"  {one.share:+8.2%}  {one.old:>9,} -> {one.new:<9,}  {strings.line(one.label)}" for one in changes]
        yield from _limited(lines, limit)
    yield from _facts(found)
    if found.options:
        yield from ("", "options")
        yield from _limited(list(_options(found.options)), limit)


def _counts(found: Difference) -> Iterator[str]:
    yield ""
    for kind in (*_SIGNS, *_PAIRS):
        remark = ""
        if kind == "changed" and found.stored_otherwise:
            remark = f", {found.stored_otherwise:,} of them from the same source, stored otherwise"
        yield f"{_WORDS.get(kind, kind):<18} {getattr(found, kind).count:>9,}{remark}"


def _images(kind: str, changes: Changes) -> Iterator[str]:
    if not changes.count:
        return
    yield from ("", _WORDS.get(kind, kind))
    for image in changes.images:
        key, label = (strings.line(image[name]) for name in ("key", "label"))
        if kind in _SIGNS:
            yield f"  {_SIGNS[kind]} {key}  {strings.line(image['split'])}" + (f"  {label}" if label else "")
        else:
            yield f"  ~ {key}{_pair(kind, image)}"
    yield from _rest(changes.count - len(changes.images))


def _pair(kind: str, image: Mapping[str, Any]) -> str:
    name = _PAIRS[kind]
    if not name:
        return ""
    before, after = (strings.line(image[f"{side}{name}"]) or "(none)" for side in ("", "new_"))
    return f" -> {after}" if name == "key" else f"  {before} -> {after}"


def _facts(found: Difference) -> Iterator[str]:
    for split, changes in found.facts.items():
        apart = [one for one in changes if one.jensen_shannon > 0 or one.old != one.new]
        if apart:
            yield from ("", f"sizes of images in {strings.line(split)}: Jensen-Shannon, least / middle / greatest")
        for one in apart:
            before, after = (" / ".join(f"{value:,.6g}" for value in side) for side in (one.old, one.new))
            yield f"  {one.name:<11} {one.jensen_shannon:.3f}  {before} -> {after}"


def _options(options: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    from beam_jobs.dataset.diff import option_texts

    for name, values in options.items():
        before, after = map(strings.line, option_texts(values))
        yield f"  {strings.line(name)}  {before} -> {after}"


def _limited(lines: list[str], limit: int) -> Iterator[str]:
    kept = lines[: limit or len(lines)]
    yield from kept
    yield from _rest(len(lines) - len(kept))


def _rest(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count:,} more; --limit 0 lists them all"
