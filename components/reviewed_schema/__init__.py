"""Hands a reviewed schema to the pipeline."""
