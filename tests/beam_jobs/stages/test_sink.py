"""The thread that writes: everything once, in order, bounded, and its errors told."""

import hashlib
import io
import threading
import time

import google_crc32c
import pytest

from beam_jobs.stages import write as write_stage
from beam_jobs.stages.write import Sink


def _records(count: int, length: int) -> list[tuple[bytes, bytes]]:
    return [(index.to_bytes(4, "big"), bytes([index % 251]) * length) for index in range(count)]


@pytest.mark.parametrize("length", [0, 400_000, 3_000_000])
def test_it_writes_every_piece_in_order_and_knows_the_checksums(length: int):
    records, stream = _records(9, length), io.BytesIO()
    with Sink(stream) as taken:
        positions = []
        for pieces in records:
            positions.append(taken.position)
            taken.write(pieces)
    whole = b"".join(piece for pieces in records for piece in pieces)
    assert stream.getvalue() == whole
    assert positions == [index * (4 + length) for index in range(9)]
    assert (taken.position, taken.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert taken.crc32c == google_crc32c.value(whole)


class _Full(io.BytesIO):
    def write(self, data: bytes) -> int:  # type: ignore[override]
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_to_who_writes():
    def write() -> None:
        with Sink(_Full()) as taken:
            for pieces in _records(40, 500_000):
                taken.write(pieces)

    with pytest.raises(OSError, match="No space left"):
        write()


def test_a_full_disk_is_told_at_the_end_at_the_latest():
    with pytest.raises(OSError, match="No space left"), Sink(_Full()) as taken:
        taken.write((b"little",))


def test_an_error_of_the_caller_is_the_one_that_is_raised_and_no_thread_stays():
    before = threading.active_count()

    def write() -> None:
        with Sink(_Full()) as taken:
            taken.write((b"x" * 2_000_000,))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write()
    assert threading.active_count() == before


class _Slow(io.BytesIO):
    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.go.wait(10)
        return super().write(data)


def test_a_slow_disk_holds_back_who_writes():
    stream, taken_in = _Slow(), []

    def write() -> None:
        with Sink(stream) as taken:
            for pieces in _records(20, write_stage._BLOCK_BYTES):
                taken.write(pieces)
                taken_in.append(1)

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(0.3)
    held_back = len(taken_in)
    stream.go.set()
    thread.join(10)
    assert held_back <= write_stage._MAX_PENDING + 1
    assert len(taken_in) == 20
    assert len(stream.getvalue()) == 20 * (4 + write_stage._BLOCK_BYTES)
