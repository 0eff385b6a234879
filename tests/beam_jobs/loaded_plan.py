"""Plans with their rows in memory, for tests that look at every row."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from beam_jobs.dataset import schemas, shards
from beam_jobs.options import IngestOptions
from beam_jobs.planning import plan
from beam_jobs.planning.plan import Plan, SplitPlan
from beam_jobs.planning.planned_rows import ShardRows


@dataclass(frozen=True)
class LoadedSplit:
    name: str
    images: pa.Table
    edges: tuple[int, ...]

    @property
    def shard_count(self) -> int:
        return len(self.edges) - 1

    def shard(self, index: int) -> pa.Table:
        return self.images.slice(self.edges[index], self.edges[index + 1] - self.edges[index])


class LoadedPlan:
    """The attributes of a `Plan`, with its rows."""

    def __init__(self, made: Plan, rejects: list[dict]) -> None:
        self.__dict__.update(vars(made))
        self.rejects = sorted(rejects, key=str)
        self.existing = schemas.read(made.existing) if made.existing else schemas.IMAGES.empty_table()
        self.splits = tuple(map(load, made.splits))
        self.dropped = load(made.dropped).images


def load(split: SplitPlan) -> LoadedSplit:
    tables = [shard.read() for shard in split.shards]
    images = pa.concat_tables(tables) if tables else schemas.PLANNED.empty_table()
    assert len(images) == split.images
    return LoadedSplit(split.name, images, (0, *itertools.accumulate(map(len, tables))))


def facts_of(tables: Iterable[pa.Table], seed: int) -> list[str]:
    """Returns the paths of files of facts, with what examining adds for the plan."""
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    paths = []
    for table in tables:
        paths.append(f"{directory}/{len(paths)}.parquet")
        schemas.write_table(paths[-1], hash_rows(table, seed), durable=False)
    return paths


def hash_rows(table: pa.Table, seed: int) -> pa.Table:
    order = shards.hashes64(shards.ORDER, seed, table["key"].to_pylist())
    content = shards.hashes64(shards.SPLIT, seed, table["sha256"].to_pylist())
    columns = {**{name: table[name] for name in table.column_names}, "order_hash": order, "content_hash": content}
    names = [schemas.class_names(schemas.parse_annotations(text)) for text in table["annotations"].to_pylist()]
    columns |= {name: [one[name] for one in names] for name in ("annotated_labels", "object_labels")}
    return pa.table(columns, schema=table.schema)


def make_plan(
    examined: pa.Table,
    options: IngestOptions,
    label_kind: str = "single",
    existing: pa.Table | None = None,
    labels: Sequence[str] = (),
) -> LoadedPlan:
    """Plans `EXAMINED` rows, in two tables."""
    half = len(examined) // 2
    facts = facts_of([examined.slice(0, half), examined.slice(half)], options.seed)
    with tempfile.TemporaryDirectory() as directory:
        tables = [f"{directory}/old-{part}.parquet" for part in range(2 * (existing is not None))]
        for part, table in enumerate(tables):
            half = len(existing) // 2
            schemas.write_table(table, existing.slice(part * half, None if part else half), durable=False)
        rejects: list[dict] = []
        old = plan.ExistingImages(tables, labels)
        keep = lambda path: rejects.extend(schemas.read(path).to_pylist())  # noqa: E731
        return LoadedPlan(plan.make_plan(facts, options, directory, label_kind, old, on_rejects=keep), rejects)


def change_rows(split: SplitPlan, directory: str, change: Callable[[pa.Table], pa.Table], labels=()) -> SplitPlan:
    """Returns the split with other rows in the same shards."""
    changed = []
    first = 0
    for index, shard in enumerate(split.shards):
        rows = change(load(split).images).slice(first, shard.images)
        first += shard.images
        cutter, name = shards.Cutter(len(rows), len(rows), 1), f"{split.name}-{index}"
        with ThreadPoolExecutor(1) as thread:
            files = ShardRows(directory, name, cutter, labels, thread)
            files.add(rows, np.ones(len(rows), np.int64))
            changed += files.close()
    return replace(split, images=sum(shard.images for shard in changed), shards=tuple(changed))


def set_column(rows: pa.Table, name: str, values: list) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), [values])
