"""ImageExampleGen: what the component is asked for, how a run reads it, and the names its parts share. No TFX."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from beam_jobs import storage
from beam_jobs.dataset import manifest, shards
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, SourceError
from beam_jobs.options import IngestOptions
from beam_jobs.sources import spans

if TYPE_CHECKING:
    from tfx.types import Artifact


EXAMPLES_KEY = "examples"
OPTIONS_KEY = "options"
DATASET_KEY = "dataset"
PRODUCER_KEY = "producer"
FINGERPRINT_KEY = "input_fingerprint"  # the names TFX's own ExampleGen uses
SPAN_KEY = "span"
VERSION_KEY = "version"
DIGEST_KEY = "dataset_digest"


def options_text(options: IngestOptions) -> str:
    """Returns the options as the one text that equal options have."""
    return json.dumps(options.to_json(), sort_keys=True)


def options_of(properties: Mapping[str, Any]) -> IngestOptions:
    """Returns the options of an execution."""
    return IngestOptions.from_json(json.loads(properties[OPTIONS_KEY]))


def resolved_request(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of an execution with the source, span and version that they mean now.

    A span that was asked for and the newest one that happens to be the same lead to equal properties.

    Args:
      properties: as the component was built; the source or dataset may be a pattern.

    Raises:
      OptionError: the pattern cannot be followed.
      SourceError: there is no such span or version.
    """
    wanted = properties.get(SPAN_KEY), properties.get(VERSION_KEY)
    if properties.get(DATASET_KEY):
        found = spans.resolve(properties[DATASET_KEY], *wanted)
        source = {DATASET_KEY: found.source if storage.is_remote(found.source) else os.path.abspath(found.source)}
    else:
        options = options_of(properties)
        found = spans.resolve(options.source, *wanted)
        source = {OPTIONS_KEY: options_text(dataclasses.replace(options, source=found.source))}
    return {**properties, **source, SPAN_KEY: found.span, VERSION_KEY: found.version}


def describe_span(examples: Artifact, properties: Mapping[str, Any]) -> None:
    """Writes span and version, of resolved properties, on the artifact; a version that there is none of stays 0."""
    examples.span = properties.get(SPAN_KEY) or 0
    if properties.get(VERSION_KEY) is not None:
        examples.version = properties[VERSION_KEY]


def check_dataset(directory: str) -> Manifest:
    """Looks at a published dataset without reading its records: every file is there, and as long as it was written.

    Args:
      directory: of the dataset, local or remote.

    Returns:
      its manifest.

    Raises:
      SourceError: it is not a published dataset, or cannot be read.
      CorruptDataset: a file is missing, was cut, or lies where readers would take it for a shard.
    """
    try:
        dataset = manifest.load(directory)
        for name in dataset.tables:
            if not storage.exists(storage.join(directory, name)):
                raise CorruptDataset(f"{storage.join(directory, name)} is missing; write the dataset again")
        for split in dataset.splits:
            _check_split(storage.join(directory, shards.split_dir(split)), dataset, split)
    except OSError as error:
        raise SourceError(f"dataset {directory} cannot be read: {error.strerror or error}") from error
    return dataset


def _check_split(folder: str, dataset: Manifest, split: str) -> None:
    found = _sizes(folder)
    expected = {shard.name: shard.bytes for shard in dataset.splits[split].shards}
    for name in sorted(found.keys() | expected.keys()):
        path = storage.join(folder, name)
        if name not in found:
            raise CorruptDataset(f"{path} is missing; write the dataset again")
        if name not in expected:  # TFX reads every file of the folder
            raise CorruptDataset(f"{path} is no shard of the dataset; move it elsewhere")
        if found[name] != expected[name]:
            raise CorruptDataset(
                f"{path} has {found[name]} bytes, {expected[name]} were written; write the dataset again"
            )


def _sizes(folder: str) -> dict[str, int]:
    if storage.is_remote(folder):
        return {path: size for path, size, _ in storage.walk_files(folder)}
    return {entry.name: entry.stat().st_size for entry in os.scandir(folder)} if os.path.isdir(folder) else {}
