from __future__ import annotations

import pytest

from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages.examine import SpoolWriter
from tests.beam_jobs.object_store import SCHEME
from tests.beam_jobs.runs import files_under

PARTS = [b"first", b"", b"\x00" * 5000, b"last"]


@pytest.mark.parametrize("scheme", ["", f"{SCHEME}://"])
def test_what_was_added_is_read_back_by_its_slices(tmp_path, scheme):
    work = f"{scheme}{tmp_path}"
    with SpoolWriter(work, "examined/spool-1.bin") as spool:
        slices = [spool.add(part) for part in PARTS]
    assert files_under(tmp_path) == {"examined/spool-1.bin": b"".join(PARTS)}
    reader = Reader(base="/elsewhere", max_bytes=10_000, work=work)
    assert [reader.read("some.jpg", text) for text in slices] == PARTS
