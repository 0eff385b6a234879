"""Finds equal and similar images: queries of the tables of `image_tables`, and the search of `near_duplicates`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.image_tables import ImageTables
from beam_jobs.planning.near_duplicates import Appearances, NearClusters

_NAME_LENGTH = 16  # hex digits of a sha256: the probability that two sets of a billion images share a name is 3 %

_CANDIDATES = """
    CREATE TABLE candidates AS
    SELECT id, is_new, content_hash, key, sha256 FROM images JOIN names USING (id)
    WHERE content_hash IN (FROM repeated_hashes)"""
_COPIES = """
    CREATE TABLE copies (
        id BIGINT, key VARCHAR, cluster VARCHAR, content BIGINT, position BIGINT, key_position BIGINT)"""
_FIND_COPIES = """
    INSERT INTO copies
    SELECT id, key, left(sha256, {length}), first_value(id) OVER content, row_number() OVER content,
        row_number() OVER (PARTITION BY sha256 ORDER BY key)
    FROM candidates
    WHERE content_hash % $parts::UBIGINT = $part::UBIGINT
    WINDOW content AS (PARTITION BY sha256 ORDER BY is_new, key)
    QUALIFY count(*) OVER (PARTITION BY sha256) > 1"""
_CANDIDATE_BYTES = 500  # with its texts, while it is sorted

# Of a content, the first image stands for all.
_CONTENTS = """
    SELECT id, content_hash, {columns} FROM images JOIN names USING (id)
    WHERE id NOT IN (SELECT id FROM copies WHERE position > 1) ORDER BY is_new, key"""

_RELATED = """
    CREATE VIEW related AS
    SELECT images.*,
        copies.id IS NOT NULL AS is_copy,
        coalesce(copies.cluster, '') AS cluster,
        coalesce(copies.content, images.id) AS content,
        coalesce(near_contents.root, copies.content, images.id) AS root,
        coalesce(near_contents.root_hash, content_hash) AS root_hash,
        coalesce(near_contents.is_linked, false) AS is_linked,
        coalesce(near_contents.is_surplus, false) AS is_surplus,
        coalesce(copies.position, 1) = 1 OR NOT {drop} AS is_first,
    FROM images LEFT JOIN copies USING (id)
    LEFT JOIN near_contents ON near_contents.content = coalesce(copies.content, images.id)"""

# A cluster that joins several existing clusters gets the smallest of their names.
_NEAR_CLUSTERS = """
    CREATE TABLE near_clusters AS
    SELECT root, coalesce(min(near) FILTER (near <> ''), left(min(sha256), {length})) AS name, count(*) AS images
    FROM related JOIN names USING (id) WHERE root IN (
        SELECT root FROM near_contents WHERE is_linked UNION ALL SELECT root FROM related WHERE near <> '')
    GROUP BY root"""

_NAMED = """
    CREATE VIEW named AS
    SELECT related.*, coalesce(near_clusters.name, '') AS near_cluster
    FROM related LEFT JOIN near_clusters USING (root)"""


def find_sets(tables: ImageTables, options: IngestOptions) -> None:
    """Finds the copies and the near clusters, and applies the policies.

    Tables of the database that it creates:
      copies: images whose content others have too, with the name of the set; `content` is the id of the first of them,
        by old or new and key; `position` is that in this order, `key_position` that by key alone, both from 1.
      near_contents: contents that look like others; `root` is the first content of the near cluster.
      related: view of all images with their content, root, and whether the policies retain them.
      near_clusters: name and size of each near cluster.
      named: `related` with the names of the clusters.

    `drop` drops the new images of a set that contains an existing image; of other sets it retains the first by key.
    Policies for near duplicates apply to contents: all copies of an image are retained or dropped, unless the policy
    for duplicates drops some of them.
    """
    tables.find_repeated("content_hash")
    _find_copies(tables)
    tables.insert("near_contents", _near_contents(tables, options))
    tables.run(_RELATED.format(drop=options.duplicates == "drop"))
    tables.run(_NEAR_CLUSTERS.format(length=_NAME_LENGTH))
    tables.run(_NAMED)


def _find_copies(tables: ImageTables) -> None:
    tables.run(_CANDIDATES)
    tables.run(_COPIES)
    parts = 1 + tables.number("SELECT count(*) FROM candidates") * _CANDIDATE_BYTES // (tables.memory_mb * 1_000_000)
    for part in range(parts):
        tables.run(_FIND_COPIES.format(length=_NAME_LENGTH), parts=parts, part=part)
    tables.run("DROP TABLE candidates")


def _near_contents(tables: ImageTables, options: IngestOptions) -> pa.Table:
    """Returns the distinct files that have near duplicates, are dropped for them, or were not compared with all."""
    ids = hashes = roots = np.zeros(0, np.int64)
    surplus = unsearched = np.zeros(0, bool)
    if options.near_duplicates != "off":
        contents = tables.query(_CONTENTS.format(columns=", ".join(near_duplicates.COLUMNS)))
        ids, hashes = contents["id"].to_numpy(), contents["content_hash"].to_numpy()
        appearances = near_duplicates.measure_facts(contents, channel_statistics=options.facts == "all")
        del contents  # most of a gigabyte, of ten million images
        near = near_duplicates.find(appearances, options.near_distance)
        roots, unsearched, surplus = near.roots, near.unsearched, np.zeros(len(ids), bool)
        if options.near_duplicates == "drop":
            surplus, unsearched = _find_surplus(tables, ids, appearances, near, options.near_distance)
    linked = np.bincount(roots)[roots] > 1
    rows = np.flatnonzero(linked | surplus | unsearched)
    columns = {
        "content": ids[rows],
        "root": ids[roots[rows]],
        "root_hash": hashes[roots[rows]].astype(np.uint64),
        "is_linked": linked[rows],
        "is_surplus": surplus[rows],
        "is_unsearched": unsearched[rows],
    }
    return pa.table({name: pa.array(column) for name, column in columns.items()})


_PRECEDENCE = """
    SELECT coalesce(copies.content, images.id) AS content, bool_or(written) AS is_written, bool_and(is_new) AS is_new
    FROM images LEFT JOIN copies USING (id) GROUP BY ALL"""


def _find_surplus(
    tables: ImageTables, ids: np.ndarray, appearances: Appearances, near: NearClusters, distance: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which files the policy drops, never existing ones, and which were not compared with all others."""
    rows = tables.query(_PRECEDENCE)
    order = np.empty(ids.max(initial=-1) + 1, np.int64)
    order[ids] = np.arange(len(ids))
    contents = order[rows["content"].to_numpy()]
    written, droppable = np.empty(len(ids), bool), np.empty(len(ids), bool)
    written[contents] = rows["is_written"].to_numpy()
    droppable[contents] = rows["is_new"].to_numpy()
    return near_duplicates.find_surplus(appearances, near, distance, written, droppable)
