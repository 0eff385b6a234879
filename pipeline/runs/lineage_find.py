"""From the directory of a model to the artifact that the database knows it as, also after it was moved or copied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs import storage
from beam_jobs.errors import SourceError
from pipeline.runs.lineage_facts import DESTINATION, SERVING_DIR, Locate, tree_files

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
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"; it knows {', '.join(names[:_SHOWN])}{more} in {os.path.join(root, 'serving')}"
