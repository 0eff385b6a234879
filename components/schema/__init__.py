"""The schema of a dataset: inferred once, reviewed by people, compared as a table."""
