"""Functions that build schemas, and the results of the commands that write, inspect and compare datasets.

Every key has a description. Objects allow no other keys, and all keys are required except those of `optional`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]


def text(meaning: str, values: Iterable[str] = ()) -> Schema:
    """Returns the schema of a string; `values` are the allowed strings, if limited."""
    return {"type": "string", **({"enum": list(values)} if values else {}), "description": meaning}


def whole(meaning: str, least: int | None = 0) -> Schema:
    """Returns the schema of an integer of at least `least`; None for any."""
    return {"type": "integer", **({} if least is None else {"minimum": least}), "description": meaning}


def number(meaning: str) -> Schema:
    """Returns the schema of a number."""
    return {"type": "number", "description": meaning}


def share(meaning: str) -> Schema:
    """Returns the schema of a number from 0 to 1."""
    return {"type": "number", "minimum": 0, "maximum": 1, "description": meaning}


def truth(meaning: str) -> Schema:
    """Returns the schema of a boolean."""
    return {"type": "boolean", "description": meaning}


def sha256(meaning: str) -> Schema:
    """Returns the schema of a SHA-256 in hex."""
    return {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": meaning}


def many(items: Schema, meaning: str) -> Schema:
    """Returns the schema of an array."""
    return {"type": "array", "items": items, "description": meaning}


def named(values: Schema, meaning: str) -> Schema:
    """Returns the schema of an object whose keys are names from the data."""
    return {"type": "object", "additionalProperties": values, "description": meaning}


def anything(meaning: str) -> Schema:
    """Returns the schema of an object whose keys another page describes."""
    return {"type": "object", "description": meaning}


def one(meaning: str, /, **keys: Schema) -> Schema:
    """Returns the schema of an object of exactly these keys; a final `_`, for keywords of Python, is removed."""
    properties = {name.rstrip("_"): schema for name, schema in keys.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "description": meaning,
    }


def optional(schema: Schema, *names: str) -> Schema:
    """Returns the schema with some keys optional."""
    return {**schema, "required": [name for name in schema["required"] if name not in names]}


def or_null(schema: Schema) -> Schema:
    """Returns the schema of a value or null."""
    return {"anyOf": [schema, {"type": "null"}], "description": schema["description"]}


def either(*schemas: Schema) -> Schema:
    """Returns the schema of a choice; the description of each schema says when it applies."""
    return {"type": "object", "anyOf": list(schemas)}


_SHARD = one(
    "A file.",
    name=text("File name inside the directory of its split."),
    records=whole("Number of records."),
    bytes=whole("Size of the file."),
    sha256=sha256("Checksum of the file."),
)
_TABLE_PART = one(
    "A file.",
    name=text("File name inside `images/`."),
    rows=whole("Number of rows."),
    bytes=whole("Size of the file."),
    sha256=sha256("Checksum of the file."),
    order_hashes=or_null(
        many(text("16 hex digits."), "Smallest and largest order hash of its keys; null in any order.")
    ),
)
_COUNTS = optional(
    one(
        "Counts of the ingest: found = rejected + dropped + written.",
        found=whole("Entries of the source."),
        written=whole("Records in the shards."),
        rejects=named(whole("Images."), "Reason -> images that were rejected."),
        normalised=named(whole("Images."), "Reason -> images that were re-encoded."),
        duplicate_clusters=whole("Sets of images with the same bytes."),
        duplicate_images=whole("Images in those sets."),
        duplicates_dropped=whole("Copies left out."),
        near_clusters=whole("Sets of images that look alike."),
        near_images=whole("Images in those sets."),
        near_dropped=whole("Images left out as near duplicates."),
        label_conflicts=whole("Duplicate sets whose copies carry different labels."),
        near_unsearched=whole("Images not compared with all that may look like them; absent for none."),
    ),
    "near_unsearched",
)
_CHANNELS = one(
    "Statistics of the pixels of the first split; null with `--facts basic`.",
    split=text("Name of the split."),
    mean_rgb=many(number("Mean."), "Mean of each channel, 0-255."),
    std_rgb=many(number("Deviation."), "Population standard deviation of each channel."),
)
_REMARKS = one(
    "Remarks of the ingest that are no errors.",
    warnings=many(text("A sentence."), "Warnings."),
    float32_changes=named(whole("Numbers."), "User column -> its numbers that the float32 of a record changes."),
    hidden=whole("Names that the last ingest ignored; a folder counts as one."),
    hidden_names=many(text("Path below the source; a folder ends in `/`."), "The first of these names."),
)
MANIFEST = optional(
    one(
        "The dataset: the content of `dataset.json`.",
        format_version=whole("Version of the format on disk, 1 or 2.", 1),
        digest=sha256("Identity of the content; equal digests hold the same records."),
        checksum=sha256("Checksum of all other keys."),
        source=text("The source as given; of a local path, the last part."),
        options=anything("Every option of the ingest that shapes the output, as under `ingest` in pipeline.yaml."),
        options_digest=sha256("Digest of the options."),
        label_kind=text("How many labels an image has: one, any number, or none.", ("single", "multi", "none")),
        labels=many(text("Name."), "Class names; the index is the label."),
        splits=named(
            one(
                "A split.",
                shards=many(_SHARD, "Its files, in order."),
                classes=named(whole("Images."), "Class name -> images."),
            ),
            "Name of a split -> split.",
        ),
        counts=_COUNTS,
        channels=or_null(_CHANNELS),
        producer=named(text("Version."), "Package -> version that wrote it."),
        tables=named(sha256("SHA-256."), "Name of every other file -> its checksum."),
        images=many(_TABLE_PART, "Files of the image table, in the order of its rows; absent in format 1."),
        remarks=_REMARKS,
    ),
    "images",
)
_ESTIMATE = one(
    "With `--dry-run`: the estimate. The names of numbers contain their units.",
    source=text("The source as given."),
    out=text("Directory that would become the dataset."),
    engine=text("Beam runner."),
    listing=one(
        "Facts from the listing of the source.",
        images=whole("Images to ingest."),
        sized=whole("Images with a listed size; the others are assumed to have the mean size of the sample."),
        bytes=whole("Size of the files with a listed size."),
        rejects=whole("Images that are rejected without being opened."),
        hidden=whole("Names that are ignored; a folder counts as one."),
        hidden_names=many(text("Path below the source; a folder ends in `/`."), "The first of these names."),
    ),
    sample=one(
        "A sample of images that were read.",
        images=whole("Images in the sample."),
        rejected=whole("Rejected images."),
        bytes=number("Mean size of a file."),
        stored=number("Mean stored size of an accepted image, in bytes."),
        megapixels=number("Mean number of megapixels of an accepted image."),
    ),
    work=one(
        "The amount of work.",
        images=whole("Images to ingest."),
        read_bytes=whole("Bytes of the files to read."),
        written_bytes=whole("Bytes of the shards to write."),
        buckets=whole("Work units of the examination."),
        shards=named(whole("Shards."), "Split -> shards to write."),
        core_seconds=number("Computing time."),
        requests=whole("Requests to an object store; 0 for local files."),
        remote=truth("Whether images are read from an object store or a web server."),
    ),
    estimate=anything(
        "The estimate: `seconds`, and `cores` and `start_seconds` for other runners than Dataflow; for Dataflow "
        "`workers`, `max_workers`, `worker_hours`, `vcpu_hours`, `read_requests`, `write_requests`, and, with "
        "`vcpu_hour_price`, `cost`."
    ),
)
_VERIFICATION = one(
    "The verification. With problems the exit code is 3.",
    shards=whole("Shards read."),
    records=whole("Records read and decoded."),
    bytes=whole("Bytes read."),
    problems=many(text("A problem."), "Problems; empty when the dataset is sound."),
    leaks=many(text("A set, with an image of each split."), "Sets of related images in several splits."),
)
_FEATURE = one(
    "A feature.",
    name=text("Name of the feature; `(schema)` for properties of the schema."),
    type=text("`bytes`, `int`, `float`, `struct`, or `any`."),
    presence=text("`required`, `in 90 %`, `at least 1` or `optional`."),
    shape=text("Values per record, such as `1`, `2x3` or `0-5`; `any` when the schema has no limit."),
    domain=text("Range or kind of the values; empty for any."),
    values=many(text("Value."), "Allowed texts; empty when other texts are allowed."),
    other=text("All other properties in the schema."),
)
_BOTH = one("A feature that differs.", old=_FEATURE, new=_FEATURE)

_EXPORTED = one(
    "The export: the content of `export.json`.",
    format=text("Format of the files, one of the choices of `--to`."),
    digest=sha256("Digest of the dataset."),
    labels=many(text("Name."), "Class names; the index is the label."),
    splits=named(
        one(
            "A split.",
            files=many(
                one(
                    "A file.",
                    name=text("Relative to the export."),
                    samples=whole("Records in it."),
                    bytes=whole("Size of the file."),
                ),
                "Its files, in order.",
            ),
        ),
        "Name of a split -> exported split.",
    ),
)

DATASET_SCHEMAS: dict[str, Schema] = {
    "ingest": either(MANIFEST, _ESTIMATE),
    "upgrade": one(
        "The dataset.",
        upgraded=truth("Whether it was of an earlier format."),
        format_version=whole("Version of its format now.", 1),
    ),
    "verify": _VERIFICATION,
    "export": _EXPORTED,
    "report": optional(
        one(
            "The page.",
            report=text("Path of the file."),
            bytes=whole("Size of the file."),
            all=text("Path of the index of the pages with all images; absent without `--all`."),
        ),
        "all",
    ),
    "schema init": one("The file.", schema=text("Path of the file."), features=whole("Number of features.")),
    "schema show": one("The schema.", features=many(_FEATURE, "Features.")),
    "schema diff": one(
        "The differences. With differences the exit code is 3.",
        equal=truth("Whether the schemas are equal."),
        added=many(_FEATURE, "Features that only NEW has."),
        removed=many(_FEATURE, "Features that only OLD has."),
        changed=named(_BOTH, "Name of a feature -> its old and new properties."),
    ),
}


_SHOWN = named(text("The values; long ones are shortened."), "Feature -> its values.")
_RECORD = one("With `--key`: one image.", row=anything("Its row of the image table."), features=_SHOWN)
_GUESS = one(
    "Meaning of the features by their names; empty for unknown layouts.",
    looks_like=text("Project or tool that writes records with these names."),
    image=text("Feature that holds the image."),
    labels=many(text("Feature."), "Features that hold the class."),
    key=text("Feature that identifies the image."),
)
_RECORD_BYTES = one(
    "Size of a record in bytes; null without records.",
    min=whole("Minimum."),
    median=number("Median."),
    max=whole("Maximum."),
)
_FILES = one(
    "For TFRecord files. When a file is damaged the exit code is 3.",
    path=text("The path as given."),
    compression=text("`none`, `gzip` or `zlib`, or several of them."),
    records=whole("Number of records."),
    payload_bytes=whole("Size of the records, uncompressed and without framing."),
    record_bytes=or_null(_RECORD_BYTES),
    no_examples=whole("Records that are not a `tf.train.Example`."),
    too_long=whole("Records that are too long to parse; only their checksums were verified."),
    bytes=whole("Size of all files."),
    guess=_GUESS,
    features=named(
        anything("`kind` of its values, `records` that have it, `least` and `most` values, and facts about them."),
        "Name of a feature -> feature.",
    ),
    files=many(
        one(
            "A file.",
            path=text("Path of the file."),
            file=text("Its name, relative to the given path."),
            compression=text("`none`, `gzip` or `zlib`."),
            records=whole("Number of records before any damage."),
            payload_bytes=whole("Size of the records."),
            bytes=whole("Size of the file."),
            error=text("Reason why the file was not read completely; else empty."),
        ),
        "Files.",
    ),
    first=many(_SHOWN, "The first records."),
)
_TABLE = one(
    "For a Parquet table.",
    path=text("The path as given."),
    rows=whole("Number of rows."),
    bytes=whole("Size of the file."),
    columns=named(text("Arrow type."), "Name of a column -> its type."),
    reasons=named(
        whole("Images."), "Reason -> number of rejects, for the rejects of an ingest; empty for other tables."
    ),
    first=many(named(text("The value; a long one is shortened."), "Column -> its value."), "The first rows."),
)
_CHANGES = {
    "count": whole("Images."),
    "images": many(anything("An image; names of values of B are `new_...`."), "The first images by key."),
}
_DIFFERENCE = one(
    "The differences. With `--exit-code` and differences the exit code is 3.",
    equal=truth("Whether both have the same bytes and options."),
    digests=many(sha256("Digest."), "Digests of both datasets."),
    written=many(whole("Images."), "Number of images of both datasets."),
    added=one("Images only in B, by key and by content.", **_CHANGES),
    removed=one("Images only in A.", **_CHANGES),
    renamed=one("Images with the same content and another key.", **_CHANGES),
    relabelled=one("Images with another label.", **_CHANGES),
    changed=one("Images with the same key and other stored bytes.", **_CHANGES),
    stored_otherwise=whole("Number of images in `changed` whose source has the same bytes."),
    moved=one("Images in another split.", **_CHANGES),
    annotated=one("Images with other boxes, masks, weights or columns.", **_CHANGES),
    classes=named(
        many(
            one(
                "A class.",
                label=text("Its name."),
                old=whole("Images in A."),
                new=whole("Images in B."),
                share=number("Change of its share of the split, -1 to 1."),
            ),
            "Classes with another number of images.",
        ),
        "Split -> classes that have another number of images.",
    ),
    facts=named(
        many(
            one(
                "A number.",
                name=text("`height`, `width`, `bytes` or `brightness`."),
                jensen_shannon=share("Jensen-Shannon divergence of the distributions."),
                old=many(number("Value."), "Minimum, median and maximum of A."),
                new=many(number("Value."), "Minimum, median and maximum of B."),
            ),
            "Numbers of the images.",
        ),
        "Split -> changes of sizes and brightness.",
    ),
    options=named(many({"description": "A value."}, "Both values."), "Dotted name -> both values."),
    labels=named(many(text("Class."), "Classes."), "`added`, `removed`, `renumbered` -> classes."),
)

LOOK_SCHEMAS: dict[str, Schema] = {"inspect": either(MANIFEST, _RECORD, _FILES, _TABLE), "diff": _DIFFERENCE}
