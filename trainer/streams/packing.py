"""How TFRecord files are compressed, and whether a compressed one is whole."""

from __future__ import annotations

from beam_jobs import storage
from beam_jobs.dataset import tfrecord
from beam_jobs.errors import SourceError
from beam_jobs.storage import decompress

NONE, GZIP, ZLIB = "none", "gzip", "zlib"
COMPRESSIONS = ("auto", NONE, GZIP, ZLIB)
_BLOCK_BYTES = 1 << 20
_sound: set[tuple[str, tuple[int, int]]] = set()  # path and stamp of what was unpacked to its end


def packing_of(path: str, compression: str) -> str:
    """Returns how a file is compressed, from its first bytes.

    Args:
      path: of the file.
      compression: as it was given, one of `COMPRESSIONS`.

    Raises:
      SourceError: it cannot be read, or is compressed in another way.
    """
    try:
        head = storage.read_range(path, 0, tfrecord.HEADER)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    packing = decompress.packing_of(head)
    # The length of a record comes first, 8 bytes; zlib, which has no magic bytes, does not hold four zeros there.
    if not packing:
        packing = ZLIB if decompress.is_zlib(head) and head[4:8] != bytes(4) else NONE
    if packing not in COMPRESSIONS:
        raise SourceError(f"{path} is compressed with {packing}; TFRecord files are read plain, of gzip or of zlib")
    if compression not in ("auto", packing) and head:
        raise SourceError(f"{path} is not what compression={compression!r} says: it begins like {packing}; use auto")
    return packing


def fault_of(path: str, packing: str) -> str:
    """Unpacks a file to its end, once while it stays the same; returns what is wrong with it, or nothing.

    TensorFlow takes a file that is torn between two records for a whole one, and names none in its errors.
    """
    try:
        stamp = path, decompress.stamp(path)
        if stamp not in _sound and packing != NONE:
            _unpack(path, packing)
            _sound.add(stamp)
    except (*decompress.DAMAGED, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"{path} cannot be unpacked: {reason}; copy it again"
    return ""


def _unpack(path: str, packing: str) -> None:
    with storage.open_read(path) as stream:
        plain = decompress.unpacked(stream, packing)
        while plain.read(_BLOCK_BYTES):
            pass
