"""What `--json` prints, as JSON Schema (draft 2020-12). Nothing here imports what makes those results.

Here are the results of the commands that run the pipeline, look at its models and its input, or prepare a machine;
those about datasets are in `data`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.cli.json_schema import data
from pipeline.cli.json_schema.data import (
    MANIFEST,
    Schema,
    anything,
    either,
    many,
    named,
    number,
    one,
    or_null,
    share,
    text,
    truth,
    whole,
)

_ACCURACY = one(
    "Share of right answers on the held-back split.",
    value=share("The share."),
    low=share("Lower end of the 95 % interval."),
    high=share("Upper end."),
    images=whole("Number of images."),
)
_STEP = one(
    "A component.",
    component=text("Its id."),
    state=text("`complete`, `cached`, or another state of ML Metadata."),
    seconds=number("It took."),
    outputs=named(text("Directory."), "Output key -> directory."),
    properties=named(named(text("Value."), "Name -> value."), "Output key -> custom properties that are text."),
)
_SUMMARY = one(
    "The run. When the model was not pushed the exit code is 3.",
    dataset_dir=text("The published dataset."),
    dataset=MANIFEST,
    anomalies=named(whole("Features."), "Split -> anomalous features."),
    findings=many(text("A sentence."), "What a gate that only reports found."),
    accuracy=_ACCURACY,
    baseline=or_null(
        {**_ACCURACY, "description": "Of the model blessed before on the same images; null for a first one."}
    ),
    blessed=truth("Whether the training ended well and the accuracy reached its limits."),
    refused=many(text("A sentence."), "Every limit that the model missed."),
    model_dir=text("The pushed model; empty when it was not pushed."),
    report=text("The HTML report."),
    schema=text("File of the schema that was used."),
    schema_inferred=truth("Whether this pipeline inferred it, so that it waits for a reader."),
    schema_named=truth("Whether the configuration names its file."),
    steps=named(_STEP, "Component -> how it went."),
    rates=one(
        "Images per second of the input pipeline.",
        feedline=number("Of this one."),
        naive=number("Of the naive one."),
        ratio=number("How many times faster it is."),
    ),
    input_wait=share("Share of the time of the training steps that they waited for input."),
)
_SETTINGS = one(
    "With `--show-config`: every setting.",
    settings=anything("Nested as in pipeline.yaml; secrets are `***`."),
    origin=named(text("`default`, `file NAME`, `environment NAME` or `option NAME`."), "Dotted key -> its layer."),
)
_ARTIFACT = one(
    "An artifact.",
    id=whole("Its number in ML Metadata."),
    type=text("Such as `Examples`."),
    uri=text("Where it was written."),
    maker=or_null(whole("Execution that made it; null when that is not part of the lineage.")),
    role=text(
        "`made` when the model came from it, `judged` when it says something about the model or its data, `compared` "
        "when a judgement compared them with it.",
        ("made", "judged", "compared"),
    ),
    facts=named(text("Value."), "What identifies it."),
)
_NUMBERS = named(many(whole("Artifact."), "Numbers of artifacts."), "Key -> numbers of artifacts.")
_EXECUTION = one(
    "An execution.",
    id=whole("Its number in ML Metadata."),
    component=text("Id of the component."),
    type=text("Class of the component."),
    state=text("`complete`, or another state of ML Metadata."),
    cached=truth("Whether the run that made the model took the result from the cache."),
    run=text("Name of the run that did the work."),
    started_ms=whole("Since the epoch."),
    seconds=number("It took."),
    code=text("Version of the code; empty when none was given."),
    parameters=named({"description": "The value."}, "Name -> value."),
    inputs={**_NUMBERS, "description": "Input key -> numbers of artifacts."},
    outputs={**_NUMBERS, "description": "Output key -> numbers of artifacts."},
)
_LINEAGE = one(
    "The graph.",
    database=text("Of ML Metadata."),
    note=text("What to know about how MODEL was found; empty for nothing."),
    model=whole("Number of the artifact that was asked for."),
    pipeline=text("Name of the pipeline that made it."),
    run=text("Name of the run that made it."),
    artifacts=many(_ARTIFACT, "In order of their making."),
    executions=many(_EXECUTION, "In order of their start."),
    edges=many(
        one(
            "An edge.",
            from_=text("`artifact:ID` or `execution:ID`."),
            to=text("The other."),
            key=text("Of the input or output."),
        ),
        "From what was read or ran to what ran or was made.",
    ),
)
_PREDICTION = one(
    "What the model says about one file.",
    path=text("Of the file."),
    label=whole("Index of the likeliest class."),
    text=text("Its name."),
    probability=share("Of that class."),
    labels=many(
        one(
            "A label of the image.",
            label=whole("Class index."),
            text=text("Class name."),
            probability=share("Of that class."),
        ),
        "That class; of a model of several labels an image, every class over 0.5, the most probable first.",
    ),
)
_COST = {
    "images_s": number("Images per second."),
    "cpu_us": number("Microseconds of CPU an image."),
    "wall_us": number("Microseconds an image."),
}
_FACTS = one(
    "What was measured on what.",
    dataset=text("Directory."),
    split=text("Name of the split."),
    records=whole("In the split."),
    shards=whole("Of the split."),
    record_bytes=number("Mean size of a record."),
    policy=text("What the ingest made of the pixels.", ("copy", "resize", "raw")),
    short_px=number("Mean short side of the stored images."),
    side_px=whole("Height and width of what the model sees."),
    batch_size=whole("Images a batch."),
    ops=text("Chain of training."),
    threads=whole("Of the input pipeline."),
    cores=whole("That this process may use."),
    readers=whole("Shards read at a time, at most."),
    remote=truth("Whether the shards lie in an object store."),
    parse_batch=whole("Records parsed by one op."),
    device=text("Of the step."),
    model=text("Of the step; empty for none."),
    in_memory=truth("Whether the shards were read into the page cache before."),
)
_ABLATED = one(
    "The pipeline without one of its optimisations.",
    name=text("What was removed."),
    without=text("What is done instead."),
    base=number("Images/s with it."),
    rate=number("Images/s without it."),
    base_cpu_us=number("Microseconds of CPU an image with it."),
    cpu_us=number("Without it."),
    note=text("What else it is worth; empty for nothing."),
    worth=number("How many times faster the pipeline is with it."),
)
_BENCH = one(
    "The measurements.",
    facts=_FACTS,
    stages=many(
        one(
            "A stage alone.",
            name=text("Of the stage, or the op as it is spelled."),
            kind=text("Of the stage."),
            **_COST,
            up_to_here_images_s=or_null(number("Of the pipeline up to this stage; null when it was not measured.")),
        ),
        "In order.",
    ),
    ops=one("All ops together.", **_COST),
    pipeline=one("The whole input pipeline.", **_COST),
    limit=one("What the machine does without a pipeline.", **_COST, is_=text("What that is.")),
    efficiency=number("Rate of the pipeline as a share of the limit."),
    cpu_efficiency=number("The same in CPU time."),
    baselines=named(
        one("A baseline.", **_COST, ratio=number("How many times faster the pipeline is.")),
        "Name -> what people write without this project.",
    ),
    trained=or_null(one("Pipeline, transfer and step together; null without `--model`.", **_COST)),
    ablation=many(_ABLATED, "Empty without `--ablation`."),
    disturbed=truth("Whether other processes took part of the machine."),
    bottleneck=one(
        "What limits the pipeline.",
        stage=text("A kind of stage."),
        sentence=text("That, with figures, and what to do about it."),
        option=text("The option to change, `name` or `name=value`; empty when none helps."),
    ),
    html=text("File of the chart; empty without `--html`."),
)

RUN_SCHEMAS: dict[str, Schema] = {
    "demo": _SUMMARY,
    "run": either(_SUMMARY, _SETTINGS),
    "lineage": _LINEAGE,
    "predict": one(
        "The answers. When files are left out the exit code is 3.",
        predictions=many(_PREDICTION, "In the order of the files."),
        refused=named(text("Reason."), "Path of a file that was left out -> why."),
    ),
    "bench input": _BENCH,
}


_CHECK = one(
    "One thing that was looked at.",
    name=text("What it is."),
    ok=truth("Whether it is as it should be."),
    detail=text("The value that was found."),
    remedy=text("The command that repairs it; empty when it is ok."),
    needed=truth("Whether the target cannot work without."),
    mark=text("`warn` for what is not ok and not needed.", ("ok", "warn", "missing")),
)

MACHINE_SCHEMAS: dict[str, Schema] = {
    "init": one(
        "What was written.",
        directory=text("Where."),
        files=many(text("Name."), "Files, relative to it."),
        next=text("The command to go on with."),
    ),
    "compile": one(
        "What was written.",
        target=text("Orchestrator.", ("airflow", "kubeflow")),
        file=text("Path of the file."),
        next=text("What to do with it, a sentence."),
    ),
    "doctor": one(
        "What was looked at. When something is missing the exit code is 3.",
        target=text("Where it is to run."),
        ready=truth("Whether nothing that is needed is missing."),
        checks=many(_CHECK, "In the order in which to repair them."),
    ),
}


DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Command, without the name of the program -> what its result is.
RESULTS: Mapping[str, Schema] = {**data.DATASET_SCHEMAS, **data.LOOK_SCHEMAS, **RUN_SCHEMAS, **MACHINE_SCHEMAS}
# On standard error, its last line, when `--json` was given and the exit code is not 0 and stands in no result.
ERROR = one(
    "Why a command ended.",
    error=one(
        "The mistake.",
        message=text("For people, with the remedy."),
        code=whole("The exit code.", 1),
        kind=text("For machines."),
    ),
)


def result_schema(command: str) -> Schema:
    """Returns the schema of what a command, such as `schema diff`, prints with `--json`."""
    return {"$schema": DIALECT, "title": f"feedline {command} --json", **RESULTS[command]}
