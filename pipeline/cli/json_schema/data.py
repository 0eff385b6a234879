"""Results of the commands that make datasets and look at them."""

from __future__ import annotations

from pipeline.cli.json_schema.parts import (
    Schema,
    anything,
    either,
    many,
    may_lack,
    named,
    number,
    one,
    or_null,
    sha256,
    text,
    truth,
    whole,
)

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

SCHEMAS: dict[str, Schema] = {
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
