"""Inspection of any TFRecord file, and of an image of a dataset by its key."""

from __future__ import annotations

from beam_jobs.dataset.lookup import find_record
from beam_jobs.inspect.summary import FeatureSummary, FileFacts, FileSummary, shown_value, summarise, summarise_file

__all__ = ["FeatureSummary", "FileFacts", "FileSummary", "find_record", "shown_value", "summarise", "summarise_file"]
