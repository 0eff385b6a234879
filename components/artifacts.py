"""Artifact types of Feedline, and the existence check of datasets in stores that TensorFlow does not support."""

from __future__ import annotations

from tfx.dsl.io import filesystem, filesystem_registry
from tfx.types.artifact import Artifact

from beam_jobs import storage

Artifacts = dict[str, list[Artifact]]  # the inputs or outputs of a node by their keys, as TFX gives them


class DatasetVerdict(Artifact):
    """The verdict of the gate: `verdict.json`."""

    TYPE_NAME = "DatasetVerdict"


class HtmlReport(Artifact):
    """A self-contained HTML page: `report.html`."""

    TYPE_NAME = "HtmlReport"


class StoreFiles(filesystem.Filesystem):
    """Adopted datasets in `s3://`. TFX only checks that they exist, before it uses the cached output of a run."""

    SUPPORTED_SCHEMES = ("s3://",)

    @staticmethod
    def exists(path: filesystem.PathType) -> bool:
        """Returns whether an object of this name exists, or one below it."""
        name = path.decode() if isinstance(path, bytes) else path
        return storage.exists(name) or any(True for _ in storage.list_objects(name))


def register_store_files() -> None:
    """Registers `StoreFiles` in TFX. Idempotent."""
    filesystem_registry.DEFAULT_FILESYSTEM_REGISTRY.register(StoreFiles, priority=0)
