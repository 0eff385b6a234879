"""What identifies an artifact, and the parameters of an execution: from its properties, and from the files it wrote."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs import storage
from beam_jobs.dataset import manifest
from beam_jobs.errors import FeedlineError

Locate = Callable[[str], str]
Facts = Iterator[tuple[str, str]]

DESTINATION = "pushed_destination"
SERVING_DIR = "Format-Serving"  # in a `Model`, as TFX lays it out
# As the components write them; to import those would load TFX.
_SCHEMA_NAME, _VERDICT_NAME = "schema.pbtxt", "verdict.json"
_HOMES = ("home", "Users", "root")  # directories whose next part is somebody's name, or who are somebody's
_FILES = "files"  # fact of an artifact whose files are not what they were


@dataclass(frozen=True)
class _Known:
    """What the readers of facts look at: where the artifact is now, its properties, and the parameters of its maker."""

    path: str
    properties: Mapping[str, Any]
    parameters: Mapping[str, Any]


def as_recorded(path: str) -> str:
    """Returns the place that the database names: nothing was moved."""
    return path


def public(facts: Mapping[str, str]) -> dict[str, str]:
    """Returns the facts that are no path of this machine."""
    return {name: value for name, value in facts.items() if name != DESTINATION}


def facts_of(artifact: pb.Artifact, maker: pb.Execution | None, locate: Locate) -> dict[str, str]:
    """Returns what identifies an artifact, as text; less of one whose files were removed or damaged.

    Args:
      artifact: of any type.
      maker: the execution that made it.
      locate: recorded place -> where it is now.
    """
    all_properties = [*artifact.properties.items(), *artifact.custom_properties.items()]
    properties = {name: _value(value) for name, value in all_properties}
    known = _Known(locate(artifact.uri), properties, parameters_of(maker) if maker else {})
    reader, copied = _READERS.get(artifact.type, (None, ()))
    facts = {name: str(properties[name]) for name in copied if properties.get(name) not in (None, "")}
    try:
        facts.update(reader(known) if reader else ())  # as far as it comes
    except (OSError, ValueError, FeedlineError):
        facts[_FILES] = "unreadable" if os.path.exists(known.path) else "removed"
    return facts


def parameters_of(execution: pb.Execution) -> dict[str, Any]:
    """Returns parameter -> value, JSON decoded; those that say nothing are left out."""
    values = {name: _decoded(_value(value)) for name, value in sorted(execution.custom_properties.items())}
    return {name: value for name, value in values.items() if value not in (None, "", [], {}) and name[:2] != "__"}


def code_of(parameters: Mapping[str, Any]) -> str:
    """Returns the version of the code that an execution was given, such as `0.1.0+3f9c0d1e`; empty without one."""
    custom = parameters.get("custom_config")
    version = parameters.get("code") or (custom.get("code") if isinstance(custom, dict) else "")
    return str(version or str(parameters.get("producer", "")).partition(",")[0])


def source_name(parameters: Mapping[str, Any]) -> str:
    """Returns what the source of a dataset is called: the last part of a local one, all of a remote one.

    Of a pattern such as `/data/photos/{SPAN}/v{VERSION}` it is `photos/{SPAN}/v{VERSION}`.
    """
    options = parameters.get("options")
    source = str(parameters.get("dataset") or (options.get("source", "") if isinstance(options, dict) else ""))
    if storage.is_remote(source):
        return source
    fixed, brace, pattern = source.rstrip("/").partition("{")
    parent, _, name = fixed.rpartition("/")
    above = os.path.basename(parent)
    if os.path.basename(os.path.dirname(parent)) in _HOMES or above in _HOMES:  # the name of a person
        above = "…"
    return (f"{above}/{name}" if brace else name) + brace + pattern


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


def _examples(known: _Known) -> Facts:
    if source := source_name(known.parameters):
        yield "source", source
    dataset = manifest.load(known.path)
    if (
        known.properties.get("dataset_digest", dataset.digest) != dataset.digest
    ):  # an adopted one that was replaced since
        return
    yield "splits", " ".join(f"{name}={split.records:,}" for name, split in dataset.splits.items())


def _schema(known: _Known) -> Facts:
    text = known.parameters.get("schema_text")
    yield "origin", "reviewed" if text else "inferred"
    data = text.encode() if isinstance(text, str) else storage.read_bytes(os.path.join(known.path, _SCHEMA_NAME))
    yield "sha256", hashlib.sha256(data).hexdigest()


def _verdict(known: _Known) -> Facts:
    verdict = json.loads(storage.read_bytes(os.path.join(known.path, _VERDICT_NAME)))
    checks = [finding["check"] for finding in verdict.get("findings", [])]
    yield "verdict", f"{len(checks)} findings ({', '.join(sorted(set(checks)))})" if checks else "passed"
    yield "anomalies", " ".join(f"{split}={count}" for split, count in verdict.get("anomalies", {}).items())


def _blessing(known: _Known) -> Facts:
    yield "blessed", "yes" if known.properties.get("blessed") else "no"


def _model(known: _Known) -> Facts:
    yield "sha256", tree_digest(os.path.join(known.path, SERVING_DIR))


def _pushed(known: _Known) -> Facts:
    yield "pushed", "yes" if known.properties.get("pushed") else "no"
    if known.properties.get("pushed"):
        yield "sha256", tree_digest(known.path)


def _tree(known: _Known) -> Facts:
    yield "sha256", tree_digest(known.path)


# Type -> what its files say, and the properties that go with it.
_READERS: Mapping[str, tuple[Callable[[_Known], Facts], tuple[str, ...]]] = {
    "Examples": (_examples, ("dataset_digest", "span", "version", "input_fingerprint")),
    "Schema": (_schema, ()),
    "DatasetVerdict": (_verdict, ("dataset_digest",)),
    "TransformGraph": (_tree, ()),
    "Model": (_model, ()),
    "ModelEvaluation": (_tree, ()),
    "ModelBlessing": (_blessing, ()),
    "PushedModel": (_pushed, ("pushed_version", DESTINATION)),
}


def _value(value: pb.Value) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind in ("string_value", "int_value", "double_value", "bool_value") else None


def _decoded(value: Any) -> Any:
    if not isinstance(value, str) or (value[:1] not in ("{", "[", '"') and value != "null"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
