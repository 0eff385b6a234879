"""The schema of a dataset: inference, review files and comparison."""
