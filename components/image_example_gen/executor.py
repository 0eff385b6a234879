"""The executor: runs the ingest into the artifact's directory."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_beam_executor
from tfx.types import artifact_utils

from beam_jobs import ingest, storage
from beam_jobs.options import IngestOptions
from components.image_example_gen.names import DIGEST_KEY, EXAMPLES_KEY, FINGERPRINT_KEY, OPTIONS_KEY

_WORK_PREFIX = ".work-"


class Executor(base_beam_executor.BaseBeamExecutor):
    """Ingests under the Beam arguments of the pipeline."""

    def Do(  # noqa: N802 - the name TFX calls
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes the dataset and names its splits.

        Raises:
          DataError: the images failed a check; nothing was published.
        """
        options = IngestOptions.from_json(json.loads(exec_properties[OPTIONS_KEY]))
        examples = artifact_utils.get_single_instance(output_dict[EXAMPLES_KEY])
        fingerprint = exec_properties.get(FINGERPRINT_KEY) or ""
        # TFX gives every attempt a directory of its own and removes it on failure; what was examined outlives that.
        attempts = os.path.dirname(examples.uri)
        work = storage.join(attempts, f"{_WORK_PREFIX}{options.digest()[:16]}-{fingerprint[:16]}")
        options = dataclasses.replace(options, out=examples.uri)
        result = ingest.run(options, make_pipeline=self._make_beam_pipeline, report=logging.info, work=work)
        for name in storage.list_dirs(attempts):
            if name.startswith(_WORK_PREFIX):  # left by attempts on images or options that are no more
                storage.remove_tree(storage.join(attempts, name))
        examples.split_names = artifact_utils.encode_split_names(list(result.splits))
        examples.set_string_custom_property(DIGEST_KEY, result.digest)
        examples.set_string_custom_property(FINGERPRINT_KEY, fingerprint)
