"""The sources of an ingest: a module for each kind of source, and `factory`, which opens the source of the options."""
