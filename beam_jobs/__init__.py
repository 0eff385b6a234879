"""Raw image bytes in, sharded TFRecords out.

`run` turns a source of images into a published dataset: each image is examined once, by the decoder that training
uses; it is written, rejected with a reason, or a counted copy. `dataset.json` comes last; `load` reads it, and
`verify_dataset` reads everything back.

Ingest:
  run: a source of images -> a published dataset and its `Manifest`
  IngestOptions: where from, where to, and how
  TableColumns: which columns of a table hold what
  PixelOptions: keep the files, resize them, or store pixels
  ImageLimits: what an image may be, in bytes, pixels and seconds
  HttpOptions: how images are fetched from web servers

A dataset:
  load: the manifest of a published dataset
  Manifest: labels, splits, shards, counts, statistics and digest
  SplitInfo, Shard, ImageCounts, Remarks, ChannelStatistics: its parts
  verify_dataset: every checksum, every count and a decode of every record
  Verification: what was read and what was wrong
  find_record: one image by its key, with its row of `images.parquet`
  summarise_file: what any TFRecord file holds
  FileSummary, FeatureSummary: its parts

Errors, the whole tree in `beam_jobs.errors`:
  FeedlineError: base of all; the message is one line that says what to do
  UsageError: the request is wrong, nothing was touched: OptionError, SourceError
  DataError: the data failed a check, nothing was published: TooManyRejects, EmptySplit, SplitConflict,
    CorruptDataset
  RejectReason: why an image is not in the dataset

Examples:
  >>> from beam_jobs import IngestOptions, run, verify_dataset
  >>> manifest = run(IngestOptions(source="photos", out="published", splits={"train": 0.8, "eval": 0.2}))
  >>> manifest.counts.found, manifest.counts.written, manifest.labels
  (49, 48, ('cat', 'dog'))
  >>> verify_dataset("published").problems
  []

Nothing is loaded before it is used: importing the package costs no Beam, no TensorFlow and no Arrow. Modules that
others build on: `dataset.record` (what a record holds), `dataset.tfrecord` (how it is framed), `dataset.shards` (where
it goes), `dataset.manifest` (what makes a directory a dataset), `ingest` (the whole job).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

# Google's clients, which Beam imports, say it of the newest Python that TFX runs on.
warnings.filterwarnings("ignore", "You are using a non-supported Python version", FutureWarning)

if TYPE_CHECKING:
    from beam_jobs.dataset.manifest import ChannelStatistics, ImageCounts, Manifest, Remarks, Shard, SplitInfo, load
    from beam_jobs.dataset.verify import Verification
    from beam_jobs.dataset.verify import verify as verify_dataset
    from beam_jobs.errors import (
        CorruptDataset,
        DataError,
        EmptySplit,
        FeedlineError,
        OptionError,
        RejectReason,
        SourceError,
        SplitConflict,
        TooManyRejects,
        UsageError,
    )
    from beam_jobs.ingest import run
    from beam_jobs.inspect import FeatureSummary, FileSummary, find_record, summarise_file
    from beam_jobs.options import HttpOptions, ImageLimits, IngestOptions, PixelOptions, TableColumns

__all__ = [
    "ChannelStatistics",
    "CorruptDataset",
    "DataError",
    "EmptySplit",
    "FeatureSummary",
    "FeedlineError",
    "FileSummary",
    "HttpOptions",
    "ImageCounts",
    "ImageLimits",
    "IngestOptions",
    "Manifest",
    "OptionError",
    "PixelOptions",
    "RejectReason",
    "Remarks",
    "Shard",
    "SourceError",
    "SplitConflict",
    "SplitInfo",
    "TableColumns",
    "TooManyRejects",
    "UsageError",
    "Verification",
    "find_record",
    "load",
    "run",
    "summarise_file",
    "verify_dataset",
]

# Where the names are found.
_MODULES = {
    "errors": (
        "CorruptDataset",
        "DataError",
        "EmptySplit",
        "FeedlineError",
        "OptionError",
        "RejectReason",
        "SourceError",
        "SplitConflict",
        "TooManyRejects",
        "UsageError",
    ),
    "ingest": ("run",),
    "inspect": ("FeatureSummary", "FileSummary", "find_record", "summarise_file"),
    "dataset.manifest": (
        "ChannelStatistics",
        "ImageCounts",
        "Manifest",
        "Remarks",
        "Shard",
        "SplitInfo",
        "load",
    ),
    "options": ("HttpOptions", "ImageLimits", "IngestOptions", "PixelOptions", "TableColumns"),
    "dataset.verify": ("Verification",),
}
# A name of its own for what is called like its module, which `PACKAGE.NAME` must go on to mean.
_ALIASES = {"verify_dataset": ("dataset.verify", "verify")}

if not TYPE_CHECKING:  # or a type checker would take every name for one of these
    from beam_jobs.common import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), _MODULES, _ALIASES)
