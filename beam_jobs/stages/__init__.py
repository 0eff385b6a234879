"""The steps of an ingest, in the order in which data moves: scan, examine, write, publish."""
