"""`feedline inspect`."""

from __future__ import annotations

import os
from typing import Any

import click

from beam_jobs import storage, visible
from beam_jobs.errors import OptionError, SourceError
from pipeline.cli.common import echo, json_option, print_json


@click.command("inspect")
@click.argument("path")
@click.option("-n", "shown", type=click.IntRange(min=0), default=5, show_default=True, help="Records to show.")
@click.option("--key", help="Show the one image of a dataset that has this key.")
@click.option("--export", "export_dir", help="Directory to write the images that are shown to.")
@json_option
def command(path: str, shown: int, key: str | None, export_dir: str | None, as_json: bool) -> None:
    """Look inside PATH, a dataset or any TFRecord file, ours or not.

    \b
    Examples:
      feedline inspect dataset
      feedline inspect dataset --key cat/1.jpg --export pictures
      feedline inspect other.tfrecord.gz -n 2
    """
    if key is not None:
        records = _one(path, key, as_json)
    elif _is_dataset(path):
        records = _dataset(path, shown, as_json)
    else:
        records = _file(path, shown, as_json)
    if export_dir:
        _export(records, export_dir)


def _is_dataset(path: str) -> bool:
    """Returns whether the path is to be looked at as a dataset; so that a folder is told what it lacks."""
    from beam_jobs import manifest

    try:
        return os.path.isdir(path) or manifest.is_published(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error


def _one(path: str, key: str, as_json: bool) -> list[dict[str, list]]:
    from beam_jobs.inspect import find_record, shown_value

    row, values = find_record(path, key)
    if as_json:
        print_json({"row": row, "features": {name: shown_value(found) for name, found in sorted(values.items())}})
        return [values]
    echo(f"{row['split']} shard {row['shard']} offset {row['offset']:,}")
    _print_record(values)
    return [values]


def _dataset(path: str, shown: int, as_json: bool) -> list[dict[str, list]]:
    from beam_jobs import manifest
    from beam_jobs.inspect import summarise_file

    dataset = manifest.load(path)
    first = next(iter(dataset.splits))
    summary = summarise_file(dataset.shard_paths(path, first)[0], shown)
    if as_json:
        print_json(dataset.to_json())
        return summary.first
    echo(f"digest     {dataset.digest}")
    labels = visible.line(", ".join(dataset.labels[:8]))
    echo(f"classes    {len(dataset.labels)}: {labels}{' ...' * (len(dataset.labels) > 8)}")
    for name, info in dataset.splits.items():
        echo(f"{name:<10} {info.records:,} images, {len(info.shards)} shards, {info.bytes:,} bytes")
    for values in summary.first:
        echo("")
        _print_record(values)
    return summary.first


def _file(path: str, shown: int, as_json: bool) -> list[dict[str, list]]:
    from dataclasses import asdict

    from beam_jobs.inspect import shown_value, summarise_file

    summary = summarise_file(path, shown)
    if as_json:
        first = [{name: shown_value(found) for name, found in sorted(values.items())} for values in summary.first]
        print_json({**asdict(summary), "first": first})
        return summary.first
    size = storage.size(path)
    echo(f"{summary.records:,} records, {size:,} bytes, compression {summary.compression}")
    for name, feature in sorted(summary.features.items()):
        lengths = str(feature.least) if feature.least == feature.most else f"{feature.least}-{feature.most}"
        echo(f"  {visible.line(name):<32} {feature.kind:<6} {lengths} values, in {feature.records:,} records")
    for values in summary.first:
        echo("")
        _print_record(values)
    return summary.first


def _print_record(values: dict[str, list]) -> None:
    from beam_jobs.inspect import shown_value

    for name, found in sorted(values.items()):
        echo(f"  {visible.line(name):<32} {shown_value(found)}")


def _export(records: list[dict[str, Any]], directory: str) -> None:
    from beam_jobs.inspect import viewable_image

    images = [image for image in map(viewable_image, records) if image]
    if not images:
        raise OptionError("none of the records shown holds image/encoded; there is nothing to export")
    for index, image in enumerate(images):
        # Named by number: a key comes from data and could lead out of the directory.
        suffix = "png" if image.startswith(b"\x89PNG") else "jpg"
        target = storage.join(directory, f"{index:05d}.{suffix}")
        storage.write_bytes(target, image)
        echo(target, err=True)
