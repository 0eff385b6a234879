"""Images of servers: many threads wait for them, and the decoders get them in lots."""

from __future__ import annotations

import threading

import pytest

from beam_jobs.images import sandbox
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages.examine import examine_bucket
from tests.beam_jobs.buckets import bucket_of_refs, facts_of, task_of
from tests.beam_jobs.make_rows import make_ref
from tests.beam_jobs.web_server import body, serving, status
from tests.make_images import jpeg


class _Slow(Reader):
    """A server that sends the first images, and of the others not one byte until the test is over."""

    def read(self, uri: str, slice_text: str = "") -> bytes:
        number = int(uri.rpartition("/")[2])
        if number >= 16 and not _OVER.wait(5):
            _GAVE_UP.set()
        return jpeg(number)


_OVER, _GAVE_UP = threading.Event(), threading.Event()


def test_an_interruption_does_not_wait_for_servers_that_say_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "examine", interrupted)
    bucket = bucket_of_refs(tmp_path, *(make_ref(f"http://silent/{n}") for n in range(100)))
    try:
        with pytest.raises(KeyboardInterrupt):
            examine_bucket(bucket, task_of(tmp_path, kind=_Slow, threads=1))  # so that it strikes in this thread
        assert not _GAVE_UP.is_set()
    finally:
        _OVER.set()


def test_images_of_a_server_are_decoded_in_lots_and_written_in_order(tmp_path, monkeypatch):
    lots = []
    examine = sandbox.examine
    monkeypatch.setattr(sandbox, "examine", lambda files, *rest: lots.append(len(files)) or examine(files, *rest))
    pages = {f"/{n}.jpg": body(jpeg(n)) if n % 10 else status(404) for n in range(40)}
    with serving(pages) as server:
        bucket = bucket_of_refs(tmp_path, *(make_ref(server.url(f"/{n}.jpg")) for n in range(40)))
        task = task_of(tmp_path)
        found = examine_bucket(bucket, task)
    assert (found.good, found.rejected) == (36, 4)
    names = [row["key"].rpartition("/")[2] for row in facts_of(task, bucket)]
    assert names == [f"{n}.jpg" for n in range(40) if n % 10]
    assert sorted(lots) == [8, 14, 14]
