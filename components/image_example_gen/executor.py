"""The executor: runs the ingest into the artifact's directory, or adopts a dataset where it lies."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.components.util import examples_utils
from tfx.dsl.components.base import base_beam_executor
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils

from beam_jobs import ingest, storage
from beam_jobs.common.strings import WARNING
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import SourceChanged
from beam_jobs.sources.fingerprint import dataset_fingerprint
from components.image_example_gen.names import DATASET_KEY, DIGEST_KEY, EXAMPLES_KEY, FINGERPRINT_KEY
from components.image_example_gen.request import check_dataset, describe, options_of, resolved

_WORK_PREFIX = ".work-"


class Executor(base_beam_executor.BaseBeamExecutor):
    """Ingests under the Beam arguments of the pipeline, or adopts."""

    def Do(  # noqa: N802 - the name TFX calls
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes the dataset, or finds it, and names its splits.

        Raises:
          DataError: the images failed a check; nothing was published. Or the dataset changed while it was adopted.
        """
        fingerprint = exec_properties.get(FINGERPRINT_KEY) or ""
        # Not every orchestrator of TFX runs drivers.
        properties = exec_properties if fingerprint else resolved(exec_properties)
        examples = artifact_utils.get_single_instance(output_dict[EXAMPLES_KEY])
        if properties.get(DATASET_KEY):
            dataset = _adopt(properties[DATASET_KEY], fingerprint)
            fingerprint = dataset_fingerprint(dataset)
            examples.uri = properties[DATASET_KEY]
        else:
            dataset = self._ingest(examples.uri, properties, fingerprint)
        describe(examples, properties)
        examples.split_names = artifact_utils.encode_split_names(list(dataset.splits))
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
        examples.set_string_custom_property(DIGEST_KEY, dataset.digest)
        examples.set_string_custom_property(FINGERPRINT_KEY, fingerprint)

    def _ingest(self, out: str, properties: Mapping[str, Any], fingerprint: str) -> Manifest:
        options = dataclasses.replace(options_of(properties), out=out)
        # TFX gives every attempt a directory of its own and removes it on failure; what was examined outlives that.
        attempts = os.path.dirname(out)
        work = storage.join(attempts, f"{_WORK_PREFIX}{options.digest()[:16]}-{fingerprint[:16]}")
        result = ingest.run(options, make_pipeline=self._make_beam_pipeline, report=_tell, work=work)
        for name in storage.list_dirs(attempts):
            if name.startswith(_WORK_PREFIX):  # left by attempts on images or options that are no more
                storage.remove_tree(storage.join(attempts, name))
        return result


def _tell(line: str) -> None:
    logging.log(logging.WARNING if line.startswith(WARNING) else logging.INFO, line)


def _adopt(directory: str, fingerprint: str) -> Manifest:
    dataset = check_dataset(directory)
    if fingerprint and dataset_fingerprint(dataset) != fingerprint:
        raise SourceChanged(f"another dataset was published in {directory} just now; run the pipeline again")
    return dataset
