"""The schema of a dataset: its inference, its files for review, and the comparison of schemas."""
