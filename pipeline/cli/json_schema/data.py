"""Parts of schemas, and the results of the commands that make datasets, look at them and compare them.

Every key has a meaning; objects are closed, and lack no key but those they `may_lack`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]


def text(meaning: str, values: Iterable[str] = ()) -> Schema:
    """Returns a text, one of `values` when there are any."""
    return {"type": "string", **({"enum": list(values)} if values else {}), "description": meaning}


def whole(meaning: str, least: int | None = 0) -> Schema:
    """Returns a whole number of at least `least`; None for any."""
    return {"type": "integer", **({} if least is None else {"minimum": least}), "description": meaning}


def number(meaning: str) -> Schema:
    """Returns a number."""
    return {"type": "number", "description": meaning}


def share(meaning: str) -> Schema:
    """Returns a number from 0 to 1."""
    return {"type": "number", "minimum": 0, "maximum": 1, "description": meaning}


def truth(meaning: str) -> Schema:
    """Returns true or false."""
    return {"type": "boolean", "description": meaning}


def sha256(meaning: str) -> Schema:
    """Returns a SHA-256 in hex."""
    return {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": meaning}


def many(items: Schema, meaning: str) -> Schema:
    """Returns an array."""
    return {"type": "array", "items": items, "description": meaning}


def named(values: Schema, meaning: str) -> Schema:
    """Returns an object whose keys are names from the data."""
    return {"type": "object", "additionalProperties": values, "description": meaning}


def anything(meaning: str) -> Schema:
    """Returns an object whose keys another page describes."""
    return {"type": "object", "description": meaning}


def one(meaning: str, /, **keys: Schema) -> Schema:
    """Returns an object of exactly these keys; a `_` at the end of a name is left out, for words of Python."""
    properties = {name.rstrip("_"): schema for name, schema in keys.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "description": meaning,
    }


def may_lack(schema: Schema, *names: str) -> Schema:
    """Returns an object whose keys are all there but for some that may be absent."""
    return {**schema, "required": [name for name in schema["required"] if name not in names]}


def or_null(schema: Schema) -> Schema:
    """Returns what may also be null."""
    return {"anyOf": [schema, {"type": "null"}], "description": schema["description"]}


def either(*schemas: Schema) -> Schema:
    """Returns a choice; the description of each says when it is taken."""
    return {"type": "object", "anyOf": list(schemas)}


_SHARD = one(
    "A file.",
    name=text("File name inside the directory of its split."),
    records=whole("Number of records."),
    bytes=whole("Size of the file."),
    sha256=sha256("Of the file."),
)
_COUNTS = may_lack(
    one(
        "What became of every image: found = rejected + dropped + written.",
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
    "What the ingest noticed and went on with.",
    warnings=many(text("A sentence."), "For people."),
    float32_changes=named(whole("Numbers."), "User column -> its numbers that the float32 of a record changes."),
    hidden=whole("Names that the last ingest passed over; a folder counts once, whatever it holds."),
    hidden_names=many(text("Path below the source; a folder ends in `/`."), "The first of them."),
)
MANIFEST = one(
    "The dataset: the content of `dataset.json`.",
    format_version=whole("Version of the disk contract.", 1),
    digest=sha256("Identity of the content; equal digests hold the same records."),
    checksum=sha256("Of everything else in here."),
    source=text("The source as it was named; the last part of it for a local one."),
    options=anything("Every option of the ingest that shapes the output, as under `ingest` in pipeline.yaml."),
    options_digest=sha256("Of those options."),
    label_kind=text("How many labels an image has: one, any number, or none.", ("single", "multi", "none")),
    labels=many(text("Name."), "Class names; the index is the label."),
    splits=named(
        one(
            "A split.",
            shards=many(_SHARD, "Its files, in order."),
            classes=named(whole("Images."), "Class name -> images."),
        ),
        "Name of a split -> what it holds.",
    ),
    counts=_COUNTS,
    channels=or_null(_CHANNELS),
    producer=named(text("Version."), "Package -> version that wrote it."),
    tables=named(sha256("SHA-256."), "Name of every other file -> its checksum."),
    remarks=_REMARKS,
)
_ESTIMATE = one(
    "With `--dry-run`: what would be done. Numbers are in the unit that their name says.",
    source=text("As it was named."),
    out=text("Directory that would become the dataset."),
    engine=text("Where Beam would run."),
    listing=one(
        "What the listing of the source tells.",
        images=whole("To ingest."),
        sized=whole("Images whose size it tells; that of the others is that of the sample."),
        bytes=whole("Of the files of those."),
        rejects=whole("Images that would be rejected unopened."),
        hidden=whole("Names that are passed over; a folder counts once, whatever it holds."),
        hidden_names=many(text("Path below the source; a folder ends in `/`."), "The first of them."),
    ),
    sample=one(
        "Some images that were read.",
        images=whole("Looked at."),
        rejected=whole("Of them."),
        bytes=number("Mean size of a file."),
        stored=number("Mean bytes of what would be stored of a good one."),
        megapixels=number("Mean of the good ones."),
    ),
    work=one(
        "What there is to do.",
        images=whole("To ingest."),
        read_bytes=whole("Of their files."),
        written_bytes=whole("Of the shards."),
        buckets=whole("Units of examining."),
        shards=named(whole("Shards."), "Split -> shards to write."),
        core_seconds=number("Of computing."),
        requests=whole("To an object store; 0 for local files."),
        remote=truth("Whether images are read from an object store or a web server."),
    ),
    estimate=anything(
        "What it takes: `seconds`, and `cores` and `start_seconds` on machines of your own; on Dataflow `workers`, "
        "`max_workers`, `worker_hours`, `vcpu_hours`, `write_requests`, and, with `vcpu_hour_price`, `cost`."
    ),
)
_VERIFICATION = one(
    "What was read. With problems the exit code is 3.",
    shards=whole("Shards read."),
    records=whole("Records read and decoded."),
    bytes=whole("Bytes read."),
    problems=many(text("One problem."), "What is wrong; empty when the dataset is sound."),
    leaks=many(text("One set, and an image of it in each split."), "Images that belong together, in several splits."),
)
_FEATURE = one(
    "A feature.",
    name=text("Of the feature; `(schema)` for facts about the schema as a whole."),
    type=text("`bytes`, `int`, `float`, `struct`, or `any`."),
    presence=text("`required`, `in 90 %`, `at least 1` or `optional`."),
    shape=text("Values a record, such as `1`, `2x3` or `0-5`; `any` when the schema does not say."),
    domain=text("Range or kind of the values; empty for any."),
    values=many(text("Value."), "Closed set of texts; empty unless the domain is one."),
    other=text("Everything else that the schema says."),
)
_BOTH = one("A feature that differs.", old=_FEATURE, new=_FEATURE)

_EXPORTED = one(
    "What was exported: the content of `export.json`.",
    format=text("Of the files, one of the choices of `--to`."),
    digest=sha256("Of the dataset."),
    labels=many(text("Name."), "Class names; the index is the label."),
    splits=named(
        one(
            "A split.",
            files=many(
                one(
                    "A file.",
                    name=text("Relative to the export."),
                    samples=whole("Records in it."),
                    bytes=whole("Its size."),
                ),
                "Its files, in order.",
            ),
        ),
        "Name of a split -> what was written of it.",
    ),
)

DATASET_SCHEMAS: dict[str, Schema] = {
    "ingest": either(MANIFEST, _ESTIMATE),
    "verify": _VERIFICATION,
    "export": _EXPORTED,
    "report": one("The page.", report=text("Path of the file."), bytes=whole("Its size.")),
    "schema init": one("The file.", schema=text("Its path."), features=whole("Features in it.")),
    "schema show": one("The schema.", features=many(_FEATURE, "A row a feature.")),
    "schema diff": one(
        "What differs. With differences the exit code is 3.",
        equal=truth("Whether nothing differs."),
        added=many(_FEATURE, "Features that only NEW has."),
        removed=many(_FEATURE, "Features that only OLD has."),
        changed=named(_BOTH, "Name of a feature -> how it was and is."),
    ),
}


_SHOWN = named(text("The values, shortened where they are long."), "Feature -> its values.")
_RECORD = one("With `--key`: one image.", row=anything("Its row of `images.parquet`."), features=_SHOWN)
_GUESS = one(
    "What the features are by their names; empty where no well-known layout has them.",
    looks_like=text("Who writes records with these names."),
    image=text("Feature that holds the image."),
    labels=many(text("Feature."), "Features that hold the class."),
    key=text("Feature that holds the identity of the image."),
)
_RECORD_BYTES = one(
    "Bytes of a record; null without any.",
    min=whole("Least."),
    median=number("Middle."),
    max=whole("Greatest."),
)
_FILES = one(
    "Of TFRecord files. When one is damaged the exit code is 3.",
    path=text("As it was given."),
    compression=text("`none`, `gzip` or `zlib`, or several of them."),
    records=whole("Number of records."),
    payload_bytes=whole("Of the records, unpacked and without their framing."),
    record_bytes=or_null(_RECORD_BYTES),
    no_examples=whole("Records that are no `tf.train.Example`."),
    too_long=whole("Records that were only checked."),
    bytes=whole("Of all files."),
    guess=_GUESS,
    features=named(
        anything("`kind` of its values, `records` that have it, `least` and `most` values, and what is known of them."),
        "Name of a feature -> what it is.",
    ),
    files=many(
        one(
            "A file.",
            path=text("Of the file."),
            file=text("Its name, relative to what was given."),
            compression=text("`none`, `gzip` or `zlib`."),
            records=whole("Number of records, up to where it is damaged."),
            payload_bytes=whole("Of the records."),
            bytes=whole("Size of the file."),
            error=text("Why it was not read to its end; empty when it was."),
        ),
        "Each of them.",
    ),
    first=many(_SHOWN, "The first records."),
)
_TABLE = one(
    "Of a Parquet table.",
    path=text("As it was given."),
    rows=whole("Number of rows."),
    bytes=whole("Of the file."),
    columns=named(text("Type, as Arrow calls it."), "Name of a column -> its type."),
    reasons=named(whole("Images."), "Reason -> rejects, of the rejects of an ingest; empty for other tables."),
    first=many(named(text("The value, shortened where it is long."), "Column -> its value."), "The first rows."),
)
_CHANGES = {
    "count": whole("Images."),
    "images": many(anything("An image; values of B are named `new_...`."), "The first of them by their key."),
}
_DIFFERENCE = one(
    "What changed. With `--exit-code` and differences the exit code is 3.",
    equal=truth("Whether both hold the same bytes and were made with the same options."),
    digests=many(sha256("Digest."), "Of both."),
    written=many(whole("Images."), "Of both."),
    added=one("Only B has them, by key and by content.", **_CHANGES),
    removed=one("Only A has them.", **_CHANGES),
    renamed=one("The same content under another key.", **_CHANGES),
    relabelled=one("Another label.", **_CHANGES),
    changed=one("The same key, other bytes are stored.", **_CHANGES),
    stored_otherwise=whole("Those of `changed` whose source has the same bytes."),
    moved=one("Another split.", **_CHANGES),
    annotated=one("Other boxes, masks, weights or columns.", **_CHANGES),
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
                jensen_shannon=share("How far the distributions lie apart."),
                old=many(number("Value."), "Least, middle and greatest of A."),
                new=many(number("Value."), "Least, middle and greatest of B."),
            ),
            "Numbers of the images.",
        ),
        "Split -> how sizes and brightness changed.",
    ),
    options=named(many({"description": "A value."}, "Both values."), "Dotted name -> both values."),
    labels=named(many(text("Class."), "Classes."), "`added`, `removed`, `renumbered` -> classes."),
)

LOOK_SCHEMAS: dict[str, Schema] = {"inspect": either(MANIFEST, _RECORD, _FILES, _TABLE), "diff": _DIFFERENCE}
