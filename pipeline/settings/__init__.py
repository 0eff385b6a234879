"""Settings of a pipeline: their layers, their known names, and their listing."""
