"""The identity of a source: keys, labels and content. Neither names alone nor times tell whether images changed."""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial

from beam_jobs import storage
from beam_jobs.common.concurrency import map_ordered
from beam_jobs.dataset import schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import BadImage, Unreadable
from beam_jobs.options import IngestOptions
from beam_jobs.sources.factory import open_source
from beam_jobs.sources.image_reader import Reader
from beam_jobs.types import ImageRef, Reject

# Touching a file changes nothing; the content hash covers its size; where it lies in an archive says nothing of it.
_TIMES = ("mtime_ns", "bytes", "slice")


def source_fingerprint(options: IngestOptions) -> str:
    """Returns the sha256, in hex, of everything a source says and holds.

    Every file is read once, which costs a small part of what decoding it would. Moving an image to another class,
    renaming it, or editing it under an unchanged size and time each give another fingerprint; touching it does not.

    Raises:
      SourceError: the source cannot be ingested.
      Unreadable: an image may be there and cannot be read, unless `unreadable` is `reject`.
    """
    source = open_source(options)
    hasher = hashlib.sha256()
    base = source.base if storage.is_remote(source.base) else os.path.abspath(source.base)
    reader = Reader(base=base, max_bytes=options.limits.max_bytes, http=options.http)
    describe = partial(_describe, reader=reader, rejecting=options.unreadable == "reject")
    for line in map_ordered(describe, source.entries(), options.thread_count):
        hasher.update(line)
    return hasher.hexdigest()


def dataset_fingerprint(dataset: Manifest) -> str:
    """Returns the sha256, in hex, of everything the manifest of a published dataset says.

    That is the digest of its shards, and what the digest leaves out but gates and reports read: rejects, tables and
    options. Where the dataset lies and when its files were written is no part of it.
    """
    return dataset.to_json()["checksum"]


def _describe(entry: ImageRef | Reject, reader: Reader, rejecting: bool) -> bytes:
    if isinstance(entry, Reject):
        return json.dumps(schemas.reject_row(entry), sort_keys=True).encode()
    row = {name: value for name, value in schemas.ref_row(entry).items() if name not in _TIMES}
    try:
        data = reader.read(entry.uri, entry.slice)
        mask = reader.read(entry.annotations.mask) if entry.annotations and entry.annotations.mask else b""
    except BadImage as bad:
        return json.dumps([row, bad.detail], sort_keys=True).encode()
    except Unreadable as fault:
        if not rejecting:
            raise Unreadable(
                f"{entry.key} cannot be read: {fault}; repair that, or set unreadable to reject"
            ) from fault
        return json.dumps([row, str(fault)], sort_keys=True).encode()
    return json.dumps([row, *(hashlib.sha256(part).hexdigest() for part in (data, mask))], sort_keys=True).encode()
