"""How much room an ingest needs on the disk of its output, as far as it is known before the bytes are there."""

from __future__ import annotations

import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import shards
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import RECORD_OVERHEAD_BYTES, Plan
from beam_jobs.stages.scan import Scan
from beam_jobs.storage import disk

BLOCK_BYTES = 4096  # what even a small file takes on most disks


def to_examine(options: IngestOptions, scan: Scan, work: str) -> int:
    """Returns the least bytes that a whole ingest writes from here on; 0 when they depend on what is in the images.

    Of `copy`, what is stored in another format counts nothing: a BMP of one colour becomes a PNG of a few bytes. Of
    `resize` nothing is known: what a smaller image takes depends on what it shows. When duplicates are dropped, the
    number of images that are left is unknown; raw pixels of all of them lie in the spool nevertheless. What is rejected
    is taken to be as large as the rest.

    Args:
      options: of the ingest.
      scan: result of the scan; URLs and members of compressed archives may have no size yet, and count nothing.
      work: directory of what passes between the stages.
    """
    if storage.is_remote(options.out):
        return 0
    share, pixels = 1 - options.max_reject_ratio, options.pixels
    drops = "drop" in (options.duplicates, options.near_duplicates)
    if pixels.policy == "copy" and not drops:
        return max(0, int(share * scan.kept_bytes) - _written(options.out))
    if pixels.policy == "raw":  # first in the spool, then in the shards
        copies = 1 if drops else 2
        least = int(share * (scan.found - len(scan.rejects)) * copies * 3 * pixels.side_px**2)
        return max(0, least - _written(options.out) - disk.used_bytes(work))
    return 0


def to_write(options: IngestOptions, plan: Plan) -> int:
    """Returns about how many bytes of shards are still to be written; 0 to a remote output."""
    if storage.is_remote(options.out):
        return 0
    planned = sum(
        (pc.sum(split.images["bytes"]).as_py() or 0) + RECORD_OVERHEAD_BYTES * len(split.images)
        for split in plan.splits
    )
    return max(0, planned - _written(options.out))


def _written(out: str) -> int:
    """Returns the bytes of shards that an earlier run left."""
    folders = [name for name in storage.list_dirs(out) if name.startswith(shards.SPLIT_PREFIX)]
    return sum(disk.used_bytes(storage.join(out, name)) for name in folders)
