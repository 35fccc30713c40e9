#!/bin/sh
# Run the tests. The quick ones only: sh scripts/test.sh -m "not ranks and not recipes and not slow"
set -eu
. "$(dirname "$0")/environment.sh"

cd "$ROOT"
exec "$PY" -m pytest "$@"
