#!/bin/sh
# Text -> corpus -> your own small ERNIE, evaluated on the masked words of held-out text, and converted.
# Start it again to resume: finished steps have nothing to do, interrupted ones go on where they were.
#   DATA=my_data sh scripts/results/pretrain_small.sh
#   DATA=my_data LAYERS=6 HIDDEN=384 HEADS=6 STEPS=8000 WORK=output/larger sh scripts/results/pretrain_small.sh
#   DATA=my_data NAME=characters sh scripts/results/pretrain_small.sh      not whole words; gram: an ErnieGram
# DATA: text/*.txt, a paragraph per line, an empty line between documents, and vocab/ernie_1.0_zh.txt.
# The model: WORK/weights/NAME, and WORK/weights/half of half the steps; the log: WORK/pretraining/NAME/run.log;
# the figures: WORK/figures/pretraining/NAME.json. Further flags: python scripts/results/run.py --help
set -eu
SCRIPT_TO_ROOT=../..
. "$(dirname "$0")/../environment.sh"

DATA="${DATA:-./data}"
WORK="${WORK:-$ROOT/output/results}"
NAME="${NAME:-pretrained}"

exec "$PY" -u "$ROOT/scripts/results/run.py" pretraining --only "$NAME" --data "$DATA" --work "$WORK" \
    --layers "${LAYERS:-4}" --hidden "${HIDDEN:-192}" --heads "${HEADS:-3}" \
    --length "${LENGTH:-64}" --batch "${BATCH:-128}" --steps "${STEPS:-2000}" --rate "${RATE:-0.001}" \
    --processes "${NPROC:-2}" --precision "${PRECISION:-fp32}" "$@"
