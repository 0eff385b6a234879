"""The programs of the package. They leave the working directory before imports that Python would look for there.

`feedline` also records signals before the slow imports, those of the command line included.
"""

import os
import signal
import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # until they are recorded
    from pipeline.runs import signals

    signals.hold()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _leave_working_directory()
    from pipeline import cli

    try:
        cli.main()
    except KeyboardInterrupt:  # raised in `main`, before any command started
        signals.end(cli.report_interruption(sys.argv[1:]))


def work() -> None:
    """Runs `feedline-worker`, see `beam_jobs.runners.flink_worker`."""
    _leave_working_directory()
    from beam_jobs.runners import flink_worker

    flink_worker.main()


def launch() -> None:
    """Runs `feedline-dataflow-template`, see `pipeline.cli.dataflow_template`."""
    _leave_working_directory()
    from pipeline.cli import dataflow_template

    dataflow_template.main()


def _leave_working_directory() -> None:
    product_dir = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, product_dir)  # otherwise a `beam_jobs` of the working directory could be imported
    from beam_jobs.common import child_python

    sys.path.remove(product_dir)
    child_python.leave_working_directory()
