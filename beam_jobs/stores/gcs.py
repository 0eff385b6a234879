"""Google Storage, on one client a thread: Google promises nothing of clients that threads share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

from apache_beam.io.gcp.gcsio import GcsIO, parse_gcs_path
from google.api_core.exceptions import RequestRangeNotSatisfiable

from beam_jobs.stores.store import Listed, Store

_READ_BYTES = 1 << 20  # Beam's 16 MiB would be read for every jump in an object

_thread = threading.local()


def store(system: Any, options: Any) -> GcsStore:
    """Returns the store of this thread; a new one when the options of the pipeline are others."""
    held: tuple[Any, GcsStore] | None = getattr(_thread, "held", None)
    if held is None or held[0] is not options:
        held = _thread.held = (options, GcsStore(system, GcsIO(pipeline_options=options)))
    return held[1]


class GcsStore(Store):
    """Google Storage by Beam's client for it; what is rare goes through Beam's filesystem."""

    def __init__(self, system: Any, gcsio: GcsIO) -> None:
        super().__init__(system)
        self._gcsio = gcsio

    def open(self, path: str) -> BinaryIO:
        """See `Store`."""
        return self._gcsio.open(path, "r", read_buffer_size=_READ_BYTES)

    def create(self, path: str) -> BinaryIO:
        """See `Store`."""
        return self._gcsio.open(path, "w")

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See `Store`. It is one request."""
        bucket, name = parse_gcs_path(path)
        blob = self._gcsio.client.bucket(bucket).blob(name)
        try:
            return blob.download_as_bytes(start=offset, end=offset + length - 1, raw_download=True)
        except RequestRangeNotSatisfiable:  # it ends before the range begins
            return b""

    def list(self, prefix: str) -> Iterator[Listed]:
        """See `Store`. One page is in memory at a time; Beam's listing remembers every name."""
        bucket, start = parse_gcs_path(prefix, object_optional=True)
        fields = "items(name,size,updated),nextPageToken"
        for blob in self._gcsio.client.list_blobs(bucket, prefix=start, fields=fields):
            yield Listed(f"gs://{bucket}/{blob.name}", blob.size, int(blob.updated.timestamp() * 1e9))
