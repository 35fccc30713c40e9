#!/bin/sh
# Run the tests: all but the slow ones in four processes (for two cores: they also wait for launchers and
# disks), or those that arguments of pytest select, in one.
# The quick ones only: sh scripts/test.sh -m "not ranks and not recipes and not slow"
set -eu
WITH_TOOLS=true
. "$(dirname "$0")/environment.sh"

cd "$ROOT"
# Files stay in the order of tests/conftest.py, the longest first.
[ $# -gt 0 ] || set -- -n 4 --dist loadfile --no-loadscope-reorder
exec "$PY" -m pytest "$@"
