#!/bin/sh
# Pretrain ERNIE 1.0 in static graph with PaddleNLP's settings. Start it again to resume.
#   sh scripts/run_pretrain_static.sh      on all GPUs that are visible
#   GPUS=0,1 DATA=./data OUTPUT=./output/mine sh scripts/run_pretrain_static.sh --max_steps 1000
#   NPROC=2 DEVICE=cpu sh scripts/run_pretrain_static.sh --micro_batch_size 8
# On several machines, the same command on each; MASTER is a free port of one of them:
#   NNODES=2 MASTER=10.0.0.1:6170 sh scripts/run_pretrain_static.sh
# Their OUTPUT is one shared folder; when each has its own, add --share_folder false.
set -eu
. "$(dirname "$0")/environment.sh"

MODEL="${MODEL:-ernie-1.0}"
DATA="${DATA:-./data}"
OUTPUT="${OUTPUT:-./output/ernie-1.0}"
NNODES="${NNODES:-1}"
MASTER="${MASTER:-}"

if [ "$DEVICE" = gpu ]; then
    [ -n "${GPUS:-}" ] || GPUS=$("$PY" -m ernie_pair.runtime.gpu) # all of them
    NPROC=$(echo "$GPUS" | tr ',' '\n' | wc -l)
    PROCESSES="--gpus $GPUS"
    USE_AMP="${USE_AMP:-true}"
else
    NPROC="${NPROC:-1}"
    PROCESSES="--nproc_per_node $NPROC"
    USE_AMP="${USE_AMP:-false}"
    [ "$NPROC" = 1 ] && COUNT="1 process" || COUNT="$NPROC processes"
    echo "no GPU is used: $COUNT on the CPU, without mixed precision" >&2
fi

if [ "$NNODES" -gt 1 ]; then
    [ -n "$MASTER" ] || fail "NNODES=$NNODES needs MASTER=HOST:PORT, the same on every machine"
    PROCESSES="$PROCESSES --nnodes $NNODES --master $MASTER"
fi

# --max-lr is --max_lr, as in the command; below, flags are compared by name.
for word; do
    shift
    case "$word" in
        --config | --config=*)
            fail "--config would lose to the recipe's flags; give your flags here, or the file to ernie-pair pretrain" ;;
        --[A-Za-z]*)
            name="${word%%=*}"
            word="--$(printf %s "${name#--}" | tr - _)${word#"$name"}"
            ;;
    esac
    set -- "$@" "$word"
done

# A sharding group counts once: --sharding_degree 4 on four GPUs leaves a --dp_degree of 1.
SHARDING=$(echo " $* " | sed -n 's/.* --sharding_degree[ =]\([1-9][0-9]*\) .*/\1/p')
SHARDING="${SHARDING:-1}"
[ "$SHARDING" -le $((NPROC * NNODES)) ] || fail "--sharding_degree $SHARDING is above $((NPROC * NNODES)) processes"
DP_DEGREE=$((NPROC * NNODES / SHARDING))

# PaddleNLP's settings for ERNIE 1.0. Your flags override those here.
while read -r flag value; do
    case "$flag of $* " in
        "--warmup_rate of "*"--warmup_steps"*) continue ;;
    esac
    case " $* " in
        *" $flag "* | *" $flag="*) ;;
        *) set -- "$@" "$flag" "$value" ;;
    esac
done <<RECIPE
--model_type ernie
--model_name_or_path $MODEL
--input_dir $DATA
--output_dir $OUTPUT
--split 949,50,1
--max_seq_len 512
--micro_batch_size 32
--global_batch_size 128
--sharding_degree 1
--dp_degree $DP_DEGREE
--use_amp $USE_AMP
--use_recompute false
--max_lr 0.0001
--min_lr 0.00001
--max_steps 200000
--decay_steps 1980000
--warmup_rate 0.01
--save_steps 100000
--checkpoint_steps 5000
--weight_decay 0.01
--grad_clip 1.0
--num_workers 2
--logging_freq 20
--eval_freq 1000
--device $DEVICE
RECIPE

# shellcheck disable=SC2086 # $PROCESSES holds flags and their values
exec "$PY" -u -m ernie_pair.launcher $PROCESSES --log_dir "$OUTPUT/log" \
    "$ROOT/scripts/run_pretrain_static.py" "$@"
