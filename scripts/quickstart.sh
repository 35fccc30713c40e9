#!/bin/sh
# The whole pipeline on the built-in sample: text -> ids -> pretraining -> conversion -> pairs -> predictions.
# Run it again: finished steps have nothing to do, interrupted ones resume, and what was made from other
# inputs or flags stops it with the difference. Start over: rm -r output/quickstart
#   sh scripts/quickstart.sh
#   OUT=/elsewhere SEED=2 sh scripts/quickstart.sh                              with another seed
#   OUT=/elsewhere STEPS=20 EPOCHS=1 PAIRS=3600 sh scripts/quickstart.sh        a quick look
# Without this folder, from an installed package: ernie-pair quickstart
set -eu
. "$(dirname "$0")/environment.sh"

exec "${PY%/*}/ernie-pair" quickstart --output_dir "${OUT:-$ROOT/output/quickstart}" --device "$DEVICE" \
    ${PAIRS:+--pairs "$PAIRS"} ${STEPS:+--max_steps "$STEPS"} ${EPOCHS:+--epochs "$EPOCHS"} \
    ${SEED:+--seed "$SEED"} ${GPUS:+--gpus "$GPUS"} "$@"
