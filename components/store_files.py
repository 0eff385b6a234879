"""What TFX asks of a dataset that lies in a store TensorFlow knows nothing of: whether it is still there."""

from __future__ import annotations

from tfx.dsl.io import filesystem, filesystem_registry

from beam_jobs import storage


class StoreFiles(filesystem.Filesystem):
    """Adopted datasets in `s3://`; TFX looks for them before it takes a run for cached, and does nothing else there."""

    SUPPORTED_SCHEMES = ("s3://",)

    @staticmethod
    def exists(path: filesystem.PathType) -> bool:
        """Returns whether there is an object of this name, or any below it."""
        name = path.decode() if isinstance(path, bytes) else path
        return storage.exists(name) or any(True for _ in storage.walk_files(name))


def register() -> None:
    """Makes TFX use it; more than once is no harm."""
    filesystem_registry.DEFAULT_FILESYSTEM_REGISTRY.register(StoreFiles, priority=0)
