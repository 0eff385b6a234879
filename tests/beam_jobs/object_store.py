"""A Beam filesystem that behaves as object stores do, on a local disk: `objects:///tmp/x/name` lies at `/tmp/x/name`.

Like those of Beam for S3 and Google Storage it has objects and no directories, its streams have no file descriptor, an
object appears when its stream is closed, and deleting recursively needs a path that ends with a slash.
"""

from __future__ import annotations

import io
import os
import shutil

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem
from apache_beam.io.filesystemio import Downloader, DownloaderStream, Uploader, UploaderStream

SCHEME = "objects"


def _local(path: str) -> str:
    return path.removeprefix(f"{SCHEME}://")


class _Upload(Uploader):
    def __init__(self, path: str) -> None:
        self._path = path
        self._parts: list[bytes] = []

    def put(self, data) -> None:
        self._parts.append(bytes(data))

    def finish(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(self._path, "wb") as stream:
            stream.write(b"".join(self._parts))


class _Download(Downloader):
    def __init__(self, path: str) -> None:
        with open(path, "rb") as stream:
            self._data = stream.read()

    @property
    def size(self) -> int:
        return len(self._data)

    def get_range(self, start: int, end: int) -> bytes:
        return self._data[start:end]


class ObjectStore(FileSystem):
    @classmethod
    def scheme(cls) -> str:
        return SCHEME

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path):
        """Makes nothing: there are no directories."""

    def has_dirs(self):
        return False

    def _list(self, dir_or_prefix):
        for directory, _, names in os.walk(os.path.dirname(_local(dir_or_prefix))):
            for name in names:
                path = os.path.join(directory, name)
                yield FileMetadata(f"{SCHEME}://{path}", os.path.getsize(path))

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED
        return io.BufferedWriter(UploaderStream(_Upload(_local(path))))

    def open(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED
        return io.BufferedReader(DownloaderStream(_Download(_local(path))))

    def copy(self, source_file_names, destination_file_names):
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            os.makedirs(os.path.dirname(_local(destination)), exist_ok=True)
            shutil.copyfile(_local(source), _local(destination))

    def rename(self, source_file_names, destination_file_names):
        self.copy(source_file_names, destination_file_names)
        self.delete(source_file_names)

    def exists(self, path):
        return os.path.isfile(_local(path))

    def size(self, path):
        return os.path.getsize(_local(path))

    def last_updated(self, path):
        return os.path.getmtime(_local(path))

    def checksum(self, path):
        return str(self.size(path))

    def metadata(self, path):
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def delete(self, paths):
        for path in paths:
            if path.endswith("/"):
                shutil.rmtree(_local(path), ignore_errors=True)
            elif self.exists(path):
                os.remove(_local(path))
            else:
                raise BeamIOError("Delete operation failed", {path: "no such object"})
