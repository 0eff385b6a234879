"""The driver: looks at the source before the cache is asked, so that the cache key is its content."""

from __future__ import annotations

import json

from tfx.dsl.components.base import base_driver
from tfx.orchestration import data_types_utils, metadata
from tfx.orchestration.portable import base_driver as ir_base_driver
from tfx.orchestration.portable import data_types
from tfx.proto.orchestration import driver_output_pb2

from beam_jobs.fingerprint import source_fingerprint
from beam_jobs.options import IngestOptions
from components.image_example_gen.names import FINGERPRINT_KEY, OPTIONS_KEY


# TFX checks a DRIVER_CLASS against the older base and runs it through the newer one, as its own ExampleGen does.
class Driver(base_driver.BaseDriver, ir_base_driver.BaseDriver):
    """Adds the fingerprint of the source to the execution properties."""

    def __init__(self, metadata_handle: metadata.Metadata) -> None:
        """Builds the driver; TFX calls it."""
        base_driver.BaseDriver.__init__(self, metadata_handle)
        ir_base_driver.BaseDriver.__init__(self, metadata_handle)

    def run(self, execution_info: data_types.ExecutionInfo) -> driver_output_pb2.DriverOutput:
        """Returns the execution properties with the fingerprint.

        Raises:
          SourceError: the source cannot be ingested.
        """
        properties = dict(execution_info.exec_properties)
        options = IngestOptions.from_json(json.loads(properties[OPTIONS_KEY]))
        properties[FINGERPRINT_KEY] = source_fingerprint(options)
        output = driver_output_pb2.DriverOutput()
        for name, value in properties.items():
            if value is not None:
                data_types_utils.set_metadata_value(output.exec_properties[name], value)
        return output
