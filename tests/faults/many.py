"""Several command lines in one process: `python -m tests.faults.many '[["ingest", ...], ["verify", ...]]'`.

Behind the output of each, on standard output, is a line with its exit code.
"""

from __future__ import annotations

import json
import sys

from pipeline import cli

END = "=== ended with"


def main() -> None:
    for arguments in json.loads(sys.argv[1]):
        code = cli.execute(arguments)
        sys.stdout.write(f"\n{END} {code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
