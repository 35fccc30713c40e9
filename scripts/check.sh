#!/bin/sh
# What a change must pass before it is committed: lint, format, the quick tests.
set -eu
. "$(dirname "$0")/environment.sh"

cd "$ROOT"
"$PY" -m ruff check .
"$PY" -m ruff format --check .
exec "$PY" -m pytest -m "not ranks and not recipes and not slow" "$@"
