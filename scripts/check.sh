#!/bin/sh
# What a change must pass before it is committed: lint, format, types, the quick tests.
set -eu
sh "$(dirname "$0")/lint.sh"
WITH_TOOLS=true
. "$(dirname "$0")/environment.sh"

cd "$ROOT"
exec "$PY" -m pytest -m "not ranks and not recipes and not slow" "$@"
