#!/bin/sh
# What is found without running anything: lint, format, types.
set -eu
WITH_TOOLS=true
. "$(dirname "$0")/environment.sh"

cd "$ROOT"
"$PY" -m ruff check .
"$PY" -m ruff format --check .
"$PY" -m mypy
