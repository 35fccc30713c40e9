#!/bin/sh
# Compare with Hugging Face's transformers: put it and the CPU build of torch beside .venv's packages, once, and
# run tests/peer: in two processes, or as arguments of pytest say. Exit code 3: the package index has no CPU build
# of torch for this Python.
#   sh scripts/test_peer.sh
#   PIP_EXTRA_INDEX_URL=<torch's index of CPU builds> sh scripts/test_peer.sh
# Where the index has them also, each once: the newest transformers and sentence-transformers, and a published
# model, and clients of databases and services. Others are named by ERNIE_PAIR_NEWEST_PEER=<a Python>,
# ERNIE_PAIR_MINILM=<a folder> and ERNIE_PAIR_CLIENTS=<a Python>.
set -eu
WITH_TOOLS=true
. "$(dirname "$0")/environment.sh"

cd "$ROOT"
PEER=$VENV/peer
NEWEST=$VENV/newest-peer
CLIENTS=$VENV/clients
version() {
    "$PY" - "$1" "$CONSTRAINTS" <<'PYTHON'
import sys
from packaging.requirements import Requirement

asked = map(Requirement, (line.strip() for line in open(sys.argv[2]) if line[0].isalpha()))
print(next(str(one.specifier) for one in asked if one.name == sys.argv[1] and not (one.marker and not one.marker.evaluate())))
PYTHON
}
WANTED="torch$(version torch)+cpu transformers$(version transformers) networkx$(version networkx) sympy$(version sympy) mpmath$(version mpmath) accelerate$(version accelerate) pytrec-eval-terrier$(version pytrec-eval-terrier)"

# Without dependencies: what they need besides is in .venv, and the builds with CUDA ask for gigabytes.
if [ "$(cat "$PEER/stamp" 2>/dev/null)" != "$WANTED" ]; then
    rm -rf "$PEER"
    mkdir -p "$PEER"
    # shellcheck disable=SC2086 # a list of packages
    if ! "$PY" -m pip install --quiet --no-deps --no-compile --target "$PEER" $WANTED; then
        echo "note: tests/peer is not run; set PIP_EXTRA_INDEX_URL to an index that has $WANTED" >&2
        exit 3
    fi
    echo "$WANTED" >"$PEER/stamp"
fi

# Their huggingface-hub is one that PaddleNLP is not imported with; torch is that of $PEER, by links.
make_newest() {
    rm -rf "$NEWEST"
    "$PY" -m venv --without-pip "$NEWEST" || return
    packages=$(echo "$NEWEST"/lib/python3*/site-packages)
    ln -s "$PEER"/torch "$PEER"/torchgen "$PEER"/functorch "$PEER"/torch-*.dist-info "$packages" || return
    "$PY" -m pip --python "$NEWEST/bin/python" install --quiet --no-compile --retries 1 -r scripts/newest_peer.txt || return
    cp scripts/newest_peer.txt "$NEWEST/stamp"
}
if [ -z "${ERNIE_PAIR_NEWEST_PEER:-}" ] && ! cmp -s scripts/newest_peer.txt "$NEWEST/stamp"; then
    make_newest || echo "note: nothing is compared with the newest libraries, which the index lacks: scripts/newest_peer.txt" >&2
fi

# With the packages of .venv below them. Triton's server is apart, with the numpy that it can read texts with.
make_clients() {
    rm -rf "$CLIENTS"
    "$PY" -m venv --without-pip "$CLIENTS" || return
    packages=$(echo "$CLIENTS"/lib/python3*/site-packages)
    "$PY" -c 'import sys; print(*(one for one in sys.path if one.endswith("-packages")), sep="\n")' >"$packages/tests.pth" || return
    set -- "$PY" -m pip --python "$CLIENTS/bin/python" install --quiet --no-compile --retries 1
    "$@" -r scripts/clients.txt || return
    "$@" --no-deps --only-binary :all: --target "$CLIENTS/triton" nvidia-pytriton==0.7.0 numpy==1.26.4 ||
        echo "note: no Triton is asked, whose packages the index lacks for this Python" >&2
    cp scripts/clients.txt "$CLIENTS/stamp"
}
if [ -z "${ERNIE_PAIR_CLIENTS:-}" ] && ! cmp -s scripts/clients.txt "$CLIENTS/stamp"; then
    make_clients || echo "note: no clients of others are asked, which the index lacks: scripts/clients.txt" >&2
fi
[ -n "${ERNIE_PAIR_MINILM:-}" ] || "$PY" scripts/other_libraries/fetch_minilm.py "$VENV/peer-models/minilm" || [ $? -eq 3 ]

[ $# -gt 0 ] || set -- -n 2 --dist loadfile --no-loadscope-reorder
PYTHONPATH=$PEER exec "$PY" -m pytest tests/peer "$@"
