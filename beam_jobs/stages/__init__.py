"""The stages of an ingest, in their order: scan, examine, write, publish."""
