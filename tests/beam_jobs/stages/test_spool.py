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


def test_a_spool_has_its_name_once_it_is_whole_and_one_of_nothing_is_none(tmp_path):
    with SpoolWriter(str(tmp_path), "spool-0.bin"):
        pass
    for data in (b"old and long", b"new"):
        with SpoolWriter(str(tmp_path), "spool-1.bin") as spool:
            spool.add(data)
            assert not (tmp_path / "spool-1.bin").exists() or data == b"new"
    assert files_under(tmp_path) == {"spool-1.bin": b"new"}


@pytest.mark.parametrize("before", [{}, {"spool-1.bin": b"of an earlier run"}], ids=["none", "an earlier run"])
def test_an_error_leaves_what_was_there_and_is_not_swallowed(tmp_path, before):
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)

    def torn():
        with SpoolWriter(str(tmp_path), "spool-1.bin") as spool:
            spool.add(b"bytes")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torn()
    assert files_under(tmp_path) == before
