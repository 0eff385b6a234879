"""Runs of a pipeline: their lock, history, summary, report and lineage."""
