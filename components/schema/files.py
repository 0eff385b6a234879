"""Schema files: text of a `tensorflow.metadata.v0.Schema`, for people to read and edit."""

from __future__ import annotations

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from beam_jobs import storage
from beam_jobs.errors import OptionError

_REMEDY = "`feedline schema init DATASET --out FILE` writes one"
_MAX_BYTES = 16 << 20  # a category takes 30
SCHEMA_NAME = "schema.pbtxt"  # inside a `Schema` artifact, where the components of TFX look for it


def read_text(path: str) -> str:
    """Returns the text of a schema file, which is known to be a schema.

    Raises:
      OptionError: it cannot be read, or is not a schema.
    """
    return _read(path)[0]


def read(path: str) -> schema_pb2.Schema:
    """Returns the schema of a file.

    Raises:
      OptionError: it cannot be read, or is not a schema.
    """
    return _read(path)[1]


def write(schema: schema_pb2.Schema, path: str) -> None:
    """Writes a schema file, atomically.

    Raises:
      OSError: it cannot be written.
    """
    storage.write_bytes(path, text_format.MessageToString(schema, as_utf8=True).encode())


def _read(path: str) -> tuple[str, schema_pb2.Schema]:
    try:
        text = storage.read_at_most(path, _MAX_BYTES).decode()
        schema = text_format.Parse(text, schema_pb2.Schema())
    except RecursionError:
        raise OptionError(f"schema {path} cannot be used: it is nested too deep; {_REMEDY}") from None
    except (OSError, ValueError, text_format.ParseError) as error:
        what = getattr(error, "strerror", None) or " ".join(str(error).split())  # without the path once more
        raise OptionError(f"schema {path} cannot be used: {what}; {_REMEDY}") from error
    if not schema.feature:
        raise OptionError(f"schema {path} names no feature; {_REMEDY}")
    return text, schema
