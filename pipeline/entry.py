"""Entry points of the programs. Each removes the working directory from the module path before further imports.

`feedline` also records SIGINT and SIGTERM before it imports the command line, which is slow.
"""

import os
import signal
import sys


def main() -> None:
    """Runs the command line and exits with its code."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # until `hold` is active
    from pipeline.runs import signals

    signals.hold()
    signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    _leave_working_directory()
    from pipeline import cli

    try:
        cli.main()
    except KeyboardInterrupt:  # raised before a command started
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
    sys.path.insert(0, product_dir)  # a `beam_jobs` in the working directory must not be imported
    from beam_jobs.common import child_python

    sys.path.remove(product_dir)
    child_python.leave_working_directory()
