"""Artifact types of our own, and the check that an adopted dataset is there, also in stores unknown to TensorFlow."""

from __future__ import annotations

from tfx.dsl.io import filesystem, filesystem_registry
from tfx.types.artifact import Artifact

from beam_jobs import storage

Artifacts = dict[str, list[Artifact]]  # the inputs or outputs of a node by their keys, as TFX gives them


class DatasetVerdict(Artifact):
    """What the gate decided: `verdict.json`."""

    TYPE_NAME = "DatasetVerdict"


class HtmlReport(Artifact):
    """One self-contained page: `report.html`."""

    TYPE_NAME = "HtmlReport"


class StoreFiles(filesystem.Filesystem):
    """Adopted datasets in `s3://`; TFX looks for them before it takes a run for cached, and does nothing else there."""

    SUPPORTED_SCHEMES = ("s3://",)

    @staticmethod
    def exists(path: filesystem.PathType) -> bool:
        """Returns whether there is an object of this name, or any below it."""
        name = path.decode() if isinstance(path, bytes) else path
        return storage.exists(name) or any(True for _ in storage.walk_files(name))


def register_store_files() -> None:
    """Makes TFX use it; more than once is no harm."""
    filesystem_registry.DEFAULT_FILESYSTEM_REGISTRY.register(StoreFiles, priority=0)
