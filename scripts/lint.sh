#!/bin/sh
# The checks that run nothing: lint, format, types.
set -eu
WITH_TOOLS=true
. "$(dirname "$0")/environment.sh"

cd "$ROOT"
"$PY" -m ruff check .
"$PY" -m ruff format --check .
"$PY" -m mypy
