"""JSON Schemas (draft 2020-12) of the output of `--json`, without imports of the code that makes the results.

This module has the results of the commands that run a pipeline, read models, measure the input or check a machine;
`data` has those of the commands for datasets.
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
    "Share of correct predictions on the held-back split.",
    value=share("The share."),
    low=share("Lower end of the 95 % confidence interval."),
    high=share("Upper end of the 95 % confidence interval."),
    images=whole("Number of images."),
)
_STEP = one(
    "A component.",
    component=text("Id of the component."),
    state=text("`complete`, `cached`, or another state of ML Metadata."),
    seconds=number("Duration."),
    outputs=named(text("Directory."), "Output key -> directory."),
    properties=named(named(text("Value."), "Name -> value."), "Output key -> custom text properties."),
)
_SUMMARY = one(
    "The run. When the model is not pushed the exit code is 3.",
    dataset_dir=text("Directory of the published dataset."),
    dataset=MANIFEST,
    anomalies=named(whole("Features."), "Split -> number of anomalous features."),
    findings=many(text("A sentence."), "Findings of a gate that only reports."),
    remarks=many(text("A sentence."), "Remarks of the gate, which stop nothing."),
    accuracy=_ACCURACY,
    largest_class_share=or_null(share("Accuracy of always answering with the largest class; null if not measured.")),
    baseline=or_null(
        {**_ACCURACY, "description": "Accuracy of the last blessed model on the same images; null without one."}
    ),
    blessed=truth("Whether the training succeeded and the accuracy reached its limits."),
    refused=many(text("A sentence."), "Limits that the model missed."),
    model_dir=text("Directory of the pushed model; empty when it was not pushed."),
    report=text("Path of the HTML report."),
    schema=text("Path of the schema that was used."),
    schema_inferred=truth("Whether this pipeline inferred the schema, so that it needs a review."),
    schema_named=truth("Whether the configuration names the file of the schema."),
    steps=named(_STEP, "Component -> step."),
    rates=one(
        "Images per second of the input pipeline.",
        feedline=number("Rate of this pipeline."),
        naive=number("Rate of a naive pipeline."),
        ratio=number("Ratio of the two rates."),
    ),
    input_wait=share("Share of the training time spent waiting for input."),
)
_SETTINGS = one(
    "With `--show-config`: every setting.",
    settings=anything("Settings, nested as in pipeline.yaml; secrets are `***`."),
    origin=named(text("`default`, `file NAME`, `environment NAME` or `option NAME`."), "Dotted key -> its source."),
)
_ARTIFACT = one(
    "An artifact.",
    id=whole("Id in ML Metadata."),
    type=text("Type name, such as `Examples`."),
    uri=text("Path that it was written to."),
    maker=or_null(whole("Id of the execution that made it; null when that is not part of the lineage.")),
    role=text(
        "`made`: the model was made from it; `judged`: a result of checking the model or its data; `compared`: an "
        "earlier model or dataset that a check compared them with.",
        ("made", "judged", "compared"),
    ),
    facts=named(text("Value."), "Name -> value that identifies the artifact."),
)
_ARTIFACT_IDS = named(many(whole("Artifact."), "Ids of artifacts."), "Key -> ids of artifacts.")
_EXECUTION = one(
    "An execution.",
    id=whole("Id in ML Metadata."),
    component=text("Id of the component."),
    type=text("Class of the component."),
    state=text("`complete`, or another state of ML Metadata."),
    cached=truth("Whether the run that made the model took the result from the cache."),
    run=text("Name of the run that did the work."),
    started_ms=whole("Start time in milliseconds since the epoch."),
    seconds=number("Duration."),
    code=text("Version of the code; empty when the parameters have none."),
    parameters=named({"description": "The value."}, "Name -> value."),
    inputs={**_ARTIFACT_IDS, "description": "Input key -> ids of artifacts."},
    outputs={**_ARTIFACT_IDS, "description": "Output key -> ids of artifacts."},
)
_LINEAGE = one(
    "The graph.",
    database=text("Path of the ML Metadata database."),
    note=text("Remark when MODEL was moved or is a copy; else empty."),
    unchanged_runs=many(text("Time in UTC."), "Runs in the root after the last one, which found nothing changed."),
    model=whole("Id of the artifact of MODEL."),
    pipeline=text("Name of the pipeline that made it."),
    run=text("Name of the run that made it."),
    artifacts=many(_ARTIFACT, "Artifacts in order of creation."),
    executions=many(_EXECUTION, "Executions in order of their start."),
    edges=many(
        one(
            "An edge.",
            from_=text("`artifact:ID` or `execution:ID`."),
            to=text("`artifact:ID` or `execution:ID`."),
            key=text("Key of the input or output."),
        ),
        "Edges from inputs to executions and from executions to outputs.",
    ),
)
_PREDICTION = one(
    "Prediction for a file.",
    path=text("Path of the file."),
    label=whole("Index of the most probable class."),
    text=text("Name of that class."),
    probability=share("Probability of that class."),
    labels=many(
        one(
            "A label of the image.",
            label=whole("Class index."),
            text=text("Class name."),
            probability=share("Probability of the class."),
        ),
        "That class; for a model with several labels per image, all classes over 0.5, the most probable first.",
    ),
)
_COST = {
    "images_s": number("Images per second."),
    "cpu_us": number("CPU time per image in microseconds."),
    "wall_us": number("Time per image in microseconds."),
}
_FACTS = one(
    "Conditions of the measurement.",
    dataset=text("Directory of the dataset."),
    split=text("Name of the split."),
    records=whole("Records of the split."),
    shards=whole("Shards of the split."),
    record_bytes=number("Mean size of a record."),
    policy=text("Pixel policy of the dataset.", ("copy", "resize", "raw")),
    short_px=number("Mean short side of the stored images."),
    side_px=whole("Height and width of the input of the model."),
    batch_size=whole("Images per batch."),
    ops=text("Ops of the training."),
    threads=whole("Threads of the input pipeline."),
    cores=whole("CPU cores that this process may use."),
    readers=whole("Maximum number of shards read in parallel."),
    remote=truth("Whether the shards are in an object store."),
    parse_batch=whole("Records parsed by one op."),
    device=text("Device of the training step."),
    model=text("Model of the training step; empty for none."),
    in_memory=truth("Whether the shards were read into the page cache before the measurement."),
)
_ABLATED = one(
    "The pipeline without one of its optimisations.",
    name=text("Name of the optimisation."),
    without=text("Replacement of the optimisation."),
    base=number("Images/s with it."),
    rate=number("Images/s without it."),
    base_cpu_us=number("CPU time per image with it, in microseconds."),
    cpu_us=number("CPU time per image without it, in microseconds."),
    note=text("Other effects; empty for none."),
    worth=number("Ratio of the rates with and without it."),
)
_BENCH = one(
    "The measurements.",
    facts=_FACTS,
    stages=many(
        one(
            "A stage, measured separately.",
            name=text("Name of the stage, or the op."),
            kind=text("Kind of the stage."),
            **_COST,
            up_to_here_images_s=or_null(
                number("Images/s of the pipeline up to this stage; null when it was not measured.")
            ),
        ),
        "Stages in order.",
    ),
    ops=one("All ops together.", **_COST),
    pipeline=one("The complete input pipeline.", **_COST),
    limit=one("The limit of the machine without a pipeline.", **_COST, is_=text("Description of the limit.")),
    efficiency=number("Rate of the pipeline as a share of the limit."),
    cpu_efficiency=number("The same ratio in CPU time."),
    baselines=named(
        one("A baseline.", **_COST, ratio=number("Ratio of the rate of the pipeline to it.")),
        "Name -> a pipeline written without this project.",
    ),
    trained=or_null(one("Pipeline, transfer and step together; null without `--model`.", **_COST)),
    ablation=many(_ABLATED, "Empty without `--ablation`."),
    disturbed=truth("Whether other processes used the CPU."),
    bottleneck=one(
        "The bottleneck of the pipeline.",
        stage=text("Kind of the stage."),
        sentence=text("Description with figures and a remedy."),
        option=text("Option to change, `name` or `name=value`; empty for none."),
    ),
    html=text("File of the chart; empty without `--html`."),
)

RUN_SCHEMAS: dict[str, Schema] = {
    "demo": _SUMMARY,
    "run": either(_SUMMARY, _SETTINGS),
    "lineage": _LINEAGE,
    "predict": one(
        "The predictions. When a file is refused the exit code is 3.",
        predictions=many(_PREDICTION, "Predictions in the order of the files."),
        refused=named(text("Reason."), "Path of a refused file -> reason."),
    ),
    "bench input": _BENCH,
}


_CHECK = one(
    "A check.",
    name=text("Name of the check."),
    ok=truth("Whether the check passed."),
    detail=text("The observed value."),
    remedy=text("Command that repairs a failure; empty when the check passed."),
    needed=truth("Whether the target requires it."),
    mark=text("`warn` for a failed check that is not required.", ("ok", "warn", "missing")),
)

MACHINE_SCHEMAS: dict[str, Schema] = {
    "init": one(
        "The project.",
        directory=text("Directory of the project."),
        files=many(text("Name."), "Files, relative to the directory."),
        next=text("The next command."),
    ),
    "compile": one(
        "The file.",
        target=text("Orchestrator.", ("airflow", "kubeflow")),
        file=text("Path of the file."),
        next=text("The next step, a sentence."),
    ),
    "doctor": one(
        "The checks. When something is missing the exit code is 3.",
        target=text("Target."),
        ready=truth("Whether all required checks passed."),
        checks=many(_CHECK, "Checks in the order of their repair."),
    ),
}


DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Command, without the name of the program -> schema of the result.
RESULTS: Mapping[str, Schema] = {**data.DATASET_SCHEMAS, **data.LOOK_SCHEMAS, **RUN_SCHEMAS, **MACHINE_SCHEMAS}
# The last line of standard error of a command with `--json` that fails, unless the result contains the failure.
ERROR = one(
    "The failure of a command.",
    error=one(
        "The error.",
        message=text("Message for users, with the remedy."),
        code=whole("The exit code.", 1),
        kind=text("Stable kind of the error."),
    ),
)


def result_schema(command: str) -> Schema:
    """Returns the schema of the output of a command, such as `schema diff`, with `--json`."""
    return {"$schema": DIALECT, "title": f"feedline {command} --json", **RESULTS[command]}
