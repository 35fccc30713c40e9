#!/bin/sh
# Raw text -> a corpus of token ids, ready for pretraining.
#   sh scripts/prepare_data.sh                                   the embedded sample, after make_sample.py
#   TEXT=my_texts VOCAB=ernie/vocab.txt OUT=data sh scripts/prepare_data.sh
# TEXT: a text file or a folder of them, a sentence or paragraph per line, an empty line between documents.
# VOCAB: the vocabulary; where the file is absent, it is built from the text.
set -eu
. "$(dirname "$0")/environment.sh"

TEXT="${TEXT:-$ROOT/output/quickstart/sample/corpus.txt}"
OUT="${OUT:-$ROOT/output/quickstart/corpus}"
VOCAB="${VOCAB:-$OUT/vocab.txt}"
WORKERS="${WORKERS:-2}"

if [ -f "$OUT/text.manifest.json" ]; then
    echo "$OUT/text.manifest.json is there: nothing to prepare" >&2
    exit 0
fi
mkdir -p "$OUT"
"$PY" "$ROOT/data_tools/trans_to_json.py" --input_path "$TEXT" --output_path "$OUT/documents" --overwrite
[ -f "$VOCAB" ] || "$PY" "$ROOT/data_tools/build_vocab.py" --input_path "$TEXT" --output_path "$VOCAB"
"$PY" "$ROOT/data_tools/create_pretraining_data.py" --input_path "$OUT/documents.jsonl" \
    --output_prefix "$OUT/text" --vocab_file "$VOCAB" \
    --chinese --split_sentences --cn_whole_word_segment --workers "$WORKERS" "$@"
