"""The executor: writes the schema out as an artifact."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils

from beam_jobs import storage
from components.schema.files import SCHEMA_NAME

TEXT_KEY = "schema_text"
SCHEMA_KEY = "schema"


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
