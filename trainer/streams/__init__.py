"""Batches from other sources than Feedline datasets: Python sources, queues and TFRecord files."""

from __future__ import annotations

from trainer.input.faults import cause_of
from trainer.input.windowed_reader import FOREVER
from trainer.streams.files import TFDS, RecordLayout, explain_files, make_file_stream
from trainer.streams.make import Reading, make_stream
from trainer.streams.queues import QueueSource

__all__ = [
    "FOREVER",
    "TFDS",
    "QueueSource",
    "Reading",
    "RecordLayout",
    "cause_of",
    "explain_files",
    "make_file_stream",
    "make_stream",
]
