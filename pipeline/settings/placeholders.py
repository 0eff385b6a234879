"""Words such as BUCKET in `gs://BUCKET/DIR`, which stand for the reader's own and were left as they are."""

from __future__ import annotations

import re

from beam_jobs.storage import is_remote

# Neither a bucket nor a part of an image is named in capitals, or with a bracket in it.
_WORD = re.compile(r"[A-Z][A-Z0-9_-]*|.*[<>{}$].*")


def in_path(path: str) -> str:
    """Returns the bucket of a remote path when it is a placeholder; empty when it is not, or the path is local."""
    bucket = path.partition("://")[2].partition("/")[0]
    return bucket if is_remote(path) and _WORD.fullmatch(bucket) else ""


def in_image(image: str) -> str:
    """Returns the first part of the name of a container image that is a placeholder; empty when none is."""
    parts = (re.split("[:@]", part)[0] for part in image.split("/"))
    return next((part for part in parts if _WORD.fullmatch(part)), "")
