"""Parquet files are data: a column of a Python type, which Arrow would unpickle, is refused. Importing this is enough.

Before 14.0.1 Arrow runs what such a column brings along as soon as the file is opened (CVE-2023-47248).
"""

from __future__ import annotations

import contextlib

import pyarrow as pa

from beam_jobs import stack

_NAME = "arrow.py_extension_type"


class _Refused(pa.ExtensionType):
    """Stands where Arrow has the type that unpickles."""

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> _Refused:
        detail = "a column has a pickled Python type, which would run code; write it as a plain column"
        raise pa.ArrowInvalid(detail)


# Before the registration below, whose place it would take: Beam imports the same package.
stack.protect_arrow()
with contextlib.suppress(pa.ArrowKeyError):  # newer versions of Arrow have no such type
    pa.unregister_extension_type(_NAME)
pa.register_extension_type(_Refused(pa.null(), _NAME))
