"""Artifact types of Feedline, and a TFX filesystem for datasets in stores that TensorFlow does not support."""

from __future__ import annotations

from tfx.dsl.io import filesystem, filesystem_registry
from tfx.types.artifact import Artifact

from beam_jobs import storage

Artifacts = dict[str, list[Artifact]]  # key -> artifacts, the inputs or outputs of a component as TFX passes them


class DatasetVerdict(Artifact):
    """`verdict.json`: the results of all checks of the gate; not published if the gate stops the pipeline."""

    TYPE_NAME = "DatasetVerdict"


class HtmlReport(Artifact):
    """A self-contained HTML page: `report.html`."""

    TYPE_NAME = "HtmlReport"


class StoreFiles(filesystem.Filesystem):
    """Filesystem of adopted datasets in `s3://`. TFX only checks that a cached output exists before using it."""

    SUPPORTED_SCHEMES = ("s3://",)

    @staticmethod
    def exists(path: filesystem.PathType) -> bool:
        """Returns whether an object with this name exists, or an object in a folder with this name."""
        name = path.decode() if isinstance(path, bytes) else path
        return storage.exists(name) or any(True for _ in storage.list_objects(name))


def register_store_files() -> None:
    """Registers `StoreFiles` in TFX. Idempotent."""
    filesystem_registry.DEFAULT_FILESYSTEM_REGISTRY.register(StoreFiles, priority=0)
