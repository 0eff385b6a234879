"""JSON Schemas (draft 2020-12) of the output of `--json`, without imports of the code that computes the results.

This module has the schemas of the commands that run a pipeline, read models, measure the input or check a machine;
`data` has the schemas of the commands for datasets.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.cli.json_schema import data
from pipeline.cli.json_schema.data import (
    MANIFEST,
    Schema,
    any_object,
    any_of,
    array,
    boolean,
    integer,
    mapping,
    nullable,
    number,
    share,
    struct,
    text,
)

_ACCURACY = struct(
    "Share of correct predictions on the held-back split.",
    value=share("The share."),
    low=share("Lower end of the 95 % confidence interval."),
    high=share("Upper end of the 95 % confidence interval."),
    images=integer("Number of images."),
)
_STEP = struct(
    "A component.",
    component=text("Id of the component."),
    state=text("`complete`, `cached`, or another state of ML Metadata."),
    seconds=number("Duration."),
    outputs=mapping(text("Directory."), "Output key -> directory."),
    properties=mapping(mapping(text("Value."), "Name -> value."), "Output key -> custom text properties."),
)
_SUMMARY = struct(
    "The run. When the model is not pushed the exit code is 3.",
    dataset_dir=text("Directory of the published dataset."),
    dataset=MANIFEST,
    anomalies=mapping(integer("Features."), "Split -> number of anomalous features."),
    findings=array(text("A sentence."), "Findings of a gate that only reports."),
    remarks=array(text("A sentence."), "Remarks of the gate, which do not stop the run."),
    accuracy=_ACCURACY,
    largest_class_share=nullable(share("Accuracy of always predicting the largest class; null if not measured.")),
    baseline=nullable(
        {**_ACCURACY, "description": "Accuracy of the last blessed model on the same images; null without one."}
    ),
    blessed=boolean("Whether the training succeeded and the accuracy reached its limits."),
    refused=array(text("A sentence."), "Limits that the model missed."),
    model_dir=text("Directory of the pushed model; empty when it was not pushed."),
    report=text("Path of the HTML report."),
    schema=text("Path of the schema that was used."),
    schema_inferred=boolean("Whether this pipeline inferred the schema, which then needs a review."),
    schema_named=boolean("Whether the configuration names the file of the schema."),
    steps=mapping(_STEP, "Component -> step."),
    rates=struct(
        "Images per second of the input pipeline.",
        feedline=number("Rate of this pipeline."),
        naive=number("Rate of a naive pipeline."),
        ratio=number("Ratio of the two rates."),
    ),
    input_wait=share("Share of the training time spent waiting for input."),
)
_SETTINGS = struct(
    "With `--show-config`: every setting.",
    settings=any_object("Settings, nested as in pipeline.yaml; secrets are `***`."),
    origin=mapping(text("`default`, `file NAME`, `environment NAME` or `option NAME`."), "Dotted key -> layer."),
)
_ARTIFACT = struct(
    "An artifact.",
    id=integer("Id in ML Metadata."),
    type=text("Type name, such as `Examples`."),
    uri=text("Path that it was written to."),
    maker=nullable(integer("Id of the execution that made it; null when this execution is not part of the lineage.")),
    role=text(
        "`made`: the model was made from it; `judged`: a result of checking the model or its data; `compared`: an "
        "earlier model or dataset that a check compared them with.",
        ("made", "judged", "compared"),
    ),
    facts=mapping(text("Value."), "Name -> value that identifies the artifact."),
)
_ARTIFACT_IDS = mapping(array(integer("Artifact."), "Ids of artifacts."), "Key -> ids of artifacts.")
_EXECUTION = struct(
    "An execution.",
    id=integer("Id in ML Metadata."),
    component=text("Id of the component."),
    type=text("Class of the component."),
    state=text("`complete`, or another state of ML Metadata."),
    cached=boolean("Whether the run that made the model took the result from the cache."),
    run=text("Name of the run that made the outputs."),
    started_ms=integer("Start time in milliseconds since the epoch."),
    seconds=number("Duration."),
    code=text("Version of the code; empty when the parameters have none."),
    parameters=mapping({"description": "The value."}, "Name -> value."),
    inputs={**_ARTIFACT_IDS, "description": "Input key -> ids of artifacts."},
    outputs={**_ARTIFACT_IDS, "description": "Output key -> ids of artifacts."},
)
_LINEAGE = struct(
    "The graph.",
    database=text("Path of the ML Metadata database."),
    note=text("Remark when MODEL was moved or is a copy; else empty."),
    unchanged_runs=array(text("Time in UTC."), "Later runs in the root in which nothing changed."),
    model=integer("Id of the artifact of MODEL."),
    pipeline=text("Name of the pipeline that made MODEL."),
    run=text("Name of the run that made MODEL."),
    artifacts=array(_ARTIFACT, "Artifacts in order of creation."),
    executions=array(_EXECUTION, "Executions in order of their start."),
    edges=array(
        struct(
            "An edge.",
            from_=text("`artifact:ID` or `execution:ID`."),
            to=text("`artifact:ID` or `execution:ID`."),
            key=text("Key of the input or output."),
        ),
        "Edges from inputs to executions and from executions to outputs.",
    ),
)
_PREDICTION = struct(
    "Prediction for a file.",
    path=text("Path of the file."),
    label=integer("Index of the most probable class."),
    text=text("Name of the most probable class."),
    probability=share("Probability of the most probable class."),
    labels=array(
        struct(
            "A label of the image.",
            label=integer("Class index."),
            text=text("Class name."),
            probability=share("Probability of the class."),
        ),
        "The most probable class; for a model with several labels per image, all classes over 0.5 by probability.",
    ),
)
_COST = {
    "images_s": number("Images per second."),
    "cpu_us": number("CPU time per image in microseconds."),
    "wall_us": number("Time per image in microseconds."),
}
_FACTS = struct(
    "Conditions of the measurement.",
    dataset=text("Directory of the dataset."),
    split=text("Name of the split."),
    records=integer("Records of the split."),
    shards=integer("Shards of the split."),
    record_bytes=number("Mean size of a record."),
    policy=text("Pixel policy of the dataset.", ("copy", "resize", "raw")),
    short_px=number("Mean short side of the stored images."),
    side_px=integer("Height and width of the input of the model."),
    batch_size=integer("Images per batch."),
    ops=text("Chain of ops for the training."),
    threads=integer("Threads of the input pipeline."),
    cores=integer("CPU cores that this process may use."),
    readers=integer("Maximum number of shards read in parallel."),
    remote=boolean("Whether the shards are in an object store."),
    parse_batch=integer("Records parsed by one op."),
    device=text("Device of the training step."),
    model=text("Model of the training step; empty for none."),
    in_memory=boolean("Whether the shards were read into the page cache before the measurement."),
)
_ABLATED = struct(
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
_BENCH = struct(
    "The measurements.",
    facts=_FACTS,
    stages=array(
        struct(
            "A stage, measured separately.",
            name=text("Name of the stage, or the op."),
            kind=text("Kind of the stage."),
            **_COST,
            up_to_here_images_s=nullable(
                number("Images/s of the pipeline up to this stage; null when it was not measured.")
            ),
        ),
        "Stages in order.",
    ),
    ops=struct("All ops together.", **_COST),
    pipeline=struct("The complete input pipeline.", **_COST),
    limit=struct("The limit of the machine without a pipeline.", **_COST, is_=text("Description of the limit.")),
    efficiency=number("Ratio of the rate of the pipeline to the limit."),
    cpu_efficiency=number("The same ratio, computed from CPU time."),
    baselines=mapping(
        struct("A baseline.", **_COST, ratio=number("Ratio of the rate of the pipeline to it.")),
        "Name -> a pipeline written without this project.",
    ),
    trained=nullable(struct("Input pipeline, transfer and training step together; null without `--model`.", **_COST)),
    ablation=array(_ABLATED, "Empty without `--ablation`."),
    disturbed=boolean("Whether other processes used the CPU."),
    bottleneck=struct(
        "The bottleneck of the pipeline.",
        stage=text("Kind of the stage."),
        sentence=text("Description with figures and a remedy."),
        option=text("Option to change, `name` or `name=value`; empty for none."),
    ),
    html=text("File of the chart; empty without `--html`."),
)

RUN_SCHEMAS: dict[str, Schema] = {
    "demo": _SUMMARY,
    "run": any_of(_SUMMARY, _SETTINGS),
    "lineage": _LINEAGE,
    "predict": struct(
        "The predictions. When a file is refused the exit code is 3.",
        predictions=array(_PREDICTION, "Predictions in the order of the files."),
        refused=mapping(text("Reason."), "Path of a refused file -> reason."),
    ),
    "bench input": _BENCH,
}


_CHECK = struct(
    "A check.",
    name=text("Name of the check."),
    ok=boolean("Whether the check passed."),
    detail=text("The observed value."),
    remedy=text("Command that repairs a failure; empty when the check passed."),
    needed=boolean("Whether the target requires it."),
    mark=text("`warn` for a failed check that is not required.", ("ok", "warn", "missing")),
)

MACHINE_SCHEMAS: dict[str, Schema] = {
    "init": struct(
        "The project.",
        directory=text("Directory of the project."),
        files=array(text("Name."), "Files, relative to the directory."),
        next=text("The next command."),
    ),
    "compile": struct(
        "The file.",
        target=text("Orchestrator.", ("airflow", "kubeflow")),
        file=text("Path of the file."),
        next=text("The next step, a sentence."),
    ),
    "doctor": struct(
        "The checks. When something is missing the exit code is 3.",
        target=text("Target."),
        ready=boolean("Whether all required checks passed."),
        checks=array(_CHECK, "Checks in the order of their repair."),
    ),
}


DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Command, without the name of the program -> schema of the result.
RESULTS: Mapping[str, Schema] = {**data.DATASET_SCHEMAS, **data.INSPECT_SCHEMAS, **RUN_SCHEMAS, **MACHINE_SCHEMAS}
# The last line of standard error of a command with `--json` that fails, unless the result contains the failure.
ERROR = struct(
    "The failure of a command.",
    error=struct(
        "The error.",
        message=text("Message for users, with the remedy."),
        code=integer("The exit code.", 1),
        kind=text("Kind of the error, the same in all releases."),
    ),
)


def result_schema(command: str) -> Schema:
    """Returns the schema of the output of a command, such as `schema diff`, with `--json`."""
    return {"$schema": DIALECT, "title": f"feedline {command} --json", **RESULTS[command]}
