"""Stores have no rename: what the writer makes of a copy and a delete, when either goes wrong."""

from __future__ import annotations

import pytest

from beam_jobs import storage
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import OptionError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from beam_jobs.storage import object_stores

pytestmark = pytest.mark.stores

DENIED = r"403|[Dd]enied|Forbidden"


def write(path: str, data: bytes) -> None:
    """Writes by a copy, as what is too large for memory."""
    with storage.atomic_writer(path) as stream:
        stream.write(data)


def rename(bucket, source: str, target: str) -> None:
    with object_stores.os_errors(source):
        object_stores.store_for(bucket.url).rename(f"{bucket.url}/{source}", f"{bucket.url}/{target}")


def is_delete(asked) -> bool:
    return asked.method == "DELETE" or asked.path.endswith("?delete")


def test_a_rename_replaces_what_was_there(bucket):
    storage.write_bytes(f"{bucket.url}/new", b"new")
    storage.write_bytes(f"{bucket.url}/old", b"old")
    rename(bucket, "new", "old")
    assert bucket.names() == ["old"]
    assert storage.read_bytes(f"{bucket.url}/old") == b"new"


def test_a_rename_of_nothing_says_so_and_leaves_the_other_alone(bucket):
    storage.write_bytes(f"{bucket.url}/old", b"old")
    with pytest.raises(FileNotFoundError):
        rename(bucket, "none", "old")
    assert storage.read_bytes(f"{bucket.url}/old") == b"old"


def test_a_small_object_is_written_by_one_request(bucket):
    bucket.tap.asked.clear()
    storage.write_bytes(f"{bucket.url}/x", b"first")
    assert len(bucket.tap.asked) == 1
    bucket.tap.refuse = lambda asked: 403 * (asked.method in ("PUT", "POST"))
    with pytest.raises(OSError, match=DENIED):
        storage.write_bytes(f"{bucket.url}/x", b"second")
    bucket.tap.refuse = lambda _: 0
    assert storage.read_bytes(f"{bucket.url}/x") == b"first"


def test_a_copy_that_is_denied_leaves_what_was_there(bucket):
    write(f"{bucket.url}/x", b"first")
    bucket.tap.refuse = lambda asked: 403 * (asked.method in ("PUT", "POST") and is_onto(asked.path, "x"))
    with pytest.raises(OSError, match=DENIED):
        write(f"{bucket.url}/x", b"second")
    bucket.tap.refuse = lambda _: 0
    assert storage.read_bytes(f"{bucket.url}/x") == b"first"
    assert bucket.names() == ["x"], "the temporary object is gone"


def is_onto(path: str, name: str) -> bool:
    return path.partition("?")[0].endswith(f"/{name}")


def test_a_delete_that_is_denied_after_the_copy_is_told_and_nothing_is_lost(bucket):
    bucket.tap.refuse = lambda asked: 403 * is_delete(asked)
    with pytest.raises(OSError, match=DENIED) as told:
        write(f"{bucket.url}/x", b"whole")
    assert "\n" not in str(told.value)
    assert storage.read_bytes(f"{bucket.url}/x") == b"whole"
    (left,) = set(bucket.names()) - {"x"}
    assert left.endswith(".tmp"), "what may not be deleted stays"
    bucket.tap.refuse = lambda _: 0
    write(f"{bucket.url}/x", b"again")
    assert storage.read_bytes(f"{bucket.url}/x") == b"again"


def test_an_ingest_without_the_right_to_delete_is_refused_before_any_work(photos, bucket):
    wanted = IngestOptions(source=str(photos), out=f"{bucket.url}/out", splits={"train": 0.7, "eval": 0.3})
    bucket.tap.refuse = lambda asked: 403 * is_delete(asked)
    with pytest.raises(OptionError, match=f"out cannot be written: .*({DENIED}).*; choose another --out"):
        run(wanted)
    assert all("/refs" not in name and "/examined" not in name for name in bucket.names())
    bucket.tap.refuse = lambda _: 0
    run(wanted)
    assert verify(wanted.out).problems == []
    assert not [name for name in bucket.names() if name.endswith(".tmp")], "the next run takes away what was left"
