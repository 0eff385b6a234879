"""Fetches the jar of Beam's Flink job server: `python -m pipeline.doctor.fetch_jar 1.19` prints where it is kept.

The doctor's own command for it, so that one that fails ends in a line and not in a traceback.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from beam_jobs import validate
from beam_jobs.engines import flink, flink_jar
from beam_jobs.errors import FeedlineError

INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Prints the path of the jar, or one line that says why there is none; returns the exit code.

    Args:
      arguments: the version of Flink.
    """
    warnings.filterwarnings("ignore")  # of Beam's libraries about themselves, as every command of Feedline
    try:
        version = " ".join(arguments)
        validate.choice("flink_version", version, flink.VERSIONS)
        sys.stdout.write(f"{flink_jar.find(version)}\n")
    except FeedlineError as error:
        sys.stderr.write(f"feedline: error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("feedline: error: interrupted; nothing was kept, run the same command again\n")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
