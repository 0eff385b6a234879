"""The execution properties of ImageExampleGen, and how their source is resolved. Imports no TFX."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from beam_jobs import storage
from beam_jobs.dataset import manifest, shards
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, SourceError, os_errors_as
from beam_jobs.options import IngestOptions
from beam_jobs.sources import spans

if TYPE_CHECKING:
    from tfx.types import Artifact


EXAMPLES_KEY = "examples"
OPTIONS_KEY = "options"
DATASET_KEY = "dataset"
PRODUCER_KEY = "producer"
FINGERPRINT_KEY = "input_fingerprint"  # this key and the next two are those of TFX's ExampleGen
SPAN_KEY = "span"
VERSION_KEY = "version"
DIGEST_KEY = "dataset_digest"
WORK_DIR_KEY = "work_dir"


def options_text(options: IngestOptions) -> str:
    """Returns the options as JSON text; equal options result in equal texts."""
    return json.dumps(options.to_json(), sort_keys=True)


def read_options(properties: Mapping[str, Any]) -> IngestOptions:
    """Returns the ingest options in the properties of an execution."""
    return IngestOptions.from_json(json.loads(properties[OPTIONS_KEY]))


def resolve_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties with the path of the source, and with span and version as numbers.

    A request for the newest span has the same result as a request for the number of that span.

    Args:
      properties: properties of the component; the source or dataset may be a pattern.

    Raises:
      OptionError: the pattern is invalid.
      SourceError: the span or version does not exist.
    """
    requested_span = properties.get(SPAN_KEY), properties.get(VERSION_KEY)
    if properties.get(DATASET_KEY):
        span = spans.resolve(properties[DATASET_KEY], *requested_span)
        resolved = {DATASET_KEY: span.source if storage.is_remote(span.source) else os.path.abspath(span.source)}
    else:
        options = read_options(properties)
        span = spans.resolve(options.source, *requested_span)
        resolved = {OPTIONS_KEY: options_text(dataclasses.replace(options, source=span.source))}
    return {**properties, **resolved, SPAN_KEY: span.span, VERSION_KEY: span.version}


def describe_span(examples: Artifact, properties: Mapping[str, Any]) -> None:
    """Sets the span and the version of an artifact from resolved properties; without a version, it remains 0."""
    examples.span = properties.get(SPAN_KEY) or 0
    if properties.get(VERSION_KEY) is not None:
        examples.version = properties[VERSION_KEY]


def check_dataset(directory: str) -> Manifest:
    """Checks the existence and size of all files of a published dataset, without reading its records.

    Args:
      directory: directory of the dataset, local or remote.

    Returns:
      the manifest of the dataset.

    Raises:
      SourceError: the directory is not a published dataset, or cannot be read.
      CorruptDataset: a file is missing, has another size, or is an unknown file among the shards.
    """
    with os_errors_as(SourceError, f"dataset {directory} cannot be read"):
        dataset = manifest.load(directory)
        for name in dataset.table_digests:
            if not storage.exists(storage.join(directory, name)):
                raise CorruptDataset(f"{storage.join(directory, name)} is missing; write the dataset again")
        for split in dataset.splits:
            _check_split(storage.join(directory, shards.split_dir(split)), dataset, split)
    return dataset


def _check_split(folder: str, dataset: Manifest, split: str) -> None:
    sizes = _read_sizes(folder)
    expected = {shard.name: shard.bytes for shard in dataset.splits[split].shards}
    for name in sorted(sizes.keys() | expected.keys()):
        path = storage.join(folder, name)
        if name not in sizes:
            raise CorruptDataset(f"{path} is missing; write the dataset again")
        if name not in expected:  # TFX reads every file of the folder
            raise CorruptDataset(f"{path} is no shard of the dataset; move it elsewhere")
        if sizes[name] != expected[name]:
            raise CorruptDataset(
                f"{path} has {sizes[name]} bytes, {expected[name]} were written; write the dataset again"
            )


def _read_sizes(folder: str) -> dict[str, int]:
    if storage.is_remote(folder):
        return {path: size for path, size, *_ in storage.list_objects(folder)}
    return {entry.name: entry.stat().st_size for entry in os.scandir(folder)} if os.path.isdir(folder) else {}
