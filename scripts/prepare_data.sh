#!/bin/sh
# Raw text -> a corpus of token ids, ready for pretraining.
#   sh scripts/prepare_data.sh                                   the built-in sample, after make_sample.py
#   TEXT=my_texts VOCAB=ernie/vocab.txt OUT=data sh scripts/prepare_data.sh
# TEXT: a text file or a folder of them, a sentence or paragraph per line, an empty line between documents.
# VOCAB: your vocabulary; where the file is absent, it is built from the text. Left out: OUT/vocab.txt.
# Run again, it has nothing to do; with another text, vocabulary or other flags it says what differs and
# stops, and --overwrite true makes everything again.
set -eu
. "$(dirname "$0")/environment.sh"

TEXT="${TEXT:-$ROOT/output/quickstart/sample/corpus.txt}"
OUT="${OUT:-$ROOT/output/quickstart/corpus}"
IS_GIVEN="${VOCAB:+true}"
VOCAB="${VOCAB:-$OUT/vocab.txt}"
WORKERS="${WORKERS:-2}"

# Passed to the first two commands as it was given: they know which words mean true, and refuse others.
OVERWRITE=false
previous=
for word; do
    case "$word" in
    --overwrite) OVERWRITE=true ;;
    --overwrite=*) OVERWRITE="${word#*=}" ;;
    -*) ;;
    *) [ "$previous" != --overwrite ] || OVERWRITE="$word" ;;
    esac
    previous="$word"
done

mkdir -p "$OUT"
"$PY" "$ROOT/data_tools/trans_to_json.py" --input_path "$TEXT" --output_path "$OUT/documents" \
    --overwrite "$OVERWRITE"
# OUT/vocab.txt with a record beside it was built here, from the text as it was then; a given one is the user's.
if [ ! -f "$VOCAB" ] || { [ -z "$IS_GIVEN" ] && [ -f "$OUT/.vocab.txt.made.json" ]; }; then
    "$PY" "$ROOT/data_tools/build_vocab.py" --input_path "$TEXT" --output_file "$VOCAB" --overwrite "$OVERWRITE"
fi
"$PY" "$ROOT/data_tools/create_pretraining_data.py" --input_path "$OUT/documents.jsonl" \
    --output_prefix "$OUT/text" --vocab_file "$VOCAB" \
    --chinese --split_sentences --cn_whole_word_segment --workers "$WORKERS" "$@"
