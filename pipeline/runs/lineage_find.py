"""Finds the artifact of a model directory in ML Metadata, also after the directory was moved or copied.

Also reads the properties that identify an artifact, from ML Metadata and its files, and the parameters of an execution.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs import storage
from beam_jobs.common.strings import plural, some
from beam_jobs.dataset import manifest
from beam_jobs.errors import FeedlineError, SourceError

Locate = Callable[[str], str]
Properties = Iterator[tuple[str, str]]

DESTINATION = "pushed_destination"
SERVING_DIR = "Format-Serving"  # subdirectory of a `Model` artifact of TFX
# Copies of names in components, whose import would load TFX.
_SCHEMA_NAME, _VERDICT_NAME = "schema.pbtxt", "verdict.json"
_HOMES = ("home", "Users", "root")  # parents of home directories, and the home of root
_FILES = "files"  # name of the property for removed or unreadable files


@dataclass(frozen=True)
class _ArtifactRecord:
    """The current path of an artifact, its properties, and the parameters of the execution that made it."""

    path: str
    properties: Mapping[str, Any]
    parameters: Mapping[str, Any]


def recorded_path(path: str) -> str:
    """Returns the path unchanged: a `Locate` for files that were not moved."""
    return path


def shareable_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties without paths of this machine."""
    return {name: value for name, value in properties.items() if name != DESTINATION}


def identifying_properties(artifact: pb.Artifact, producer: pb.Execution | None, locate: Locate) -> dict[str, str]:
    """Returns name -> text of the properties that identify an artifact; fewer when its files were removed or damaged.

    Args:
      artifact: artifact of any type.
      producer: execution that made it, if any.
      locate: recorded path -> current path.
    """
    all_properties = [*artifact.properties.items(), *artifact.custom_properties.items()]
    properties = {name: _property_value(value) for name, value in all_properties}
    record = _ArtifactRecord(locate(artifact.uri), properties, decode_parameters(producer) if producer else {})
    reader, property_names = _READERS.get(artifact.type, (None, ()))
    identifying = {name: str(properties[name]) for name in property_names if properties.get(name) not in (None, "")}
    try:
        identifying.update(reader(record) if reader else ())  # an error keeps the properties before it
    except (OSError, ValueError, FeedlineError):
        identifying[_FILES] = "unreadable" if os.path.exists(record.path) else "removed"
    return identifying


def decode_parameters(execution: pb.Execution) -> dict[str, Any]:
    """Returns parameter -> value, JSON decoded, without empty values and internal properties of TFX (`__NAME`)."""
    values = {name: _decode_json(_property_value(value)) for name, value in sorted(execution.custom_properties.items())}
    return {name: value for name, value in values.items() if value not in (None, "", [], {}) and name[:2] != "__"}


def code_parameter(parameters: Mapping[str, Any]) -> str:
    """Returns the version of the code in the parameters of an execution, such as `0.1.0+3f9c0d1e`; empty for none."""
    custom_config = parameters.get("custom_config")
    version = parameters.get("code") or (custom_config.get("code") if isinstance(custom_config, dict) else "")
    return str(version or str(parameters.get("producer", "")).partition(",")[0])


def source_name(parameters: Mapping[str, Any]) -> str:
    """Returns a name for the source of a dataset: the last part of a local path, or a complete remote path.

    The name of a pattern such as `/data/photos/{SPAN}/v{VERSION}` is `photos/{SPAN}/v{VERSION}`.
    """
    options = parameters.get("options")
    source = str(parameters.get("dataset") or (options.get("source", "") if isinstance(options, dict) else ""))
    if storage.is_remote(source):
        return source
    prefix, brace, pattern = source.rstrip("/").partition("{")
    parent, _, name = prefix.rpartition("/")
    folder = os.path.basename(parent)
    if os.path.basename(os.path.dirname(parent)) in _HOMES or folder in _HOMES:  # the name of a user is private
        folder = "…"
    return (f"{folder}/{name}" if brace else name) + brace + pattern


def tree_digest(directory: str) -> str:
    """Returns the sha256, hex, over names and content of all files of a directory.

    Raises:
      OSError: a file cannot be read.
    """
    hasher = hashlib.sha256()
    for path in tree_files(directory):
        hasher.update(f"{path} {storage.digest(os.path.join(directory, path))[1]}\n".encode())
    return hasher.hexdigest()


def tree_files(directory: str) -> dict[str, int]:
    """Returns relative path -> size in bytes of every file below a directory, in order of the paths.

    Raises:
      OSError: it cannot be listed.
    """
    if not os.path.isdir(directory):
        raise NotADirectoryError(f"{directory} is not a directory")
    paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names)
    return {os.path.relpath(path, directory): os.path.getsize(path) for path in paths}


def _examples_properties(record: _ArtifactRecord) -> Properties:
    if source := source_name(record.parameters):
        yield "source", source
    dataset = manifest.load(record.path)
    if record.properties.get("dataset_digest", dataset.digest) != dataset.digest:  # an adopted dataset was changed
        return
    yield "splits", " ".join(f"{name}={split.records:,}" for name, split in dataset.splits.items())


def _schema_properties(record: _ArtifactRecord) -> Properties:
    text = record.parameters.get("schema_text")
    yield "origin", "reviewed" if text else "inferred"
    data = text.encode() if isinstance(text, str) else storage.read_bytes(os.path.join(record.path, _SCHEMA_NAME))
    yield "sha256", hashlib.sha256(data).hexdigest()


def _verdict_properties(record: _ArtifactRecord) -> Properties:
    verdict = storage.read_json(os.path.join(record.path, _VERDICT_NAME))
    checks = [finding["check"] for finding in verdict.get("findings", [])]
    remarks = f" with {plural(count, 'remark')}" if (count := len(verdict.get("remarks", []))) else ""
    yield "verdict", f"{len(checks)} findings ({', '.join(sorted(set(checks)))})" if checks else f"passed{remarks}"
    yield "anomalies", " ".join(f"{split}={count}" for split, count in verdict.get("anomalies", {}).items())


def _blessing_properties(record: _ArtifactRecord) -> Properties:
    yield "blessed", "yes" if record.properties.get("blessed") else "no"


def _model_properties(record: _ArtifactRecord) -> Properties:
    yield "sha256", tree_digest(os.path.join(record.path, SERVING_DIR))


def _pushed_model_properties(record: _ArtifactRecord) -> Properties:
    yield "pushed", "yes" if record.properties.get("pushed") else "no"
    if record.properties.get("pushed"):
        yield "sha256", tree_digest(record.path)


def _directory_properties(record: _ArtifactRecord) -> Properties:
    yield "sha256", tree_digest(record.path)


# Type -> the reader of its files, and the names of the properties to add.
_READERS: Mapping[str, tuple[Callable[[_ArtifactRecord], Properties], tuple[str, ...]]] = {
    "Examples": (_examples_properties, ("dataset_digest", "span", "version", "input_fingerprint")),
    "Schema": (_schema_properties, ()),
    "DatasetVerdict": (_verdict_properties, ("dataset_digest",)),
    "TransformGraph": (_directory_properties, ()),
    "Model": (_model_properties, ()),
    "ModelEvaluation": (_directory_properties, ()),
    "ModelBlessing": (_blessing_properties, ()),
    "PushedModel": (_pushed_model_properties, ("pushed_version", DESTINATION)),
}


def _property_value(value: pb.Value) -> Any:
    field = value.WhichOneof("value")
    return getattr(value, field) if field in ("string_value", "int_value", "double_value", "bool_value") else None


def _decode_json(value: Any) -> Any:
    if not isinstance(value, str) or (value[:1] not in ("{", "[", '"') and value != "null"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


DATABASE_NAME = "metadata.sqlite"
_GRAPH_NAME = "saved_model.pb"
_OUTPUT_DIRS = ("artifacts", "serving")  # subdirectories of a root
_MAX_NAMES = 3  # in a message


@dataclass(frozen=True, kw_only=True)
class Match:
    """The artifact of a directory.

    Attributes:
      artifact: id of the artifact.
      note: remark when the directory was moved or is a copy; else empty.
    """

    artifact: int
    note: str = ""


def find_root(model: str, root: str = "") -> str:
    """Returns the root of the pipeline of a model.

    Args:
      model: directory of the model.
      root: the root, which is only checked; empty searches the directories above the model.

    Raises:
      SourceError: the root, or every directory above the model, is without a database.
    """
    if root:
        if not os.path.isfile(os.path.join(root, DATABASE_NAME)):
            raise SourceError(f"--root {root} contains no {DATABASE_NAME}; give the root of a `feedline run`")
        return os.path.realpath(root)
    path = os.path.realpath(model)
    while not os.path.isfile(os.path.join(path, DATABASE_NAME)):
        path, child = os.path.dirname(path), path
        if path == child:
            missing = "" if os.path.exists(model) else f"there is no model {model}, and "
            raise SourceError(f"{missing}no {DATABASE_NAME} above {model}; name the root of its pipeline with --root")
    return path


def model_dir(model: str) -> str:
    """Returns the directory of a model: the path itself, its newest version, or the directory of a file."""
    if os.path.isfile(model):
        return os.path.dirname(model)
    if os.path.isfile(os.path.join(model, _GRAPH_NAME)):
        return model
    names = [name for name in storage.list_dirs(model) if name.isdigit()]
    versions = [name for name in names if os.path.isfile(os.path.join(model, name, _GRAPH_NAME))]
    return os.path.join(model, max(versions, key=int)) if versions else model


def locator(root: str) -> Locate:
    """Returns a function: recorded path -> current path in `root`, which may have been moved."""

    def locate(path: str) -> str:
        parts = path.split(os.sep)
        for index, part in enumerate(parts):
            if part in _OUTPUT_DIRS and os.path.exists(current := os.path.join(root, *parts[index:])):
                return current
        return path

    return locate


def find(store: MetadataStore, model: str, root: str) -> Match:
    """Finds the artifact of a directory, or of the directory that it is a copy of.

    Args:
      store: database of the pipeline.
      model: directory of a pushed model, of all its versions, or of any artifact.
      root: root of the pipeline.

    Raises:
      SourceError: the directory does not exist, or the database has no artifact with this directory or content.
    """
    path = os.path.realpath(model_dir(model))
    artifacts = sorted(store.get_artifacts(), key=lambda artifact: -artifact.id)
    if match := _match_path(artifacts, path, root):
        return match
    if not os.path.exists(path):
        raise SourceError(f"there is no model {model}{_suggest_models(artifacts, root)}")
    if match := _match_content(artifacts, path, locator(root)):
        return match
    raise SourceError(f"{os.path.join(root, DATABASE_NAME)} has no artifact {model}{_suggest_models(artifacts, root)}")


def _match_path(artifacts: list[pb.Artifact], path: str, root: str) -> Match | None:
    """Returns the artifact whose directory is or contains the path, also after the root was moved; else None."""
    relative = os.path.relpath(path, root)
    for artifact in artifacts:
        for location in _locations(artifact):
            if path == location or path.startswith(location + os.sep):
                return Match(artifact=artifact.id)
    if not relative.startswith(os.pardir):
        for artifact in artifacts:
            if any(location.endswith(os.sep + relative) for location in _locations(artifact)):
                return Match(artifact=artifact.id, note="the root was moved since it was made")
    return None


def _match_content(artifacts: list[pb.Artifact], path: str, locate: Locate) -> Match | None:
    """Returns the newest model whose files are equal to those of the path, else None."""
    files = tree_files(path)
    for artifact in artifacts:
        if artifact.type not in ("PushedModel", "Model") or not files:
            continue
        for location in _locations(artifact):
            original_dir = os.path.join(locate(location), SERVING_DIR if artifact.type == "Model" else "")
            if os.path.isdir(original_dir) and _has_same_files(files, path, original_dir):
                return Match(artifact=artifact.id, note=f"it is a copy of {original_dir.rstrip(os.sep)}")
    return None


def _has_same_files(files: dict[str, int], path: str, original_dir: str) -> bool:
    return files == tree_files(original_dir) and all(
        storage.digest(os.path.join(path, name)) == storage.digest(os.path.join(original_dir, name)) for name in files
    )


def _locations(artifact: pb.Artifact) -> Iterator[str]:
    """Yields the directories of an artifact; a pushed model has two."""
    for location in (artifact.custom_properties[DESTINATION].string_value, artifact.uri):
        if location:
            yield location.rstrip(os.sep)


def _suggest_models(artifacts: list[pb.Artifact], root: str) -> str:
    destinations = [artifact.custom_properties[DESTINATION].string_value for artifact in artifacts]
    names = list(dict.fromkeys(os.path.basename(location) for location in destinations if location))
    if not names:
        return f"; no model was pushed to {os.path.join(root, 'serving')} yet"
    return f"; pushed models are {some(names, _MAX_NAMES)} in {os.path.join(root, 'serving')}"
