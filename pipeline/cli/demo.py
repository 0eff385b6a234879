"""`feedline demo`."""

from __future__ import annotations

import os
import time

import click

from beam_jobs.errors import OptionError
from pipeline.cli.click_groups import DIR, Command
from pipeline.cli.common import echo, json_option, print_json, program, say


@click.command("demo", cls=Command)
@click.option(
    "--root", type=DIR, default="demo_run", show_default=True, help="Directory for everything the demo writes."
)
@json_option
def command(root: str, as_json: bool) -> None:
    """Run the whole pipeline on real handwritten digits.

    They are the 1,797 images that come with scikit-learn. A few broken files and copies are put among them, so that
    rejects and duplicates show.

    \b
    Example:
      feedline demo --root demo_run
    """
    from pipeline import demo
    from pipeline.runners import local

    started = time.monotonic()
    images = os.path.join(root, "images")
    say(f"writing digits to {images}")
    try:
        first = demo.write_images(images)
    except OSError as error:
        raise OptionError(f"root {root} cannot be written: {error.strerror}") from error
    summary = local.run(demo.config(images, root), say)
    from pipeline.runs.summary import check_pushed, text

    if as_json:
        print_json(summary.to_json())
    else:
        click.echo("\n" + text(summary))
        echo(f"{'took':<12} {time.monotonic() - started:.0f} s")
    check_pushed(summary)
    if not as_json:
        echo("", f"Try next:  {program()} predict {summary.model_dir} {first}")
