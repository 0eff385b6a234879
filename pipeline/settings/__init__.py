"""Settings of a pipeline: their layers, their catalog and their listing."""
