from __future__ import annotations

import contextlib
import os
import signal
import sqlite3

import ml_metadata
import pytest
from ml_metadata import errors
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs.errors import OptionError
from pipeline.runs.history import newest_run, open_store
from tests.command import python
from tests.pipeline.ledger import CACHED, FAILED, Ledger

# Dies in the middle of a transaction that has reached the file already.
DIES = f"""
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size=1")
connection.execute("BEGIN")
for index in range(3000):
    connection.execute("INSERT INTO Type (name, type_kind) VALUES (?, 1)", (f"half done {{index}} " * 9,))
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metadata.sqlite"


@pytest.fixture
def ledger(path, tmp_path):
    ledger = Ledger(path)
    ledger.run("one")
    properties = {"pushed_destination": "somewhere", "pushed": 1}
    [artifact] = ledger.execute("one", "Pusher", {}, {"pushed_model": ("PushedModel", tmp_path / "p", properties)})
    ledger.execute("one", "Trainer", state=FAILED)
    ledger.run("two", pipeline="another")
    ledger.execute("two", "Evaluator")
    ledger.run("three")
    ledger.execute("three", "Pusher", {}, {"pushed_model": artifact}, state=CACHED)
    return ledger


def test_the_newest_run_is_told_step_by_step(ledger, tmp_path):
    [step] = newest_run(ledger.store).values()
    assert (step.component, step.state) == ("Pusher", "cached")
    assert step.outputs == {"pushed_model": str(tmp_path / "p")}
    assert step.properties == {"pushed_model": {"pushed_destination": "somewhere"}}


def test_of_several_pipelines_one_can_be_meant(ledger):
    assert list(newest_run(ledger.store, "another")) == ["Evaluator"]
    assert list(newest_run(ledger.store, "demo")) == ["Pusher"]
    assert newest_run(ledger.store, "nobody") == {}


def test_reading_never_writes(ledger, path):
    store = open_store(str(path))
    with pytest.raises(errors.InternalError, match="readonly database"):
        store.put_context_type(pb.ContextType(name="new"))
    assert open_store(str(path), write=True).put_context_type(pb.ContextType(name="new"))


def test_a_database_that_a_killed_run_was_changing_is_read_as_before_and_left_for_the_next_run(ledger, path):
    executions, types = len(ledger.store.get_executions()), len(ledger.store.get_artifact_types())
    del ledger
    assert python(DIES, path).returncode == -signal.SIGKILL
    before = {name: (path.parent / name).read_bytes() for name in os.listdir(path.parent)}
    assert list(before) == ["metadata.sqlite", "metadata.sqlite-journal"] or len(before) == 2
    store = open_store(str(path))
    assert (len(store.get_executions()), len(store.get_artifact_types())) == (executions, types)
    assert {name: (path.parent / name).read_bytes() for name in os.listdir(path.parent)} == before
    assert len(open_store(str(path), write=True).get_executions()) == executions


@pytest.mark.parametrize("content", [None, b"no database at all, but quite long", "foreign"])
def test_what_is_no_database_of_ours_is_refused_in_one_line(path, content):
    if content == "foreign":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE people (name TEXT)")
    elif content is not None:
        path.write_bytes(content)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(OptionError, match=r"^[^\n]*metadata.sqlite is not a database of ML Metadata[^\n]*$"):
        open_store(str(path))
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize(("schema", "write"), [(9, False), (11, True)])
def test_a_schema_that_this_ml_metadata_does_not_read_is_refused_in_one_line_and_left_as_it_is(
    ledger, path, schema, write
):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE MLMDEnv SET schema_version = ?", (schema,))
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(OptionError) as caught:
        open_store(str(path), write)
    assert str(caught.value) == (
        f"{path} has schema {schema} of ML Metadata, and ml-metadata {ml_metadata.__version__} reads schema 10; open "
        "it with the release of Feedline that wrote it, or choose another root"
    )
    assert path.read_bytes() == before
