# Sourced by the scripts beside it: makes .venv when it is absent or outdated, and sets
#   ROOT   the project's folder      PY   the Python of .venv      DEVICE   cpu or gpu
# Variables: DEVICE=cpu|gpu (otherwise gpu where an NVIDIA driver is loaded), PYTHON=/path/to/python3.

ROOT=$(cd "$(dirname "$0")/.." && pwd)
VENV=$ROOT/.venv
PY=$VENV/bin/python
VERSIONS="3.12 3.11 3.10 3.9"

fail() {
    echo "error: $1" >&2
    exit 2
}

if [ -z "${DEVICE:-}" ]; then
    DEVICE=cpu
    [ -e /dev/nvidiactl ] && DEVICE=gpu
fi
case $DEVICE in cpu | gpu) ;; *) fail "DEVICE=$DEVICE is neither cpu nor gpu; set one of them" ;; esac

supported() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        supported "$PYTHON" || fail "PYTHON=$PYTHON does not run or is not CPython 3.9 to 3.12; set another one"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 $(printf 'python%s ' $VERSIONS); do
        if supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no CPython 3.9, 3.10, 3.11 or 3.12 is on PATH; install one, or name it: PYTHON=/path/to/python3.11"
}

# What an environment for device $1 is made from; a change of any of it makes the environment anew.
stamp() {
    (cd "$ROOT" && cat setup.py constraints.txt pyproject.toml data_tools/helpers.cpp && echo "$1 $ROOT") | cksum
}

# The GPU build runs on the CPU too: DEVICE=cpu takes an environment that is there for either.
is_made() {
    made=$(cat "$VENV/stamp" 2>/dev/null) || return 1
    [ "$made" = "$(stamp "$DEVICE")" ] || { [ "$DEVICE" = cpu ] && [ "$made" = "$(stamp gpu)" ]; }
}

make_environment() {
    base=$(find_python) || exit 2
    echo "making $VENV with $("$base" --version) for $DEVICE: about 1 GB is downloaded, once" >&2
    rm -f "$VENV/stamp"
    "$base" -m venv --clear "$VENV"
    pip="$PY -m pip install --quiet --disable-pip-version-check --constraint $ROOT/constraints.txt"
    # shellcheck disable=SC2086 # $pip is a command with its options
    (cd "$ROOT" && $pip pip setuptools wheel && $pip --editable ".[$DEVICE,dev]")
    [ "$DEVICE" = cpu ] || link_cuda
    "$PY" -c 'import data_tools._helpers' 2>/dev/null ||
        echo "note: no C++ compiler, so data_tools uses its slower Python twin" >&2
    stamp "$DEVICE" >"$VENV/stamp"
}

# Paddle opens libcublas.so and the like; the wheels hold libcublas.so.11 in a folder each.
link_cuda() {
    mkdir -p "$VENV/cuda"
    for library in "$VENV"/lib/python3.*/site-packages/nvidia/*/lib/lib*.so.*; do
        name=${library##*/}
        ln -sf "$library" "$VENV/cuda/$name"
        ln -sf "$library" "$VENV/cuda/${name%%.so.*}.so"
    done
}

is_made || make_environment
if [ -d "$VENV/cuda" ]; then
    LD_LIBRARY_PATH=$VENV/cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi
