"""Converts raw images to sharded TFRecords.

`run` turns a source of images into a published dataset. It examines each image once, with the decoder that training
uses, and writes it, rejects it with a reason, or drops it as a duplicate. `dataset.json` is written last; `load` reads
it, and `verify_dataset` reads and checks all files.

Ingest:
  run: reads a source of images, publishes a dataset and returns its `Manifest`
  IngestOptions: source, output and options of an ingest
  TableColumns: roles of the columns of a table
  PixelOptions: whether to store the files, resized images, or pixels
  ImageLimits: limits of an image in bytes, pixels and seconds
  HttpOptions: options for fetching images from web servers
  About: title, authors, licence and intended use of a dataset

A dataset:
  load: reads the manifest of a published dataset
  Manifest: labels, splits, shards, counts, statistics and digest
  SplitInfo, Shard, ImageCounts, Remarks, ChannelStatistics: parts of a manifest
  verify_dataset: checks every checksum and every count, and decodes every record
  Verification: counts and problems of a verification
  find_record: finds an image by its key, and returns its row of the image table and its record
  summarise_file: summarises the features of any TFRecord file
  FileSummary, FeatureSummary: result of `summarise_file`, and its parts

Errors, all in `beam_jobs.errors`:
  FeedlineError: base class; the message is one line with a remedy
  UsageError: the request is invalid, and nothing was changed; subclasses are OptionError and SourceError
  DataError: the data failed a check, and nothing was published; subclasses are TooManyRejects, EmptySplit,
    SplitConflict and CorruptDataset

Rejects:
  RejectReason: reason why an image is not in the dataset

Examples:
  >>> from beam_jobs import IngestOptions, run, verify_dataset
  >>> manifest = run(IngestOptions(source="photos", out="published", splits={"train": 0.8, "eval": 0.2}))
  >>> manifest.counts.found, manifest.counts.written, manifest.labels
  (49, 48, ('cat', 'dog'))
  >>> verify_dataset("published").problems
  []

Names are loaded on first use: importing the package does not import Beam, TensorFlow or Arrow. Main modules:
`dataset.record` (features of a record), `dataset.tfrecord` (file format), `dataset.shards` (splits and shards),
`dataset.manifest` (`dataset.json`), `ingest` (the complete ingest).
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
# Public name -> module and the name in that module, for functions that have another name there.
_ALIASES = {"verify_dataset": ("dataset.verify", "verify")}

if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name
    from beam_jobs.common import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), _MODULES, _ALIASES)
