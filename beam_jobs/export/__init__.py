"""Export of published datasets to other formats; `run.export` is the entry point."""
