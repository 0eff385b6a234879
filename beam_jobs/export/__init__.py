"""A published dataset in the formats of others: one module a format, `run.export` for all of them."""
