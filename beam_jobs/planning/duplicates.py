"""Finds duplicates and near duplicates, by queries of the tables of `image_tables` and by `near_duplicates`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.image_tables import ImageTables
from beam_jobs.planning.near_duplicates import Appearances, NearClusters

_NAME_LENGTH = 16  # hex digits of a sha256: two of a billion sets have the same name with a probability of 3 %

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
_CANDIDATE_BYTES = 500  # memory of a candidate with its texts, while it is sorted

# The first image of each content represents it.
_CONTENTS = """
    SELECT id, {columns} FROM names
    ANTI JOIN (SELECT id FROM copies WHERE position > 1 UNION ALL SELECT id FROM rejected) USING (id)"""
_COUNT_CONTENTS = "SELECT (SELECT count(*) FROM images) - (SELECT count(*) FROM copies WHERE position > 1)"
# The contents of `look_alikes` and their `place` in the arrays of appearances; existing contents first, then by key.
# A content counts as existing, or as written to a shard, if any of its images does.
_IN_ORDER = """
    SELECT place, any_value(content_hash) AS content_hash, bool_or(written) AS written, bool_and(is_new) AS is_new
    FROM images LEFT JOIN copies USING (id) JOIN look_alikes ON look_alikes.id = coalesce(copies.content, images.id)
    JOIN names ON names.id = look_alikes.id GROUP BY place, names.key ORDER BY bool_and(is_new), names.key"""

_RELATED = """
    CREATE VIEW related AS
    SELECT images.*,
        copies.id IS NOT NULL AS is_copy,
        coalesce(copies.cluster, '') AS cluster, coalesce(copies.content, images.id) AS content,
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
    """Finds the sets of duplicates and the near clusters, and applies the policies.

    Creates these tables of the database:
      copies: images with duplicates, and the name of their set, `cluster`; `content` is the id of the first image, with
        old images first, then by key; `position` is the rank in this order, `key_position` by key, both from 1.
      near_contents: contents that have near duplicates or are unsearched; `root` is the first content of the cluster.
      related: view of all images with their content, their root, and whether the policies retain them.
      near_clusters: name and size of each near cluster.
      named: `related` with the names of the near clusters.

    The policy `drop` drops the new images of a set with an existing image; from other sets it retains the first by key.
    Policies for near duplicates apply to contents: all duplicates of an image are retained or dropped, unless the
    policy for duplicates drops some of them.
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
    """Returns the contents that have near duplicates or are unsearched, as the table `near_contents`."""
    ids, appearances = _appearances(tables, options)
    clusters = near_duplicates.find(appearances, options.near_distance)
    similar_indices = np.flatnonzero((np.bincount(clusters.roots)[clusters.roots] > 1) | clusters.unsearched)
    # Only these few contents are sorted by key. The first content of each cluster becomes its root.
    tables.insert("look_alikes", pa.table({"id": ids[similar_indices], "place": similar_indices}))
    in_order = tables.query(_IN_ORDER)
    rows, hashes, written, is_new = (column.to_numpy() for column in in_order.columns)
    _, first_rows, cluster_numbers = np.unique(clusters.roots[rows], return_index=True, return_inverse=True)
    clusters = NearClusters(roots=first_rows[cluster_numbers], unsearched=clusters.unsearched[rows])
    ids, unsearched, surplus = ids[rows], clusters.unsearched, np.zeros(len(rows), bool)
    if options.near_duplicates == "drop":
        similar = appearances.take(rows)
        surplus, unsearched = near_duplicates.find_surplus(similar, clusters, options.near_distance, written, is_new)
    columns = {
        "content": ids,
        "root": ids[clusters.roots],
        "root_hash": hashes[clusters.roots],
        "is_linked": np.bincount(clusters.roots)[clusters.roots] > 1,
        "is_surplus": surplus,
        "is_unsearched": unsearched,
    }
    return pa.table(columns)


def _appearances(tables: ImageTables, options: IngestOptions) -> tuple[np.ndarray, Appearances]:
    """Returns the ids and appearances of the contents; empty if the policy for near duplicates is `off`."""
    count = tables.number(_COUNT_CONTENTS) if options.near_duplicates != "off" else 0
    ids, appearances, end = np.empty(count, np.int64), near_duplicates.allocate(count, options.facts == "all"), 0
    contents = tables.tables(_CONTENTS.format(columns=", ".join(near_duplicates.COLUMNS)))
    for rows in contents if count else ():
        start, end = end, end + len(rows)
        ids[start:end] = rows["id"].to_numpy()
        appearances.put(start, near_duplicates.measure_facts(rows, options.facts == "all"))
    return ids, appearances
