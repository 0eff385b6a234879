"""Settings of a pipeline: their layers, the names that are known, and their listing."""
