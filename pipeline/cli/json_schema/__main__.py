"""Prints the page about `--json`."""

import sys

from pipeline.cli.json_schema.page import page

if __name__ == "__main__":
    sys.stdout.write(page())
