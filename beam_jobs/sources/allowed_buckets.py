"""Which buckets a table may name: its cells may be a stranger's, the credentials that read them are the user's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set

from beam_jobs.common import strings
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.options import IngestOptions
from beam_jobs.types import ImageRef, Reject

# Filesystems that Beam reaches with credentials; others do not exist for the reader, or need none.
_BUCKET = re.compile(r"(s3|gs|azfs|hdfs)://[^/]*", re.IGNORECASE)
_SHOWN = 5
_SHOWN_CHARACTERS = 80


def bucket_of(path: str) -> str:
    """Returns the bucket that a path lies in, such as `s3://photos`; empty for a path that needs no credentials."""
    found = _BUCKET.match(path)
    return found[0].lower() if found else ""


def allowed(options: IngestOptions) -> frozenset[str]:
    """Returns the buckets that a table may name: its own, that of the output, and those of `allow_buckets`.

    Raises:
      OptionError: an allowed bucket is none.
    """
    for bucket in options.allow_buckets:
        if bucket_of(bucket) != bucket.rstrip("/").lower() or bucket.endswith("://"):
            raise OptionError(f"allow_buckets holds {bucket!r}; write it as s3://NAME or gs://NAME")
    return frozenset(map(bucket_of, (options.source, options.out, *options.allow_buckets))) - {""}


def refuse_others(entries: Iterable[ImageRef | Reject], table: str, buckets: Set[str]) -> Iterator[ImageRef | Reject]:
    """Yields the entries of a table up to the first that lies in another bucket.

    Args:
      entries: of the table; nothing that they name was read.
      table: path of the table.
      buckets: that it may name, see `allowed`.

    Raises:
      SourceError: it names other buckets; the message lists them.
    """
    others: set[str] = set()
    for entry in entries:
        if isinstance(entry, ImageRef):
            mask = entry.annotations.mask if entry.annotations else None
            others |= {bucket_of(uri) for uri in (entry.uri, mask or "") if "://" in uri} - buckets - {""}
        if not others:
            yield entry
    if others:
        names = [strings.line(name[:_SHOWN_CHARACTERS]) for name in sorted(others)]
        listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise SourceError(
            f"{table} names images in other buckets, which would be read with your credentials: {listed}; "
            f"where that is meant, give --allow-bucket {names[0]} (setting ingest.allow_buckets), once for each of them"
        )
