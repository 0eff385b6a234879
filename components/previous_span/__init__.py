"""The resolver of the previous dataset of a pipeline."""
