#!/bin/sh
# Run the tests: all but the slow ones in two processes, or what is asked for in pytest's words, in one.
# The quick ones only: sh scripts/test.sh -m "not ranks and not recipes and not slow"
# With Paddle 3, in an environment of its own: PADDLE=3 sh scripts/test.sh
set -eu
WITH_TOOLS=true
. "$(dirname "$0")/environment.sh"

cd "$ROOT"
# The groups of the tests that start processes, the longest, are to begin first; they are collected first.
[ $# -gt 0 ] || set -- -n 2 --dist loadgroup --no-loadscope-reorder
exec "$PY" -m pytest "$@"
