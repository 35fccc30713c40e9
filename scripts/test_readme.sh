#!/bin/sh
# Make the environment of README.md by its own lines, in a copy of what git has, and run README's own lines in it:
# what they install must be enough for what they run. Nothing of this project's .venv is visible there.
#   sh scripts/test_readme.sh
#   PYTHON=/path/to/python3.13 sh scripts/test_readme.sh
# About 1 GB is installed; pip's cache is used. Part of .ci/run.
set -eu
ROOT=$(cd "$(dirname "$0")/.." && pwd)
exec "${PYTHON:-python3}" "$ROOT/scripts/run_readme.py" "$ROOT"
