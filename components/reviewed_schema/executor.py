"""The executor: writes the schema out as an artifact."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils

from beam_jobs import storage
from beam_jobs.errors import OptionError

TEXT_KEY = "schema_text"
SCHEMA_KEY = "schema"
SCHEMA_NAME = "schema.pbtxt"


class Executor(base_executor.BaseExecutor):
    """Writes `schema.pbtxt`."""

    def Do(  # noqa: N802 - the name TFX calls
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes the artifact."""
        directory = artifact_utils.get_single_uri(output_dict[SCHEMA_KEY])
        storage.write_bytes(storage.join(directory, SCHEMA_NAME), exec_properties[TEXT_KEY].encode())


def read_schema(path: str) -> str:
    """Returns the text of a schema file.

    Raises:
      OptionError: it cannot be read, or is not a schema.
    """
    try:
        text = storage.read_bytes(path).decode()
        text_format.Parse(text, schema_pb2.Schema())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise OptionError(f"schema {path} cannot be used: {' '.join(str(error).split())}") from error
    return text
