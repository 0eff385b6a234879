"""Joins related images into units, and assigns each unit to a split: queries of the tables of `image_tables`.

The split of a unit is a function of a hash: that of its group, or else of its content; with `near_duplicates=group`,
of the first content of its near cluster. The hash does not depend on the key, so a duplicate that is added later joins
the split of the original.

An ingest that is repeated with more images therefore moves no other image, with three exceptions, which `--append` does
not have. A new image that links two units moves one of them. A new image that resembles others and precedes them by key
moves those. Stratified splits depend on the number of images per class.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.options import IngestOptions, apportion
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.image_tables import ImageTables, quoted

# The images that get a split. `has_mates`: other images may be in the same unit.
_MEMBERS = """
    CREATE VIEW members AS
    SELECT related.id, group_name, labels, written, {content} AS content, {hash} AS content_hash,
        is_copy OR {linked} AS is_shared, is_shared OR group_name <> '' OR near <> '' AS has_mates,
        coalesce(list_position({names}, split) - 1, -1) AS requested
    FROM related WHERE written OR (is_new AND is_first AND NOT is_surplus)"""
_SINGLES = """
    CREATE VIEW singles AS
    SELECT id, labels, requested, content_hash AS unit FROM members WHERE NOT has_mates AND NOT written"""

# The smallest group of the images of each content; the other groups of these images are linked to it.
_CONTENT_GROUPS = """
    CREATE TABLE content_groups AS
    SELECT content, min(group_name) AS group_name FROM members WHERE is_shared AND group_name <> '' GROUP BY content"""
_GROUP_LINKS = """
    SELECT DISTINCT members.group_name AS one, content_groups.group_name AS other
    FROM members JOIN content_groups USING (content)
    WHERE members.group_name <> '' AND members.group_name <> content_groups.group_name"""

# The hash of a unit is that of its smallest group, or else that of its first content.
_UNITS = """
    CREATE TABLE units AS WITH grouped AS (
        SELECT members.*, coalesce(nullif(members.group_name, ''), content_groups.group_name) AS unit_group
        FROM members LEFT JOIN content_groups USING (content) WHERE has_mates)
    SELECT id, labels, written, requested, coalesce(groups.hash, content_hash) AS unit
    FROM grouped LEFT JOIN first_groups ON first_groups.group_name = unit_group
    LEFT JOIN groups ON groups.group_name = coalesce(first_groups.first, unit_group)"""

# The lowest code of its images determines the split of a unit. Codes below the number of splits (`count`)
# are splits of images in shards; requested splits have that number added.
_REQUESTS = """
    CREATE TABLE requests AS
    SELECT unit, min(CASE WHEN written THEN requested ELSE requested + {count} END) % {count} AS split
    FROM units WHERE requested >= 0 GROUP BY unit"""
_ASSIGNED = """
    CREATE TABLE assigned AS
    SELECT id, CASE WHEN requested >= 0 THEN requested ELSE requests.split END AS split
    FROM units LEFT JOIN requests USING (unit) WHERE requested >= 0 OR requests.split IS NOT NULL"""
_FREE = """
    SELECT id, {columns} FROM units LEFT JOIN requests USING (unit) {join}
    WHERE requested < 0 AND requests.split IS NULL"""
_SINGLE_SPLITS = {
    "hash": "SELECT id, CASE WHEN requested >= 0 THEN requested ELSE {split} END AS split FROM singles",
    "class": "SELECT id, requested AS split FROM singles WHERE requested >= 0",
}
_CONTENT_COLUMNS = {"content": "content", "hash": "content_hash", "linked": "false"}
_ASSIGNED_NEW = "SELECT id, split FROM assigned WHERE id >= {old}"


def assign(tables: ImageTables, options: IngestOptions) -> np.ndarray:
    """Assigns a split to each image that is or will be in a shard.

    Creates the table `assigned(id, split)` of the images whose units may have several images. `split` is an index in
    the order of the options. An image with a requested split gets that split. The other images of a unit get the split
    of its images in shards, otherwise the first split requested for one of its images, otherwise a split by hash.

    With stratification, each class is divided separately. Where every unit is a single image, the units are ordered by
    hash and divided exactly by the shares. Otherwise, where that division is not exact, the smallest split gets units
    whose number of images is closest to its share, then the next smallest split, and the largest split the remaining
    units: with two splits, no other division of the units is closer. Each split gets a unit of every class that has
    enough units. A unit of several classes belongs to its most frequent class, and its other images count for the
    classes that are divided later: classes whose units contain the most images of other classes are divided first.
    Stratified splits, unlike splits by hash, move images when a class grows.

    Args:
      tables: the images, after `duplicates.find_sets`.
      options: splits, shares, seed and policies.

    Returns:
      split of each row of the facts, int[rows] of one byte for up to 127 splits; the number of splits for a row that
      is in no split.
    """
    split_count = len(options.splits)
    joins_clusters = options.near_duplicates == "group"
    columns = {"content": "root", "hash": "root_hash", "linked": "is_linked"} if joins_clusters else _CONTENT_COLUMNS
    tables.run(_MEMBERS.format(names=f"[{quoted(options.splits)}]", **columns))
    tables.run(_SINGLES)
    tables.run(_CONTENT_GROUPS)
    tables.insert("first_groups", _first_groups(tables.query(_GROUP_LINKS)))
    tables.run(_UNITS)
    tables.run(_REQUESTS.format(count=split_count))
    tables.run(_ASSIGNED)
    places = np.full(tables.facts_rows, split_count, np.min_scalar_type(-1 - split_count))  # signed: `plan` sets -1
    if options.stratify:
        _assign_by_class(tables, options, places)
        singles_query = _SINGLE_SPLITS["class"]
    else:
        split = split_expression(options.shares)
        tables.run(f"INSERT INTO assigned {_FREE.format(columns=f'{split} AS split', join='')}")
        singles_query = _SINGLE_SPLITS["hash"].format(split=split)
    for statement in (singles_query, _ASSIGNED_NEW.format(old=tables.old_count)):
        for rows in tables.tables(statement):
            places[rows["id"].to_numpy() - tables.old_count] = rows["split"].to_numpy()
    return places


def split_expression(shares: Mapping[str, float]) -> str:
    """Returns the SQL of the index of the split of a unit, by the column `unit`, its hash, uint64.

    Args:
      shares: split -> share, summing to 1, in a fixed order.
    """
    *edges, _ = itertools.accumulate(shares.values())  # the rounded sum may be below 1, so the last split has no edge
    return " + ".join(["0", *(f"(unit::DOUBLE / 18446744073709551616 >= {edge!r})::BIGINT" for edge in edges)])


def _first_groups(links: pa.Table) -> pa.Table:
    """Returns a row for each linked group, with the first group of its set of linked groups."""
    names = pc.unique(pa.chunked_array([*links["one"].chunks, *links["other"].chunks], pa.string()))
    names = names.take(pc.sort_indices(names))
    one, other = (pc.index_in(links[side], value_set=names).to_numpy().astype(np.int64) for side in ("one", "other"))
    roots = near_duplicates.join_sets(np.arange(len(names)), one, other)
    return pa.table({"group_name": names, "first": names.take(pa.array(roots))})


# An image counts for its rarest label, because a split may lack images of a rare class.
_NEW_LABELS = """
    CREATE VIEW new_labels AS
    SELECT labels FROM units WHERE NOT written UNION ALL SELECT labels FROM singles"""
_RAREST_LABELS = """
    CREATE TABLE rarest_labels AS WITH counts AS (
        SELECT label, count(*) AS images FROM (SELECT unnest(labels) AS label FROM new_labels) GROUP BY label)
    SELECT labels, arg_min(label, (images, label)) AS rarest FROM
        (SELECT labels, unnest(labels) AS label FROM (SELECT DISTINCT labels FROM new_labels))
    JOIN counts USING (label) GROUP BY labels"""
_UNIT_CLASSES = """
    CREATE TABLE unit_classes AS
    SELECT unit, class, count(*) AS images FROM free_images GROUP BY unit, class"""
# The most frequent class of a unit; of equally frequent ones the first by name.
_MAIN_CLASSES = """
    CREATE TABLE main_classes AS
    SELECT unit, arg_min(class, (-images, class)) AS class, max(images) AS size FROM unit_classes GROUP BY unit"""
_OTHER_CLASSES = """
    CREATE TABLE other_classes AS
    SELECT unit, main_classes.class AS main, unit_classes.class, images
    FROM unit_classes JOIN main_classes USING (unit) WHERE unit_classes.class <> main_classes.class"""
# Classes are divided in the order of their rank.
_CLASSES = """
    CREATE TABLE classes AS WITH free AS (
        SELECT DISTINCT {label} AS class FROM singles {join} WHERE requested < 0 UNION SELECT class FROM main_classes),
    others AS (SELECT main AS class, sum(images) AS images FROM other_classes GROUP BY main)
    SELECT class, row_number() OVER (ORDER BY coalesce(images, 0) DESC, class) - 1 AS rank
    FROM free LEFT JOIN others USING (class)"""
_OTHER_RANKS = """
    SELECT mains.rank AS main, unit, others.rank AS other, images FROM other_classes
    JOIN classes AS mains ON mains.class = main JOIN classes AS others ON others.class = other_classes.class
    ORDER BY main"""
# `id` is the id of a single image; -1 for a unit that may have several images.
_RANKED_UNITS = """
    CREATE TABLE ranked_units AS WITH free AS (
        SELECT {label} AS class, unit, 1 AS size, id FROM singles {join} WHERE requested < 0
        UNION ALL SELECT class, unit, size, -1 FROM main_classes)
    SELECT rank::INTEGER AS rank, unit, size::INTEGER AS size, id FROM free JOIN classes USING (class)"""
_PART_UNITS = 1 << 20  # units per part, to limit copies
_UNIT_COLUMNS = {"unit": np.uint64, "size": np.int32, "id": np.int64}
_UNITS_BY_CLASS = f"SELECT {', '.join(_UNIT_COLUMNS)} FROM ranked_units ORDER BY rank, unit"  # noqa: S608 - of this code
_FREE_SPLITS = """
    INSERT INTO assigned WITH free AS (
        SELECT id, unit, rank FROM free_images JOIN main_classes USING (unit)
        JOIN classes ON classes.class = main_classes.class)
    SELECT id, split FROM free ASOF JOIN runs ON free.rank = runs.rank AND free.unit >= runs.start"""


def _assign_by_class(tables: ImageTables, options: IngestOptions, places: np.ndarray) -> None:
    """Divides each class: sets the splits of single images in `places`, and adds the others to the table `assigned`."""
    label_sql, join_sql = "labels[1]", ""
    if tables.label_kind != "single":
        tables.run(_NEW_LABELS)
        tables.run(_RAREST_LABELS)
        label_sql, join_sql = "rarest", "LEFT JOIN rarest_labels USING (labels)"
    label_sql = f"coalesce({label_sql}, '')"
    tables.run(f"CREATE TABLE free_images AS {_FREE.format(columns=f'unit, {label_sql} AS class', join=join_sql)}")
    for statement in (_UNIT_CLASSES, _MAIN_CLASSES, _OTHER_CLASSES, _CLASSES, _RANKED_UNITS):
        tables.run(statement.format(label=label_sql, join=join_sql))
    other_classes = tables.query(_OTHER_RANKS)
    counts = tables.column("SELECT count(*) FROM ranked_units GROUP BY rank ORDER BY rank")
    classes = _class_rows(tables.tables(_UNITS_BY_CLASS), counts.tolist())  # no other query runs during this sort
    class_counts = np.zeros((len(counts), len(options.splits)), np.int64)
    shares = list(options.shares.values())
    tables.insert("runs", _divide_classes(classes, other_classes, shares, class_counts, places, tables.old_count))
    tables.run("DROP TABLE ranked_units")
    tables.run(_FREE_SPLITS)


def _divide_classes(
    classes: Iterable[list[np.ndarray]],
    other_classes: pa.Table,
    shares: list[float],
    counts: np.ndarray,
    places: np.ndarray,
    first_id: int,
) -> pa.Table:
    """Sets the splits of single images; returns the splits of all units as runs of hashes: `rank`, `start`, `split`.

    Args:
      classes: hashes, sizes and ids of the units of each class, in order of their hashes.
      other_classes: the rows of `_OTHER_RANKS`: images of other classes in the units of each class.
      shares: share of each split.
      counts: int64[classes, splits], zeros; receives the images of each class in units of earlier classes.
      places: split of each row of the facts, to set.
      first_id: id of the first row of the facts.
    """
    mains, other_units, other_ranks, images = (column.to_numpy() for column in other_classes.columns)
    runs = [pa.table({"rank": np.empty(0, np.int64), "start": np.empty(0, np.uint64), "split": np.empty(0, np.int64)})]
    for rank, (units, sizes, ids) in enumerate(classes):
        assigned = divide_class(sizes, counts[rank], shares)
        is_single = ids >= 0
        rows = ids[is_single]
        rows -= first_id  # without a copy: a class may have most of the images
        places[rows] = assigned[is_single]
        starts = near_duplicates.run_starts(assigned)
        ranks = np.full(len(starts), rank)
        runs.append(pa.table({"rank": ranks, "start": units[starts], "split": assigned[starts].astype(np.int64)}))
        part = slice(*np.searchsorted(mains, (rank, rank + 1)))
        np.add.at(counts, (other_ranks[part], assigned[np.searchsorted(units, other_units[part])]), images[part])
    return pa.concat_tables(runs)


def _class_rows(unit_tables: Iterator[pa.Table], counts: Iterable[int]) -> Iterator[list[np.ndarray]]:
    """Yields the columns of the units of each class, given the number of units of each class."""
    rows = pa.table({})
    for count in counts:
        columns = [np.empty(count, dtype) for dtype in _UNIT_COLUMNS.values()]
        end = 0
        while end < count:
            rows = rows if len(rows) else next(unit_tables)
            part = rows.slice(0, count - end)
            rows, start, end = rows.slice(len(part)), end, end + len(part)
            for name, column in zip(_UNIT_COLUMNS, columns, strict=True):
                column[start:end] = part[name].to_numpy()
        yield columns


def _target_counts(total: int, counts: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Returns how many of `total` images each split should get, given how many images of the class it already has."""
    missing = np.maximum(np.array(apportion(total + int(counts.sum()), shares)) - counts, 0)
    return missing if missing.sum() == total else np.array(apportion(total, missing / missing.sum()))


def divide_class(sizes: np.ndarray, counts: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Returns the split of each unit of a class, so that the images per split are close to the shares.

    Args:
      sizes: int[units], size of each unit in images, in order of the hashes of the units.
      counts: int64[splits], number of images of the class that each split already has.
      shares: share of each split.
    """
    targets = _target_counts(int(sizes.sum()), counts, shares)
    run_splits = _divide_by_runs(sizes, targets)
    if sizes.max() == 1 or not _deviation(run_splits, sizes, targets):
        return run_splits
    sum_splits = _divide_by_sums(sizes, targets)
    return sum_splits if _deviation(sum_splits, sizes, targets) < _deviation(run_splits, sizes, targets) else run_splits


def _deviation(assigned: np.ndarray, sizes: np.ndarray, targets: np.ndarray) -> int:
    """Returns the sum over all splits of the difference between the number of images and its target."""
    images = np.zeros(len(targets))
    for start in range(0, len(sizes), _PART_UNITS):  # NumPy makes copies of 8 bytes per number
        part = slice(start, start + _PART_UNITS)
        images += np.bincount(assigned[part], sizes[part], len(targets))
    return int(np.abs(images - targets).sum())


def _divide_by_runs(sizes: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the split of each unit: consecutive runs whose numbers of images are closest to the targets."""
    totals = np.zeros(len(sizes) + 1, np.int64)
    totals[1:] = sizes
    np.cumsum(totals, out=totals)
    cuts = [0]
    for target in np.cumsum(targets)[:-1]:
        after = int(np.searchsorted(totals, target))  # the first total that is not smaller
        cut = after - int(after > 0 and target - totals[after - 1] <= totals[after] - target)
        if len(sizes) >= len(targets):  # each split gets at least one unit
            cut = min(max(cut, cuts[-1] + 1), len(sizes) - len(targets) + len(cuts))
        cuts.append(cut)
    return np.repeat(np.arange(len(targets), dtype=np.int16), np.diff(cuts, append=len(sizes)))


def _divide_by_sums(sizes: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the split of each unit: the smallest split gets the closest sum, the largest split the remainder."""
    *smaller, largest = np.argsort(targets, kind="stable").tolist()
    assigned = np.full(len(sizes), largest)
    has_enough_units = len(sizes) >= len(targets)
    for number, split in enumerate(smaller):
        free_units = np.flatnonzero(assigned == largest)
        max_units = len(free_units) - (len(smaller) - number) if has_enough_units else len(free_units)
        selection = _closest_sum(sizes[free_units], int(targets[split]), max_units, at_least_one=has_enough_units)
        for size, count in selection.items():
            assigned[free_units[sizes[free_units] == size][-count:]] = split
    return assigned


def _closest_sum(sizes: np.ndarray, target: int, max_units: int, at_least_one: bool) -> dict[int, int]:
    """Returns size -> number of units; their sum is closest to the target, the smaller of two equally close sums.

    Sums are built from the fewest units, by dynamic programming over multiples of the sizes (bounded subset sum).

    Args:
      sizes: size of each unit, in images.
      target: sum to approximate, in images.
      max_units: maximum number of units to select.
      at_least_one: whether to select at least one unit.
    """
    target = max(target, int(at_least_one))  # one unit has a sum of at least 1
    values, counts = np.unique(sizes, return_counts=True)
    fewest = np.full(min(int(sizes.sum()), target + int(values[-1])) + 1, len(sizes) + 1)  # sum -> fewest units
    fewest[0] = 0
    parts: list[tuple[int, int, np.ndarray]] = []
    for size, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        for part in _binary_parts(count):
            step = size * part
            if fewest[min(target, len(fewest) - 1)] <= max_units or step >= len(fewest):
                break  # the target has been reached, or no more units fit
            is_better = fewest[:-step] + part < fewest[step:]
            fewest[step:][is_better] = fewest[:-step][is_better] + part
            parts.append((size, part, np.packbits(is_better)))
    sums = np.flatnonzero(fewest <= max_units)[at_least_one:]  # the first sum is 0, of no unit
    remaining = int(sums[np.abs(sums - target).argmin()])
    selection: dict[int, int] = {}
    for size, part, is_better in reversed(parts):
        reduced = remaining - size * part
        if reduced >= 0 and np.unpackbits(is_better[reduced // 8])[reduced % 8]:
            remaining, selection[size] = reduced, selection.get(size, 0) + part
    return selection


def _binary_parts(count: int) -> Iterator[int]:
    """Yields 1, 2, 4, ... and a remainder; every number up to the count is a sum of some of them."""
    part = 1
    while count:
        yield min(part, count)
        count -= min(part, count)
        part *= 2
