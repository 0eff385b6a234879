"""Results of the commands that are about this machine and its jobs."""

from __future__ import annotations

from pipeline.cli.json_schema.parts import Schema, either, many, number, one, or_null, text, truth, whole

STARTED = one(
    "With `--detach`: the job that was started. `feedline status JOB --json` tells how far it is.",
    job=text("Its name."),
    log=text("File of its progress and errors."),
)
_DONE = one("Of the stage.", images=whole("Images."), bytes=whole("Bytes read."), rejects=whole("Images rejected."))
_JOB = one(
    "Of the job that is named.",
    name=text("By which it is asked for."),
    state=text(
        "`stopped` because somebody asked it to, `died` without a last word.",
        ("running", "done", "failed", "stopped", "died"),
    ),
    exit_code=or_null(whole("Of the command; null while it runs, and when it was killed.")),
    arguments=many(text("Argument."), "Of the command line; secrets are `***`."),
    cwd=text("Its working directory."),
    started=number("Seconds since the epoch."),
    stage=or_null(
        one(
            "How far it is; null before its first stage.",
            name=text("Of the stage."),
            done=_DONE,
            total={**_DONE, "description": "What will be done; 0 images when nobody knows."},
            seconds=number("Since the stage began."),
        )
    ),
    log=text("File of its progress and errors."),
    result=text("What the command wrote to standard output."),
)
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
    "status": either(one("Without JOB.", jobs=many(_JOB, "All jobs, the newest first.")), _JOB),
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
