"""Raw images to sharded TFRecords.

`run` turns a source of images into a published dataset: each image is examined once, with the decoder of the training,
and is written, rejected with a reason, or counted as a copy. `dataset.json` is written last; `load` reads it, and
`verify_dataset` reads and checks all files.

Ingest:
  run: a source of images -> a published dataset and its `Manifest`
  IngestOptions: source, output and options of an ingest
  TableColumns: roles of the columns of a table
  PixelOptions: keep the files, resize them, or store pixels
  ImageLimits: limits of an image in bytes, pixels and seconds
  HttpOptions: how images are fetched from web servers
  About: title, authors, licence and intended use of a dataset

A dataset:
  load: the manifest of a published dataset
  Manifest: labels, splits, shards, counts, statistics and digest
  SplitInfo, Shard, ImageCounts, Remarks, ChannelStatistics: its parts
  verify_dataset: every checksum, every count and a decode of every record
  Verification: counts and problems of a verification
  find_record: one image by its key, with its row of the image table
  summarise_file: features of any TFRecord file
  FileSummary, FeatureSummary: its parts

Errors, all in `beam_jobs.errors`:
  FeedlineError: base class; the message is one line with a remedy
  UsageError: the request is wrong, nothing was changed: OptionError, SourceError
  DataError: the data failed a check, nothing was published: TooManyRejects, EmptySplit, SplitConflict,
    CorruptDataset

Rejects:
  RejectReason: why an image is not in the dataset

Examples:
  >>> from beam_jobs import IngestOptions, run, verify_dataset
  >>> manifest = run(IngestOptions(source="photos", out="published", splits={"train": 0.8, "eval": 0.2}))
  >>> manifest.counts.found, manifest.counts.written, manifest.labels
  (49, 48, ('cat', 'dog'))
  >>> verify_dataset("published").problems
  []

Names are loaded on first use: importing the package does not import Beam, TensorFlow or Arrow. Main modules:
`dataset.record` (features of a record), `dataset.tfrecord` (file format), `dataset.shards` (splits and shards),
`dataset.manifest` (`dataset.json`), `ingest` (the complete job).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

# Google's clients, which Beam imports, warn about the newest Python that TFX supports.
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
        SourceError,
        SplitConflict,
        TooManyRejects,
        UsageError,
    )
    from beam_jobs.ingest import run
    from beam_jobs.inspect import FeatureSummary, FileSummary, find_record, summarise_file
    from beam_jobs.options import About, HttpOptions, ImageLimits, IngestOptions, PixelOptions, TableColumns
    from beam_jobs.rejects import RejectReason

__all__ = [
    "About",
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

# Module -> its public names.
_MODULES = {
    "errors": (
        "CorruptDataset",
        "DataError",
        "EmptySplit",
        "FeedlineError",
        "OptionError",
        "SourceError",
        "SplitConflict",
        "TooManyRejects",
        "UsageError",
    ),
    "ingest": ("run",),
    "inspect": ("FeatureSummary", "FileSummary", "find_record", "summarise_file"),
    "dataset.manifest": ("ChannelStatistics", "ImageCounts", "Manifest", "Remarks", "Shard", "SplitInfo", "load"),
    "rejects": ("RejectReason",),
    "options": ("About", "HttpOptions", "ImageLimits", "IngestOptions", "PixelOptions", "TableColumns"),
    "dataset.verify": ("Verification",),
}
# Public name -> module and name, for a function with the name of its module.
_ALIASES = {"verify_dataset": ("dataset.verify", "verify")}

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name
    from beam_jobs.common import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), _MODULES, _ALIASES)
