"""A listing by several threads delivers every name once, in order, whatever the names are."""

from __future__ import annotations

import bisect
import random
import threading
import time

import pytest

from beam_jobs import storage
from beam_jobs.errors import DiskError
from beam_jobs.storage.object_stores import listing
from beam_jobs.storage.object_stores.store import ListedObject
from tests.beam_jobs import gcs_server, s3_server

PAGE = 10


class Bucket:
    """Names, and the pages of them, each after a delay."""

    def __init__(self, names, delay_s=0.0):
        self.names = sorted(names)
        self.requests = []
        self.threads = set()
        self._delay_s = delay_s

    def pages(self, after):
        while True:
            self.requests.append(after)
            self.threads.add(threading.get_ident())
            time.sleep(self._delay_s)
            first = bisect.bisect_right(self.names, after) if after else 0
            if first == len(self.names):
                return
            yield [ListedObject(name, len(name), 5, "sum", 7) for name in self.names[first : first + PAGE]]
            after = self.names[min(first + PAGE, len(self.names)) - 1]


def folders(random_):
    return [f"n{random_.randrange(10**8):08}/{number}.jpg" for number in range(2000)]


NAMES = {
    "numbers": lambda random_: [f"img{number:012}.jpg" for number in range(2000)],
    "folders": folders,
    "one folder": lambda random_: [f"a/very/deep/folder/of/one/class/{number}" for number in range(2000)],
    "any character": lambda random_: ["".join(random_.choices("\x01 ~aé中😀/", k=8)) for _ in range(2000)],
    "long": lambda random_: [f"{'x' * 900}{number}" for number in range(500)],
    "no ASCII": lambda random_: [f"中{chr(0x4E00 + number)}" for number in range(500)],
    "prefixes of each other": lambda random_: ["a" * length for length in range(1, 500)],
}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("in_memory", [64, 0])
def test_every_name_is_listed_once_and_in_order(kind, in_memory, monkeypatch):
    monkeypatch.setattr(listing, "_PAGES_IN_MEMORY", in_memory)
    bucket = Bucket(set(NAMES[kind](random.Random(kind))), delay_s=0.0005)
    listed = list(listing.list_in_order(bucket.pages, threads=4))
    assert listed == [ListedObject(name, len(name), 5, "sum", 7) for name in bucket.names]


@pytest.mark.parametrize("kind", ["numbers", "folders", "one folder"])
def test_all_threads_list_and_few_requests_are_in_vain(kind):
    bucket = Bucket(set(NAMES[kind](random.Random(kind))), delay_s=0.005)
    list(listing.list_in_order(bucket.pages, threads=8))
    assert len(bucket.threads) == 9
    assert len(bucket.requests) < 2 * len(bucket.names) / PAGE


def test_a_short_listing_has_no_threads_and_asks_for_no_page_before_it_is_read():
    bucket = Bucket([f"{number:04}" for number in range(PAGE)])
    entries = listing.list_in_order(bucket.pages)
    assert next(entries).path == "0000"
    assert len(bucket.requests) == 1
    assert len(list(entries)) == PAGE - 1
    assert bucket.threads == {threading.get_ident()}


def test_a_listing_that_is_left_ends_its_threads():
    bucket = Bucket([f"{number:06}" for number in range(20_000)], delay_s=0.001)
    entries = listing.list_in_order(bucket.pages)
    for _ in range(5 * PAGE):
        next(entries)
    entries.close()
    requests = len(bucket.requests)
    time.sleep(0.05)
    assert len(bucket.requests) == requests < 2000


def test_a_failed_request_is_the_error_of_the_listing():
    bucket = Bucket([f"{number:06}" for number in range(2000)])

    def pages(after):
        for page in bucket.pages(after):
            if page[0].path > "001000":
                raise ConnectionResetError("the store is away")
            yield page

    with pytest.raises(ConnectionResetError, match="the store is away"):
        list(listing.list_in_order(pages, threads=4))


def test_no_room_for_pages_that_wait_is_one_line(monkeypatch):
    monkeypatch.setattr(listing, "_PAGES_IN_MEMORY", 0)
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    bucket = Bucket([f"{number:06}" for number in range(2000)])
    with pytest.raises(DiskError, match="a listing needs a temporary file, which cannot be written .*TMPDIR"):
        list(listing.list_in_order(bucket.pages))


def test_a_bucket_of_s3_is_listed_by_several_threads(monkeypatch):
    names = [f"{label}/{number}.jpg" for label in ("cat", "dog", "eel") for number in range(20)]
    bucket = s3_server.new_bucket(monkeypatch)
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    for name in names:
        s3_server.put(bucket, f"d/{name}", name.encode())
    entries = list(storage.list_objects(f"{bucket}/d"))
    assert [(entry.path, entry.bytes) for entry in entries] == [(name, len(name)) for name in sorted(names)]
    assert len({entry.checksum for entry in entries}) == len(names)


@pytest.mark.parametrize("has_offsets", [True, False], ids=["store", "emulator without offsets"])
def test_a_bucket_of_google_is_listed_by_several_threads(has_offsets, monkeypatch, tmp_path):
    pytest.importorskip("google.cloud.storage")
    names = [f"{label}/{number}.jpg" for label in ("cat", "dog", "eel") for number in range(10)]
    with gcs_server.serving(monkeypatch, tmp_path) as server:
        server.has_offsets = has_offsets
        server.objects = {f"d/{name}": name.encode() for name in names}
        entries = list(storage.list_objects("gs://bucket/d"))
    assert [(entry.path, entry.bytes) for entry in entries] == [(name, len(name)) for name in sorted(names)]
