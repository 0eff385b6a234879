"""Results of `feedline inspect` and `feedline diff`."""

from __future__ import annotations

from pipeline.cli.json_schema.data import MANIFEST
from pipeline.cli.json_schema.parts import (
    Schema,
    anything,
    either,
    many,
    named,
    number,
    one,
    or_null,
    sha256,
    share,
    text,
    truth,
    whole,
)

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

SCHEMAS: dict[str, Schema] = {"inspect": either(MANIFEST, _RECORD, _FILES, _TABLE), "diff": _DIFFERENCE}
