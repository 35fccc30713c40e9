# Sourced by the other scripts: uses the active environment if it has this package and its Paddle, otherwise
# .venv, which is created if it is missing and updated in place if it is outdated. Sets
#   ROOT   the project's folder      PY   the Python of the environment      DEVICE   cpu or gpu
# Variables: DEVICE=cpu|gpu (default: gpu if an NVIDIA driver is loaded and Paddle's own index has a build that
# runs on the card, see ernie_pair/core/installation.py), PADDLE_INDEX=<a mirror of that index>,
# PYTHON=/path/to/python3 for .venv; SCRIPT_TO_ROOT=../.. in a script in a subfolder; WITH_TOOLS=true in the
# scripts that lint and test: with the tools that they call.

ROOT=$(cd "$(dirname "$0")/${SCRIPT_TO_ROOT:-..}" && pwd)
VENV=$ROOT/.venv
PY=$VENV/bin/python

fail() {
    echo "error: $1" >&2
    exit 2
}

# An NVIDIA driver is loaded: on Linux, or under WSL2 that of Windows, as in ernie_pair/runtime/gpu.py.
has_driver() {
    [ -e /dev/nvidiactl ] || { [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so.1 ]; }
}

GIVEN=${DEVICE:-} # by the user: without that build an error
if [ -z "$GIVEN" ]; then
    DEVICE=cpu
    ! has_driver || DEVICE=gpu
fi
case $DEVICE in cpu | gpu) ;; *) fail "DEVICE=$DEVICE is neither cpu nor gpu; set one of them" ;; esac
BUILD=$DEVICE # its extra

CONSTRAINTS=constraints.txt
VERSIONS="3.13 3.12 3.11 3.10" # that it has wheels for, the newest first
PYTHONS="CPython 3.10 to ${VERSIONS%% *}"

supported() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])' $VERSIONS >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        supported "$PYTHON" || fail "PYTHON=$PYTHON does not run or is not $PYTHONS; set another one"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 $(printf 'python%s ' $VERSIONS); do
        if supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no $PYTHONS is on PATH; install one, or name it: PYTHON=/path/to/python3.11"
}

# Prints in one line why an environment cannot run this package, or nothing if it can. A copy that was installed
# from here will do, unless the tools are to work on what is here.
FAULT_OF_ENVIRONMENT='
import json, os, sys
from importlib import metadata, util
from urllib.parse import unquote, urlsplit

root, device, with_tools = sys.argv[1:]
spec = util.find_spec("ernie_pair")
place = os.path.dirname(os.path.dirname(spec.origin)) if spec else ""


def is_installed(name):
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def is_from_here():
    if not is_installed("ernie-pair"):
        return False
    record = json.loads(metadata.distribution("ernie-pair").read_text("direct_url.json") or "{}")
    places = [place] if with_tools else [place, unquote(urlsplit(record.get("url", "")).path)]
    return os.path.realpath(root) in map(os.path.realpath, filter(None, places))


if not is_from_here():
    sys.exit(print("this package is not installed in it from here"))
from ernie_pair.core.installation import missing_of_stack, training_extra

wants_gpu = device == "gpu" and not is_installed("paddlepaddle-gpu")
missing = missing_of_stack("gpu" if wants_gpu else training_extra())
if missing:
    missing.sort(key=lambda name: not name.startswith("paddlepaddle"))
    print("it lacks", ", ".join(missing[:3]))
'

fault_of() {
    (cd / && "$1" -c "$FAULT_OF_ENVIRONMENT" "$ROOT" "$2" "${WITH_TOOLS:-}" 2>/dev/null)
}

# Prints the active environment of the shell, if it is not .venv and can run this package.
active_environment() {
    for place in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
        [ -n "$place" ] || continue
        ! [ "$place" -ef "$VENV" ] || return 1
        fault=$(fault_of "$place/bin/python" "$DEVICE") || fault="its Python does not run"
        if [ -z "$fault" ]; then
            echo "$place"
            return
        fi
        echo "note: the active environment $place is not used: $fault" >&2
    done
    return 1
}

# Adds the missing tools of the linter and the tests to the active environment, and changes nothing else.
add_tools() {
    tools='from ernie_pair.core.installation import missing_requirements as m; print(*m("dev"), sep="\n")'
    missing=$(cd / && "$PY" -c "$tools")
    [ -n "$missing" ] || return 0
    echo "adding the test tools to $1" >&2
    echo "$missing" | "$PY" -m pip install --quiet --disable-pip-version-check --requirement /dev/stdin
}

# What .venv for device $1 is made from; a change of any of it updates .venv.
stamp() {
    (cd "$ROOT" && cat setup.py "$CONSTRAINTS" pyproject.toml data_tools/helpers.cpp && echo "$1 $ROOT") | cksum
}

# The GPU build runs on the CPU too: DEVICE=cpu takes an environment that exists for either. Where that build
# could not be had, the CPU build is not given up for another try, unless the user asks for it. What the user has
# installed there, and has no stamp, is used as it is.
is_made() {
    made=$(cat "$VENV/stamp" 2>/dev/null) || { suits_as_it_is && return; }
    [ -z "${WITH_TOOLS:-}" ] || [ "$made" = "$(cat "$VENV/stamp.tools" 2>/dev/null)" ] || return 1
    case $BUILD in
    cpu) [ "$made" = "$(stamp cpu)" ] || [ "$made" = "$(stamp gpu)" ] ;;
    gpu) [ "$made" = "$(stamp gpu)" ] || { [ "$made" = "$(stamp cpu)" ] && stays_without_gpu; } ;;
    esac
}

suits_as_it_is() {
    [ -z "${WITH_TOOLS:-}" ] && [ -x "$PY" ] || return 1
    for device in "$DEVICE" "${GIVEN:-cpu}"; do
        fault=$(fault_of "$PY" "$device") || return 1
        [ -n "$fault" ] || break
    done
    [ -z "$fault" ] || return 1
    [ "$device" = "$DEVICE" ] || go_without_gpu "it is in $VENV; DEVICE=gpu installs the other one"
}

stays_without_gpu() {
    [ -z "$GIVEN" ] && why=$(cat "$VENV/without_gpu" 2>/dev/null) || return 1
    case $why in *"${PADDLE_INDEX:-}"*) go_without_gpu "$why" ;; *) return 1 ;; esac
}

# Goes on with the CPU build and says so; with DEVICE=gpu given it ends.
go_without_gpu() {
    [ -z "$GIVEN" ] || fail "DEVICE=gpu: $1; or set DEVICE=cpu"
    echo "note: the CPU build of Paddle is used: $1" >&2
    DEVICE=cpu
    BUILD=cpu
}

exists() {
    [ -e "$1" ]
}

# Creates .venv, completes an interrupted one, or updates it; nothing is deleted, it may be in use.
make_environment() {
    build=$BUILD
    ! exists "$VENV"/lib/python3.*/site-packages/paddlepaddle_gpu-*.dist-info || build=gpu
    made=$(stamp "$build")
    start_environment
    rm -f "$VENV/stamp" "$VENV/stamp.tools" "$VENV/without_gpu"
    pip_install pip setuptools wheel
    if [ "$build" = gpu ] && ! install_gpu_build; then
        echo "$why" >"$VENV/without_gpu"
        go_without_gpu "$why"
        build=cpu
        made=$(stamp cpu)
    fi
    [ "$build" = gpu ] || install_build "$build"
    "$PY" -c 'import data_tools._helpers' 2>/dev/null ||
        echo "note: no C++ compiler, so data_tools uses its slower Python twin" >&2
    [ -z "${WITH_TOOLS:-}" ] || echo "$made" >"$VENV/stamp.tools"
    echo "$made" >"$VENV/stamp"
}

# A .venv with a Python and pip.
start_environment() {
    if [ ! -e "$PY" ]; then
        base=$(find_python) || exit 2
        echo "making $VENV with $("$base" --version) for $build: about 1 GB is downloaded, once" >&2
        rm -f "$VENV"/bin/python* # links to a Python that is gone, which venv would keep
        "$base" -m venv "$VENV"
        return
    fi
    supported "$PY" || fail "$PY does not run or is not $PYTHONS; move $VENV away"
    echo "updating $VENV for $build: it is compiled anew, which takes minutes" >&2
    "$PY" -m pip --version >/dev/null 2>&1 || "$PY" -m ensurepip --upgrade >/dev/null
}

install_build() {
    extras="$1${WITH_TOOLS:+,dev}"
    (cd "$ROOT" && shift && pip_install "$@" --editable ".[$extras]")
    # Without what it requires: that has no wheel for CPython 3.13, and what it imports is in [train].
    pip_install --no-deps paddlenlp
}

COMPUTES='import paddle; paddle.set_device("gpu"); (paddle.ones([2]) + 1).numpy()'

# Paddle for GPUs, with the CUDA of its index; fails, with $why and without that build, where the index cannot be
# reached, has no wheel for this Python, or the build does not compute on the card.
install_gpu_build() {
    find_index='from ernie_pair.core.installation import paddle_index; print(paddle_index())'
    index=$(cd "$ROOT" && "$PY" -c "$find_index")
    fetched=$VENV/fetched
    if ! exists "$VENV"/lib/python3.*/site-packages/paddlepaddle_gpu-*.dist-info; then
        fetch_gpu_build || return 1
    fi
    install_build gpu --find-links "$fetched" --extra-index-url "$index"
    rm -rf "$fetched"
    # DEVICE=cpu, in an environment that has this build: there may be no card.
    [ "$BUILD" = gpu ] || return 0
    "$PY" -c "$COMPUTES" >"$VENV/gpu.log" 2>&1 && return
    "$PY" -m pip uninstall --quiet --yes paddlepaddle-gpu
    why="the build of $index does not compute on the card; see $VENV/gpu.log"
    return 1
}

# Before anything is uninstalled; pip's own lines about an index that it cannot reach are many.
fetch_gpu_build() {
    set -- --disable-pip-version-check --no-deps --retries 1 --timeout 30 --index-url "$index" \
        --constraint "$ROOT/$CONSTRAINTS" --dest "$fetched" paddlepaddle-gpu
    [ -t 2 ] || set -- --quiet "$@"
    if ! "$PY" -m pip download "$@" >&2 2>"$VENV/pip.log"; then
        why="paddlepaddle-gpu cannot be fetched from $index, see $VENV/pip.log; PADDLE_INDEX names a mirror"
        return 1
    fi
    if exists "$VENV"/lib/python3.*/site-packages/paddlepaddle-*.dist-info; then
        "$PY" -m pip uninstall --quiet --yes paddlepaddle # both builds would share one folder
    fi
}

# On a terminal pip shows its progress: a gigabyte may take an hour. Elsewhere a line every half minute does.
# The conflicts are PaddleNLP's, see above.
pip_install() {
    set -- --disable-pip-version-check --no-warn-conflicts --constraint "$ROOT/$CONSTRAINTS" "$@"
    if [ -t 2 ]; then
        "$PY" -m pip install "$@" >&2
    else
        while sleep 30 >/dev/null 2>&1 && kill -0 $$; do echo "still installing into $VENV" >&2; done &
        ended=0
        "$PY" -m pip install --quiet "$@" || ended=$?
        { kill $! && wait $!; } 2>/dev/null || :
        return $ended
    fi
}

if active=$(active_environment); then
    PY=$active/bin/python
    echo "using the active environment $active" >&2
    [ -z "${WITH_TOOLS:-}" ] || add_tools "$active"
else
    is_made || make_environment
fi
