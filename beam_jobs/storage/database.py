"""A database for rows that may not fit in memory: DuckDB with a memory limit; rows over the limit are on a disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from beam_jobs.common import system
from beam_jobs.errors import DiskError, FeedlineError, OptionError

_INTERRUPT_S = 0.1  # between interrupts, because an interrupt before the start of a query has no effect
_SPILL_FULL = "failed to offload data block"  # in DuckDB's message
_OUT_OF_MEMORY, _IO_ERROR = "Out of Memory Error", "IO Error"  # prefixes of DuckDB's messages
_BATCH_ROWS = 1 << 13
_TABLE_BYTES = 8 << 20  # size of the tables of `join_small`
_THREAD_MB = 100  # memory per thread

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Database:
    """An open database.

    Attributes:
      connection: connection to its tables.
      thread: runs the statements.
      spill: local directory of its files.
      batch_rows: number of rows of a batch.
      larger_mb: increasing memory limits, in MB, for statements that need more memory.
    """

    connection: duckdb.DuckDBPyConnection
    thread: ThreadPoolExecutor
    spill: str
    batch_rows: int = _BATCH_ROWS
    larger_mb: Iterator[int] = field(default_factory=lambda: iter(()))

    def run(self, statement: str, **parameters: object) -> None:
        """Runs a statement."""
        self._execute(lambda: self.connection.execute(statement, parameters or None))

    def query(self, statement: str, **parameters: object) -> pa.Table:
        """Returns the rows of a query."""
        return self._execute(lambda: self.connection.execute(statement, parameters or None).fetch_arrow_table())

    def batches(self, statement: str, **parameters: object) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a query, some thousands at a time; no other statement may run meanwhile."""

        def start() -> tuple[Iterator[pa.RecordBatch], pa.RecordBatch | None]:
            batches = iter(self.connection.execute(statement, parameters or None).fetch_record_batch(self.batch_rows))
            return batches, next(batches, None)  # a sort, which takes the memory, ends before the first batch

        batches, batch = self._execute(start)
        while batch is not None:
            yield batch
            batch = self._wait(lambda: next(batches, None))

    def tables(self, statement: str) -> Iterator[pa.Table]:
        """Yields the rows of a query in tables of some megabytes; see `batches` and `join_small`."""
        return join_small(pa.Table.from_batches([batch]) for batch in self.batches(statement))

    def column(self, statement: str, **parameters: object) -> np.ndarray:
        """Returns the only column of a query as an array."""
        return self.query(statement, **parameters).column(0).to_numpy()

    def sorted_numbers(
        self, statement: str, dtype: type[np.generic] = np.float64, /, **parameters: object
    ) -> np.ndarray:
        """Returns the only column of a query, of numbers of `dtype`, in ascending order, NaN last."""
        # In batches, because a table of all numbers would take as much memory as the array.
        count = self.number(f"SELECT count(*) FROM ({statement})", **parameters)  # noqa: S608 - our own statements
        values = np.empty(count, dtype)
        end = 0
        for batch in self.batches(statement, **parameters):
            start, end = end, end + len(batch)
            values[start:end] = batch.column(0).to_numpy(zero_copy_only=False)
        values.sort()
        return values

    def number(self, statement: str, **parameters: object) -> int:
        """Returns the only number of a query; 0 for null."""
        return int(self.query(statement, **parameters).column(0)[0].as_py() or 0)

    def insert(self, table: str, rows: pa.Table) -> None:
        """Creates a table of the database with rows."""
        self.add(table, rows, create=True)

    def insert_all(self, table: str, rows: Iterable[pa.Table]) -> None:
        """Creates a table of the database from one or more tables of rows with the same schema."""
        for number, part in enumerate(join_small(rows)):
            self.add(table, part, create=number == 0)

    def add(self, table: str, rows: pa.Table, create: bool) -> None:
        """Adds rows to a table, or creates it with them."""

        def add_rows() -> None:
            relation = self.connection.from_arrow(rows)
            (relation.create if create else relation.insert_into)(table)

        self._execute(add_rows)

    def _execute(self, execute: Callable[[], T]) -> T:
        """Calls a function with a statement; calls it again with the next larger memory limit if memory runs out."""
        try:
            return self._wait(execute)
        except Exception as error:
            is_too_small = _OUT_OF_MEMORY in str(error) and _SPILL_FULL not in str(error)
            limit = next(self.larger_mb, None) if is_too_small else None
            if limit is None:
                raise
        self.connection.execute(f"SET memory_limit = '{limit}MB'")
        return self._execute(execute)

    def _wait(self, execute: Callable[[], T]) -> T:
        """Returns the result of a function, called in the database thread; a signal to this process ends the query."""
        future = self.thread.submit(execute)
        try:
            return future.result()
        finally:
            while not future.done():  # a signal has ended the wait; DuckDB itself does not always end a query then
                self.connection.interrupt()
                wait((future,), _INTERRUPT_S)


def join_small(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the rows of tables of one schema in tables of some megabytes, because each table costs time in Python."""
    pending: list[pa.Table] = []
    size = 0
    for table in tables:
        pending.append(table)
        size += table.nbytes
        if size >= _TABLE_BYTES:
            yield pa.concat_tables(pending)
            pending, size = [], 0
    if pending:
        yield pa.concat_tables(pending)


@contextlib.contextmanager
def open_database(purpose: str, memory_mb: int, spill: str = "", memory_option: str = "") -> Iterator[Database]:
    """Yields an empty database, which is removed at the end of the block.

    Args:
      purpose: name of its content in messages, such as `the plan`.
      memory_mb: limit of its memory, in MB. Without `memory_option`, a statement that needs more gets up to half of the
        free memory.
      spill: local directory for rows over the memory limit; the directory of temporary files when empty.
      memory_option: name of the option with the limit, such as `plan_memory_mb`.

    Raises:
      DiskError: the disk of `spill` is full, or cannot be written.
      OptionError: the memory is too small; a `FeedlineError` without `memory_option`.
    """
    with (
        # A separate directory, because DuckDB gives the files of two processes the same names.
        _open_directory(spill) as directory,
        _explain_errors(purpose, os.path.dirname(directory), memory_mb, memory_option),
        contextlib.closing(_connect(directory, memory_mb)) as connection,
        _open_thread() as thread,
    ):
        larger_mb = iter(()) if memory_option else _larger_limits(memory_mb)
        yield Database(connection=connection, thread=thread, spill=directory, larger_mb=larger_mb)


@contextlib.contextmanager
def _open_thread() -> Iterator[ThreadPoolExecutor]:
    thread = ThreadPoolExecutor(1, thread_name_prefix="feedline-database")
    may_wait = True
    try:
        yield thread
    except GeneratorExit:  # from the garbage collector: this thread may have a lock that the other one needs to end
        may_wait = False
        raise
    finally:
        thread.shutdown(wait=may_wait)


def _larger_limits(memory_mb: int) -> Iterator[int]:
    while (memory_mb := 2 * memory_mb) <= system.free_bytes() / 2e6:  # half of it, in MB
        yield memory_mb


@contextlib.contextmanager
def _open_directory(parent: str) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(system.open_directory(parent))
        except OSError as error:
            raise DiskError(
                f"no temporary directory can be made ({error}); set TMPDIR to a directory that can be written"
            ) from error
        yield directory


@contextlib.contextmanager
def _explain_errors(purpose: str, spill: str, memory_mb: int, memory_option: str) -> Iterator[None]:
    # Not at the top: the import starts a thread, for which a forked process that uses DuckDB would wait at its end.
    import duckdb

    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.IOException, OSError) as error:
        cause = str(error).partition("\n")[0]
        # While rows are fetched, Arrow replaces the errors of the database by OSError.
        if isinstance(error, OSError) and not cause.startswith((_OUT_OF_MEMORY, _IO_ERROR)):
            raise
        if _IO_ERROR in cause or isinstance(error, duckdb.IOException) or _SPILL_FULL in cause:
            is_full = _SPILL_FULL in cause or "No space left" in cause
            problem, remedy = f"a file of {purpose} cannot be read or written", "correct the cause"
            if is_full:
                problem, remedy = f"{spill} has no room for {purpose}", "make room"
            remedy += ", then run the same command again: finished work is kept"
            raise DiskError(f"{problem} ({cause}); {remedy}") from None
        if not memory_option:
            raise FeedlineError(
                f"{purpose} need more than half of the free memory ({cause}); run the command with more free memory"
            ) from None
        raise OptionError(
            f"{memory_option} is {memory_mb}, and {purpose} needs more ({cause}); set a larger "
            f"--{memory_option.replace('_', '-')}"
        ) from None


def _connect(directory: str, memory_mb: int) -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect(
        config={
            "memory_limit": f"{memory_mb}MB",
            "temp_directory": os.path.join(directory, "spill"),
            # Each thread takes some of the memory: with too many threads, little remains for the rows.
            "threads": max(1, min(system.cores(), memory_mb // _THREAD_MB)),
            "preserve_insertion_order": False,  # it takes memory; queries that need an order contain ORDER BY
        }
    )
