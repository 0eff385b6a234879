"""Results of `init`, `compile` and `doctor`."""

from __future__ import annotations

from pipeline.cli.json_schema.parts import Schema, many, one, text, truth

_CHECK = one(
    "One thing that was looked at.",
    name=text("What it is."),
    ok=truth("Whether it is as it should be."),
    detail=text("The value that was found."),
    remedy=text("The command that repairs it; empty when it is ok."),
    needed=truth("Whether the target cannot work without."),
    mark=text("`warn` for what is not ok and not needed.", ("ok", "warn", "missing")),
)

SCHEMAS: dict[str, Schema] = {
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
