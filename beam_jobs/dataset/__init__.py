"""A published dataset: records, shards, manifest and tables, and reading them back."""
