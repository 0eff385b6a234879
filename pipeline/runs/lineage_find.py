"""From the directory of a model to the artifact that the database knows it as, also after it was moved or copied.

What identifies an artifact, and the parameters of an execution, come from its properties and from the files it wrote.
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
from beam_jobs.common.strings import some
from beam_jobs.dataset import manifest
from beam_jobs.errors import FeedlineError, SourceError

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


DATABASE_NAME = "metadata.sqlite"
_GRAPH_NAME = "saved_model.pb"
_OUTPUT_DIRS = ("artifacts", "serving")  # in a root
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Found:
    """A known model.

    Attributes:
      artifact: its number.
      note: what the reader should know of how it was recognised; empty when by its place.
    """

    artifact: int
    note: str = ""


def find_root(model: str, root: str = "") -> str:
    """Returns the directory of the pipeline whose database must know a model.

    Args:
      model: directory.
      root: of the pipeline, if it is known; else every directory above the model is looked into.

    Raises:
      SourceError: there is no database.
    """
    if root:
        if not os.path.isfile(os.path.join(root, DATABASE_NAME)):
            raise SourceError(f"--root {root} holds no {DATABASE_NAME}; give the root of a `feedline run`")
        return os.path.realpath(root)
    path = os.path.realpath(model)
    while not os.path.isfile(os.path.join(path, DATABASE_NAME)):
        path, below = os.path.dirname(path), path
        if path == below:
            missing = "" if os.path.exists(model) else f"there is no model {model}, and "
            raise SourceError(f"{missing}no {DATABASE_NAME} above {model}; name the root of its pipeline with --root")
    return path


def newest(model: str) -> str:
    """Returns the directory of a model: its own, that of its newest version, or that which holds the file."""
    if os.path.isfile(model):
        return os.path.dirname(model)
    if os.path.isfile(os.path.join(model, _GRAPH_NAME)):
        return model
    names = [name for name in storage.list_dirs(model) if name.isdigit()]
    versions = [name for name in names if os.path.isfile(os.path.join(model, name, _GRAPH_NAME))]
    return os.path.join(model, max(versions, key=int)) if versions else model


def locator(root: str) -> Locate:
    """Returns a function from recorded places to where they are now, in a root that may have been moved."""

    def locate(path: str) -> str:
        parts = path.split(os.sep)
        for index, part in enumerate(parts):
            if part in _OUTPUT_DIRS and os.path.exists(there := os.path.join(root, *parts[index:])):
                return there
        return path

    return locate


def find(store: MetadataStore, model: str, root: str) -> Found:
    """Finds the artifact that a directory is, or is a copy of.

    Args:
      store: the database of the pipeline.
      model: directory of a pushed model, of the versions of one, or of any artifact.
      root: of the pipeline.

    Raises:
      SourceError: there is no such directory, or the database does not know it.
    """
    path = os.path.realpath(newest(model))
    artifacts = sorted(store.get_artifacts(), key=lambda artifact: -artifact.id)
    if found := _by_place(artifacts, path, root):
        return found
    if not os.path.exists(path):
        raise SourceError(f"there is no model {model}{_offer(artifacts, root)}")
    if found := _by_content(artifacts, path, locator(root)):
        return found
    raise SourceError(f"{os.path.join(root, DATABASE_NAME)} does not know {model}{_offer(artifacts, root)}")


def _by_place(artifacts: list[pb.Artifact], path: str, root: str) -> Found | None:
    relative = os.path.relpath(path, root)
    for artifact in artifacts:
        for place in _places(artifact):
            if path == place or path.startswith(place + os.sep):
                return Found(artifact=artifact.id)
    if not relative.startswith(os.pardir):
        for artifact in artifacts:
            if any(place.endswith(os.sep + relative) for place in _places(artifact)):
                return Found(artifact=artifact.id, note="the root was moved since it was made")
    return None


def _by_content(artifacts: list[pb.Artifact], path: str, locate: Locate) -> Found | None:
    files = tree_files(path)
    for artifact in artifacts:
        if artifact.type not in ("PushedModel", "Model") or not files:
            continue
        for place in _places(artifact):
            original = os.path.join(locate(place), SERVING_DIR if artifact.type == "Model" else "")
            if os.path.isdir(original) and _equal(files, path, original):
                return Found(artifact=artifact.id, note=f"it is a copy of {original.rstrip(os.sep)}")
    return None


def _equal(files: dict[str, int], path: str, original: str) -> bool:
    return files == tree_files(original) and all(
        storage.digest(os.path.join(path, name)) == storage.digest(os.path.join(original, name)) for name in files
    )


def _places(artifact: pb.Artifact) -> Iterator[str]:
    """Yields where an artifact was put: a pushed model in two places."""
    for place in (artifact.custom_properties[DESTINATION].string_value, artifact.uri):
        if place:
            yield place.rstrip(os.sep)


def _offer(artifacts: list[pb.Artifact], root: str) -> str:
    pushed = [artifact.custom_properties[DESTINATION].string_value for artifact in artifacts]
    names = list(dict.fromkeys(os.path.basename(place) for place in pushed if place))
    if not names:
        return "; no model was pushed there yet"
    return f"; it knows {some(names, _SHOWN)} in {os.path.join(root, 'serving')}"
