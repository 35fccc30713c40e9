#!/bin/sh
# The whole line on the embedded sample: text -> ids -> pretraining -> conversion -> pairs -> predictions.
# Run it again: what is done has nothing to do, what was cut short goes on, and what was made of other inputs
# or flags stops it with the difference. Start anew: rm -r output/quickstart
#   sh scripts/quickstart.sh
#   OUT=/elsewhere SEED=2 sh scripts/quickstart.sh                              is it luck?
#   OUT=/elsewhere STEPS=20 EPOCHS=1 PAIRS=3600 sh scripts/quickstart.sh        a quick look
set -eu
. "$(dirname "$0")/environment.sh"

OUT="${OUT:-$ROOT/output/quickstart}"
PAIRS="${PAIRS:-18000}"
STEPS="${STEPS:-2400}"
EPOCHS="${EPOCHS:-2}"
SEED="${SEED:-1234}"
export DEVICE

step() {
    echo >&2
    echo "[$1/7] $2" >&2
}

step 1 "write the embedded sample"
"$PY" "$ROOT/data_tools/make_sample.py" --output_dir "$OUT/sample" --documents 1000 --pairs "$PAIRS"

step 2 "prepare the corpus: sentences, vocabulary, token ids; and a small model to start from"
TEXT="$OUT/sample/corpus.txt" OUT="$OUT/corpus" sh "$ROOT/scripts/prepare_data.sh"
"$PY" -m ernie_pair new-model --vocab_file "$OUT/corpus/vocab.txt" \
    --output_dir "$OUT/small" --hidden_size 128 --num_hidden_layers 2 --num_attention_heads 2 \
    --intermediate_size 512 --max_position_embeddings 130

step 3 "pretrain it in static graph"
MODEL="$OUT/small" DATA="$OUT/corpus" OUTPUT="$OUT/pretrain" GPUS="${GPUS:-0}" \
    sh "$ROOT/scripts/run_pretrain_static.sh" --from_scratch true --split 900,50,50 \
    --max_seq_len 48 --short_seq_prob 0 --micro_batch_size 16 --global_batch_size 16 \
    --max_steps "$STEPS" --decay_steps "$STEPS" --warmup_rate 0.1 --max_lr 0.002 --min_lr 0.0001 \
    --adam_beta2 0.98 --hidden_dropout_prob 0 --attention_probs_dropout_prob 0 \
    --logging_freq 100 --eval_freq 400 --checkpoint_steps 400 --save_steps 1000000 --num_workers 0 \
    --seed "$SEED"

step 4 "convert it to a dynamic model, with the proof that both agree"
"$PY" "$ROOT/scripts/ernie_static_to_dynamic.py" \
    --static_model_path "$OUT/pretrain/model_last/static_vars" --output_dir "$OUT/dynamic"

# One thread each: the two trainings below share the cores.
train() {
    OMP_NUM_THREADS=1 "$PY" "$ROOT/scripts/train_pair.py" --model_type ernie \
        --train_file "$OUT/sample/pairs/train.tsv" --dev_file "$OUT/sample/pairs/dev.tsv" \
        --max_seq_len 48 --batch_size 32 --epochs "$EPOCHS" --learning_rate 0.0005 --dropout 0 \
        --eval_freq 10000 --logging_freq 100 --checkpoint_steps 200 --seed "$SEED" --device "$DEVICE" "$@"
}

step 5 "fine-tune on pairs: from the converted weights, and beside it from scratch (pair_scratch.log)"
train --model_name_or_path "$OUT/small" --from_scratch true --output_dir "$OUT/pair_scratch" \
    >"$OUT/pair_scratch.log" 2>&1 &
scratch=$!
train --model_name_or_path "$OUT/dynamic" --output_dir "$OUT/pair" || {
    kill "$scratch"
    exit 1
}
wait "$scratch" || fail "the training from scratch failed; see $OUT/pair_scratch.log"

step 6 "evaluate both on the test split"
measure() {
    "$PY" "$ROOT/scripts/evaluate_pair.py" --model_path "$OUT/$1"/best-accuracy-* \
        --input_file "$OUT/sample/pairs/test.tsv" --output_file "$OUT/$1/test.json" --device "$DEVICE"
}
measure pair_scratch >>"$OUT/pair_scratch.log" 2>&1 &
scratch=$!
measure pair
wait "$scratch" || fail "the evaluation of the model from scratch failed; see $OUT/pair_scratch.log"

step 7 "predict"
"$PY" "$ROOT/scripts/predict_pair.py" --model_path "$OUT"/pair/best-accuracy-* \
    --input_file "$OUT/sample/pairs/test.tsv" --output_file "$OUT/predictions.tsv" --device "$DEVICE"

exec "$PY" "$ROOT/scripts/quickstart_table.py" "$OUT"
