"""The driver: finds the span and looks at its content before the cache is asked, so that the cache key is both."""

from __future__ import annotations

import copy

from tfx import types
from tfx.dsl.components.base import base_driver
from tfx.orchestration import data_types_utils, metadata
from tfx.orchestration.portable import base_driver as ir_base_driver
from tfx.orchestration.portable import data_types
from tfx.proto.orchestration import driver_output_pb2

from beam_jobs.sources.fingerprint import dataset_fingerprint, source_fingerprint
from components.image_example_gen.names import DATASET_KEY, EXAMPLES_KEY, FINGERPRINT_KEY, PRODUCER_KEY
from components.image_example_gen.request import check_dataset, describe, options_of, resolved


# TFX checks a DRIVER_CLASS against the older base and runs it through the newer one, as its own ExampleGen does.
class Driver(base_driver.BaseDriver, ir_base_driver.BaseDriver):
    """Adds the source that is meant and its fingerprint to the execution properties, and the span to the artifact."""

    def __init__(self, metadata_handle: metadata.Metadata) -> None:
        """Builds the driver; TFX calls it."""
        base_driver.BaseDriver.__init__(self, metadata_handle)
        ir_base_driver.BaseDriver.__init__(self, metadata_handle)

    def run(self, execution_info: data_types.ExecutionInfo) -> driver_output_pb2.DriverOutput:
        """Returns the execution properties and the artifact to be.

        Raises:
          UsageError: the source cannot be ingested, or there is no such span or dataset.
          CorruptDataset: a file of the dataset to adopt is missing or was cut.
        """
        properties = resolved(execution_info.exec_properties)
        examples: types.Artifact = copy.deepcopy(execution_info.output_dict[EXAMPLES_KEY][0])
        describe(examples, properties)
        if properties.get(DATASET_KEY):
            dataset = check_dataset(properties[DATASET_KEY])
            properties[FINGERPRINT_KEY] = dataset_fingerprint(dataset)
            properties[PRODUCER_KEY] = ", ".join(f"{name} {version}" for name, version in dataset.producer.items())
            examples.uri = properties[DATASET_KEY]
            examples.is_external = True  # or TFX would remove the directory when the execution fails
        else:
            properties[FINGERPRINT_KEY] = source_fingerprint(options_of(properties))
        output = driver_output_pb2.DriverOutput()
        for name, value in properties.items():
            if value is not None:
                data_types_utils.set_metadata_value(output.exec_properties[name], value)
        output.output_artifacts[EXAMPLES_KEY].artifacts.append(examples.mlmd_artifact)
        return output
