from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from beam_jobs.common import system
from beam_jobs.errors import CorruptDataset, DiskError, FeedlineError
from beam_jobs.storage import database as database_module
from beam_jobs.storage.database import open_database

SORT = "SELECT max(n) FROM (SELECT range AS n, hash(range) AS h FROM range(10_000_000) ORDER BY h OFFSET 5)"
LIST = "SELECT max(len(texts)) FROM (SELECT list(hash(range)::VARCHAR) AS texts FROM range(2_000_000))"


@pytest.mark.parametrize("table_bytes", [1, 9, 8 << 20])
def test_rows_that_come_in_parts_are_one_table(tmp_path, monkeypatch, table_bytes):
    monkeypatch.setattr(database_module, "_TABLE_BYTES", table_bytes)
    with open_database("the rows", 100, str(tmp_path)) as database:
        database.insert_all("rows", (pa.table({"n": [number]}) for number in range(3)))
        assert database.column("SELECT n FROM rows ORDER BY n").tolist() == [0, 1, 2]
        assert database.number("SELECT count(*) FROM rows WHERE n > $least", least=0) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_collected_does_not_wait_for_its_thread(tmp_path):
    manager = open_database("the rows", 100, str(tmp_path))
    go = threading.Event()
    manager.__enter__().thread.submit(go.wait)
    timer = threading.Timer(10, go.set)
    timer.start()
    manager.gen.close()  # as the collector does, maybe while `threading` holds locks that ending a thread needs
    assert not go.is_set()
    assert list(tmp_path.iterdir()) == []
    timer.cancel()
    working = [thread for thread in threading.enumerate() if thread.name.startswith("feedline-database")]
    assert working
    go.set()
    for thread in working:
        thread.join(30)
        assert not thread.is_alive()


def test_an_error_of_the_rows_is_passed_on():
    def rows():
        yield pa.table({"n": [1]})
        raise CorruptDataset("the table is damaged")

    with pytest.raises(CorruptDataset, match="damaged"), open_database("the rows", 100) as database:
        database.insert_all("rows", rows())


@pytest.mark.parametrize(
    ("error", "limits", "query", "message"),
    [
        (DiskError, "SET max_temp_directory_size = '1MB'", SORT, "has no room for the rows of a test .*; make room"),
        (
            FeedlineError,
            "SELECT 1",
            LIST,
            "^the rows of a test need more than half of the free memory .*; run the command",
        ),
    ],
)
def test_what_a_query_lacks_is_named(error, limits, query, message, monkeypatch):
    monkeypatch.setattr(system, "free_bytes", lambda: 100e6)

    def ask():
        with open_database("the rows of a test", 40) as database:
            database.run(limits)
            database.number(query)

    with pytest.raises(error, match=message):
        ask()


def test_a_query_that_does_not_fit_gets_more_of_the_free_memory():
    with open_database("the rows of a test", 40) as database:
        assert database.number(LIST) == 2_000_000
        assert database.number("SELECT count(*) FROM range(5)") == 5
