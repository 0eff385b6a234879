"""Functions that build schemas, and the results of the commands that write, inspect and compare datasets.

Every key has a description. Objects allow no other keys, and all keys are required except those of `optional`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]


def text(description: str, values: Iterable[str] = ()) -> Schema:
    """Returns the schema of a string; `values` are the allowed strings, empty for any string."""
    return {"type": "string", **({"enum": list(values)} if values else {}), "description": description}


def integer(description: str, least: int | None = 0) -> Schema:
    """Returns the schema of an integer of at least `least`; None for any."""
    return {"type": "integer", **({} if least is None else {"minimum": least}), "description": description}


def number(description: str) -> Schema:
    """Returns the schema of a number."""
    return {"type": "number", "description": description}


def share(description: str) -> Schema:
    """Returns the schema of a number from 0 to 1."""
    return {"type": "number", "minimum": 0, "maximum": 1, "description": description}


def boolean(description: str) -> Schema:
    """Returns the schema of a boolean."""
    return {"type": "boolean", "description": description}


def sha256(description: str) -> Schema:
    """Returns the schema of a SHA-256 in hex."""
    return {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": description}


def array(items: Schema, description: str) -> Schema:
    """Returns the schema of an array."""
    return {"type": "array", "items": items, "description": description}


def mapping(values: Schema, description: str) -> Schema:
    """Returns the schema of an object whose keys are names from the data."""
    return {"type": "object", "additionalProperties": values, "description": description}


def any_object(description: str) -> Schema:
    """Returns the schema of an object with any keys; another page describes the keys."""
    return {"type": "object", "description": description}


def struct(description: str, /, **keys: Schema) -> Schema:
    """Returns the schema of an object with exactly these keys; a final `_`, needed for Python keywords, is removed."""
    properties = {name.rstrip("_"): schema for name, schema in keys.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "description": description,
    }


def optional(schema: Schema, *names: str) -> Schema:
    """Returns the schema with some keys optional."""
    return {**schema, "required": [name for name in schema["required"] if name not in names]}


def nullable(schema: Schema) -> Schema:
    """Returns the schema of a value or null."""
    return {"anyOf": [schema, {"type": "null"}], "description": schema["description"]}


def any_of(*schemas: Schema) -> Schema:
    """Returns the schema of an object that fits one of `schemas`; their descriptions state when they apply."""
    return {"type": "object", "anyOf": list(schemas)}


_SHARD = struct(
    "A file.",
    name=text("File name inside the directory of its split."),
    records=integer("Number of records."),
    bytes=integer("Size of the file."),
    sha256=sha256("Checksum of the file."),
)
_TABLE_PART = struct(
    "A file.",
    name=text("File name inside `images/`."),
    rows=integer("Number of rows."),
    bytes=integer("Size of the file."),
    sha256=sha256("Checksum of the file."),
    order_hashes=nullable(
        array(text("16 hex digits."), "Smallest and largest order hash of its keys; null if unsorted.")
    ),
)
_COUNTS = optional(
    struct(
        "Counts of the ingest: found = rejected + dropped + written.",
        found=integer("Entries of the source."),
        written=integer("Records in the shards."),
        rejects=mapping(integer("Images."), "Reason -> images that were rejected."),
        normalised=mapping(integer("Images."), "Reason -> images that were re-encoded."),
        duplicate_clusters=integer("Sets of images with the same bytes."),
        duplicate_images=integer("Images in those sets."),
        duplicates_dropped=integer("Copies that were dropped."),
        near_clusters=integer("Sets of near duplicates."),
        near_images=integer("Images in those sets."),
        near_dropped=integer("Images that were dropped as near duplicates."),
        label_conflicts=integer("Sets of duplicates with different labels."),
        near_unsearched=integer("Images that were not compared with all possible near duplicates; absent for none."),
    ),
    "near_unsearched",
)
_CHANNELS = struct(
    "Statistics of the pixels of the first split; null with `--facts basic`.",
    split=text("Name of the split."),
    mean_rgb=array(number("Mean."), "Mean of each channel, 0-255."),
    std_rgb=array(number("Deviation."), "Population standard deviation of each channel."),
)
_REMARKS = struct(
    "Remarks of the ingest, which are not errors.",
    warnings=array(text("A sentence."), "Warnings."),
    float32_changes=mapping(integer("Numbers."), "User column -> count of its numbers that float32 changes."),
    hidden=integer("Names that the last ingest ignored; a folder counts as one."),
    hidden_names=array(text("Path below the source; a folder ends in `/`."), "The first of these names."),
)
MANIFEST = optional(
    struct(
        "The dataset: the content of `dataset.json`.",
        format_version=integer("Version of the format on disk, 1 or 2.", 1),
        digest=sha256("Hash of the content; datasets with equal digests have the same records in the same shards."),
        checksum=sha256("Checksum of all other keys."),
        source=text("The source as given, or the last part of a local path."),
        options=any_object("Every option of the ingest that affects the output, as under `ingest` in pipeline.yaml."),
        options_digest=sha256("Digest of the options."),
        label_kind=text("Number of labels of an image: one, any number, or none.", ("single", "multi", "none")),
        labels=array(text("Name."), "Class names; the index is the label."),
        splits=mapping(
            struct(
                "A split.",
                shards=array(_SHARD, "Files of the split, in order."),
                classes=mapping(integer("Images."), "Class name -> images."),
            ),
            "Name of a split -> split.",
        ),
        counts=_COUNTS,
        channels=nullable(_CHANNELS),
        producer=mapping(text("Version."), "Package -> version that wrote the dataset."),
        tables=mapping(sha256("SHA-256."), "Name of every other file of the dataset -> checksum."),
        images=array(_TABLE_PART, "Files of the image table, in the order of its rows; absent in format 1."),
        remarks=_REMARKS,
    ),
    "images",
)
_ESTIMATE = struct(
    "With `--dry-run`: the estimate. The names of numbers contain their units.",
    source=text("The source as given."),
    out=text("Directory of the future dataset."),
    engine=text("Beam runner."),
    listing=struct(
        "Facts from the listing of the source.",
        images=integer("Images to ingest."),
        sized=integer("Images with a listed size; the others are assumed to have the mean size of the sample."),
        bytes=integer("Size of the files with a listed size."),
        rejects=integer("Images that are rejected because of their entry in the listing."),
        hidden=integer("Names that are ignored; a folder counts as one."),
        hidden_names=array(text("Path below the source; a folder ends in `/`."), "The first of these names."),
    ),
    sample=struct(
        "A sample of images that were read.",
        images=integer("Images in the sample."),
        rejected=integer("Rejected images."),
        bytes=number("Mean size of a file."),
        stored=number("Mean stored size of an accepted image, in bytes."),
        megapixels=number("Mean number of megapixels of an accepted image."),
    ),
    work=struct(
        "The amount of work.",
        images=integer("Images to ingest."),
        read_bytes=integer("Bytes of the files to read."),
        written_bytes=integer("Bytes of the shards to write."),
        buckets=integer("Work units of the examination."),
        shards=mapping(integer("Shards."), "Split -> shards to write."),
        core_seconds=number("Computing time."),
        requests=integer("Requests to an object store; 0 for local files."),
        remote=boolean("Whether images are read from an object store or a web server."),
    ),
    estimate=any_object(
        "The estimate: `seconds`, and `cores` and `start_seconds` for other runners than Dataflow; for Dataflow "
        "`workers`, `max_workers`, `worker_hours`, `vcpu_hours`, `read_requests`, `write_requests`, and, with "
        "`vcpu_hour_price`, `cost`."
    ),
)
_VERIFICATION = struct(
    "The verification. With problems the exit code is 3.",
    shards=integer("Shards read."),
    records=integer("Records read and decoded."),
    bytes=integer("Bytes read."),
    problems=array(text("A problem."), "Problems; empty when the dataset is sound."),
    leaks=array(text("A set, with an image of each split."), "Sets of related images that are in several splits."),
)
_FEATURE = struct(
    "A feature.",
    name=text("Name of the feature; `(schema)` for properties of the schema."),
    type=text("`bytes`, `int`, `float`, `struct`, or `any`."),
    presence=text("`required`, `in 90 %`, `at least 1` or `optional`."),
    shape=text("Values per record, such as `1`, `2x3` or `0-5`; `any` when the schema has no limit."),
    domain=text("Range or kind of the values; empty for any."),
    values=array(text("Value."), "Allowed texts; empty when other texts are allowed."),
    other=text("Other properties in the schema."),
)
_OLD_AND_NEW = struct("A feature that differs.", old=_FEATURE, new=_FEATURE)

_EXPORTED = struct(
    "The export: the content of `export.json`.",
    format=text("Format of the files, one of the choices of `--to`."),
    digest=sha256("Digest of the dataset."),
    labels=array(text("Name."), "Class names; the index is the label."),
    splits=mapping(
        struct(
            "A split.",
            files=array(
                struct(
                    "A file.",
                    name=text("File name, relative to the export."),
                    samples=integer("Records in it."),
                    bytes=integer("Size of the file."),
                ),
                "Files of the split, in order.",
            ),
        ),
        "Name of a split -> exported split.",
    ),
)

DATASET_SCHEMAS: dict[str, Schema] = {
    "ingest": any_of(MANIFEST, _ESTIMATE),
    "upgrade": struct(
        "The dataset.",
        upgraded=boolean("Whether the dataset had an earlier format."),
        format_version=integer("Version of its format after the command.", 1),
    ),
    "verify": _VERIFICATION,
    "export": _EXPORTED,
    "report": optional(
        struct(
            "The page.",
            report=text("Path of the file."),
            bytes=integer("Size of the file."),
            all=text("Path of the index of the pages with all images; absent without `--all`."),
        ),
        "all",
    ),
    "schema init": struct("The file.", schema=text("Path of the file."), features=integer("Number of features.")),
    "schema show": struct("The schema.", features=array(_FEATURE, "Features.")),
    "schema diff": struct(
        "The differences. With differences the exit code is 3.",
        equal=boolean("Whether the schemas are equal."),
        added=array(_FEATURE, "Features that only NEW has."),
        removed=array(_FEATURE, "Features that only OLD has."),
        changed=mapping(_OLD_AND_NEW, "Name of a feature -> its old and new properties."),
    ),
}


_SHOWN = mapping(text("The values; long ones are shortened."), "Feature -> its values.")
_RECORD = struct("With `--key`: one image.", row=any_object("Row of the image table."), features=_SHOWN)
_GUESS = struct(
    "Meaning of the features, derived from their names; empty for unknown layouts.",
    looks_like=text("Project or tool that writes records with these feature names."),
    image=text("Feature that contains the image."),
    labels=array(text("Feature."), "Features that contain the class."),
    key=text("Feature that identifies the image."),
)
_RECORD_BYTES = struct(
    "Size of a record in bytes; null without records.",
    min=integer("Minimum."),
    median=number("Median."),
    max=integer("Maximum."),
)
_FILES = struct(
    "For TFRecord files. When a file is damaged the exit code is 3.",
    path=text("The path as given."),
    compression=text("`none`, `gzip` or `zlib`, or several of them."),
    records=integer("Number of records."),
    payload_bytes=integer("Size of the records, uncompressed and without framing."),
    record_bytes=nullable(_RECORD_BYTES),
    no_examples=integer("Records that are not a `tf.train.Example`."),
    too_long=integer("Records that are too long to parse; only their checksums were verified."),
    bytes=integer("Size of all files."),
    guess=_GUESS,
    features=mapping(
        any_object("`kind` of its values, `records` that have it, `least` and `most` values of a record, and facts."),
        "Name of a feature -> feature.",
    ),
    files=array(
        struct(
            "A file.",
            path=text("Path of the file."),
            file=text("File name, relative to the given path."),
            compression=text("`none`, `gzip` or `zlib`."),
            records=integer("Number of records before any damage."),
            payload_bytes=integer("Size of the records."),
            bytes=integer("Size of the file."),
            error=text("Reason why the file was not read completely; else empty."),
        ),
        "Files.",
    ),
    first=array(_SHOWN, "The first records."),
)
_TABLE = struct(
    "For a Parquet table.",
    path=text("The path as given."),
    rows=integer("Number of rows."),
    bytes=integer("Size of the file."),
    columns=mapping(text("Arrow type."), "Name of a column -> its type."),
    reasons=mapping(
        integer("Images."), "Reason -> number of rejects, for the rejects of an ingest; empty for other tables."
    ),
    first=array(mapping(text("The value; a long one is shortened."), "Column -> its value."), "The first rows."),
)
_CHANGES = {
    "count": integer("Images."),
    "images": array(any_object("An image; its values in B have the prefix `new_`."), "The first images by key."),
}
_DIFFERENCE = struct(
    "The differences. With `--exit-code` and differences the exit code is 3.",
    equal=boolean("Whether both datasets have the same records and options."),
    digests=array(sha256("Digest."), "Digests of both datasets."),
    written=array(integer("Images."), "Number of images of both datasets."),
    added=struct("Images only in B, by key and by content.", **_CHANGES),
    removed=struct("Images only in A.", **_CHANGES),
    renamed=struct("Images with the same content and a different key.", **_CHANGES),
    relabelled=struct("Images with a different label.", **_CHANGES),
    changed=struct("Images with the same key and different stored bytes.", **_CHANGES),
    stored_otherwise=integer("Number of images in `changed` with the same bytes in the source."),
    moved=struct("Images in a different split.", **_CHANGES),
    annotated=struct("Images with different boxes, masks, weights or columns.", **_CHANGES),
    classes=mapping(
        array(
            struct(
                "A class.",
                label=text("Name of the class."),
                old=integer("Images in A."),
                new=integer("Images in B."),
                share=number("Change of its share of the split, -1 to 1."),
            ),
            "Classes with a different number of images.",
        ),
        "Split -> classes that have a different number of images.",
    ),
    facts=mapping(
        array(
            struct(
                "A fact.",
                name=text("`height`, `width`, `bytes` or `brightness`."),
                jensen_shannon=share("Jensen-Shannon divergence of the distributions."),
                old=array(number("Value."), "Minimum, median and maximum of A."),
                new=array(number("Value."), "Minimum, median and maximum of B."),
            ),
            "Facts of the images.",
        ),
        "Split -> changes of sizes and brightness.",
    ),
    options=mapping(array({"description": "A value."}, "The values in A and B."), "Dotted name -> values in A and B."),
    labels=mapping(array(text("Class."), "Classes."), "`added`, `removed`, `renumbered` -> classes."),
)

INSPECT_SCHEMAS: dict[str, Schema] = {"inspect": any_of(MANIFEST, _RECORD, _FILES, _TABLE), "diff": _DIFFERENCE}
