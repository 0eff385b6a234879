"""Finds the dataset before the one of this run."""
