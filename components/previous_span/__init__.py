"""Resolver of the previous dataset of a pipeline."""
