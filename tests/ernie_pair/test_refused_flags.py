"""Flags that contradict each other or that no run can have: exit code 2, and one line that names the flag.

The first flag of a row is the one that is named. Nothing is read or written before: no file of a row exists.
What no flag of a command may be is in core/cli/test_bad_flags.py.
"""

import pytest
from refusals import refusal_of

HALF = "--use_amp true --device gpu"
STREAM = "--streaming true --max_steps 3"
RANKING = "--target ranking"
WARM = "--warmup_rate none"
SPLIT = "--chinese true --cn_whole_word_segment true --cn_splited true"
# {what comes before the flags of a row: the rows}
REFUSED = {
    "train --model_name_or_path m --train_file t --dev_file d --output_dir o": [
        *("--epochs 0", "--batch_size 0", "--max_seq_len 4", "--learning_rate 0", "--learning_rate=-1e-5"),
        *("--warmup_rate=-0.1", "--warmup_rate 1.0", "--weight_decay=-0.1", "--dropout=-0.1"),
        *("--dropout 1.0", "--eval_freq 0", "--logging_freq 0", "--checkpoint_steps 0"),
        *("--layer_decay 0", "--layer_decay 1.01", "--pooling max", "--best_metric cost"),
        *("--report_to comet", "--class_weights 1,x"),
        *(f"--label_range {word} --target regression" for word in ("5", "5,0", "0,x", "0,nan", "0,1,2")),
        *(f"--most_candidates 1 {RANKING}", f"--class_weights balanced {STREAM}", "--streaming true"),
        f"--amp_dtype float16 {HALF.replace('gpu', 'cpu')}",
        f"--amp_dtype bfloat16 {HALF.replace('gpu', 'cpu')}",
        f"--incr_every_n_steps 0 {HALF}",
        f"--init_loss_scaling 0.5 {HALF}",
        *("--amp_dtype float16 --device gpu", "--amp_dtype float32 --device gpu"),
        *("--amp_level O2 --device gpu", "--sharding stage2 --device cpu"),
        "--fgm_epsilon 0.5 --sharding stage2 --device gpu",
        *("--symmetric average --rdrop_alpha 1", "--symmetric consistency --rdrop_alpha 1"),
        *("--symmetric_alpha 2", "--symmetric_alpha 0.5 --symmetric average"),
        *("--freeze_layers=-1", "--freeze_layers 1 --freeze encoder"),
        *("--fgm_epsilon 1 --freeze embeddings", "--fgm_epsilon 1 --freeze_layers 1"),
        *(f"{flag} --evaluation_strategy no" for flag in ("--save_format hf", "--keep_best 2")),
        "--early_stopping_patience 3 --evaluation_strategy no",
        *(f"--evaluation_strategy epoch {STREAM}", f"--save_strategy epoch {STREAM}"),
        *("--margin 2", "--precision bf16 --kernels plain"),
    ],
    "distill --teacher m --train_file t --dev_file d --output_dir o": [
        *("--label_map 0=a,1=b", "--soft_weight 0", "--layer_map last", "--temperature 0"),
        *("--target regression", "--target ranking", "--label_range 0,5"),
        *("--symmetric average --hidden_weight 1", "--rdrop_alpha 1 --hidden_weight 1"),
        *("--hidden_weight 1 --teacher_logits cached", f"--teacher_logits cached {STREAM}"),
        *(f"--unlabelled_file more {STREAM}", "--to_static true --hidden_weight 1"),
        "--margin 2",
    ],
    "prepare --input_path a --output_prefix b --vocab_file v": [
        *("--model_name m", "--cn_whole_word_segment true", "--cn_splited true --chinese true"),
        *("--cn_seg_func jieba", f"--cn_seg_func jieba {SPLIT}", "--user_lexicon words.txt"),
        *("--cn_split_dimer /", f"--cn_split_dimer '' {SPLIT}", "--max_bad_lines 3", "--join_tokens 100"),
        *(f"--ray_address {text}" for text in ("head:1", "head --engine ray", "ray://head:1 --engine ray")),
    ],
    "prepare --input_path a --output_prefix b": ["--vocab_file ''"],
    "build vocab --output_file b": [
        *("--add_twins_to v --input_path a", "--min_count 3 --add_twins_to v"),
        "--vocab_size 40000 --add_twins_to v",
    ],
    "make-sample --output_dir o": ["--pairs 3601"],
    "export --model_path m --output_dir s": [
        *("--triton true", "--docker true", "--wheel w.whl", "--quantize int8", "--quantize_file dev.tsv"),
        "--precision bf16 --format onnx",
    ],
    "serve": [
        *("--max_waiting 10 --model_path m", "--device gpu --index i", "--retrieval bm25 --model_path m"),
        *("--recall_k 9 --model_path m", "--long_text cut --model_path m", "--recall_k 5000 --index i"),
        *("--threshold 0.5 --embedding_model e", "--devices 0,1 --model_path m"),
        *(f"--devices {words} --model_path m" for words in ("0 --device gpu:1", "0,x --device gpu")),
        *(f"--devices {words} --device gpu --model_path m" for words in ("0,0", "1,", "-1")),
    ],
    "check --gpu": ["--output_file d.html", "--output_file a/b.json", "--only losses,wishes"],
    "pipeline --train_file t --output_dir o": ["--label_map 0=a,1=b --are_scores true"],
    "pipeline --train_file t --output_dir o --dev_file d --test_file t": ["--dev_share 0.2"],
    "predict --model_path m --input_file i --output_file o --device cpu": [
        *("--workers 2", "--ray_address head:6379"),
    ],
    "predict --model_path m --input_file i --output_file o --engine ray": ["--device gpu:1"],
    "mine --train_file t --output_file o.tsv": [
        *("--min_similarity 0.9 --max_similarity 0.5", "--min_rank 5 --max_rank 5", "--threshold 0.5"),
        "--output_file o.txt",
    ],
    "build text --train_file t": ["--output_file pairs.tsv"],
    "index --input_file t --output_dir o": [
        *("--embedding_model ''", "--vectors v --embedding_model m", "--dim 8 --vectors v"),
        "--lists 8 --embedding_model m",
        *("--output_dir ' ' --embedding_model m", "--retrieval bm25 --embedding_model m"),
    ],
    "search --index i --embedding_model m": [
        *("--text ''", "--text q --input_file f --output_file o", "--input_file f", "--output_file f"),
        *("--recall_k 5 --top_k 9 --model_path ship", "--top_k 0"),
    ],
    "predict --model_path m": [
        "--output_file '' --input_file a",
        *("--pair a b --input_file a --output_file b", "--pair a b --output_file b", "--pair a"),
    ],
    "evaluate --model_path m --input_file i --output_file o": [
        *("--at_precision 0", "--bootstrap=-1", "--threshold 1.5", "--save_temperature true"),
        *("--robustness_file rows.tsv", "--robustness_file rows.txt --robustness typo", "--robustness noise"),
    ],
    "cross-validate --model_name_or_path m --train_file t --output_dir o": [
        *("--folds 1", STREAM, "--fresh_start true", "--evaluation_strategy no"),
        *("--target regression", "--target ranking"),
    ],
    "learning-curve --model_name_or_path m --train_file t --dev_file d --test_file e --output_dir o": [
        *("--shares 0.5,1", "--seeds 1", "--target ranking"),
    ],
    "search-params --model_name_or_path m --train_file t --dev_file d --output_dir o --space s.yaml": [
        *("--evaluation_strategy no", "--dry_run true"),
    ],
    "new-model --vocab_file v --output_dir o": [
        *("--hidden_act gleu", "--max_position_embeddings 3"),
    ],
    "predict mlm --model_path m": ["--text ''", "--text [MASK] --input_file a", "--top_k 0 --text [MASK]"],
    "pretrain --model_name_or_path m --input_dir d --output_dir o": [
        *("--warmup_rate 0.01 --warmup_steps 300", f"--warmup_steps 1000000 {WARM} --max_steps 9"),
        *("--use_sharding false --sharding_degree 4", "--geometric true --favor_longer_ngram true"),
        *("--geometric true --max_ngrams 1", "--favor_longer_ngram true --max_ngrams 1"),
        *("--mp_degree 2", "--pp_degree 0", "--report_to comet"),
        *("--amp_dtype float16 --device gpu", "--amp_dtype float32 --device gpu"),
        *(f"--level_weights '{text}'" for text in ("1", "1 1 1 1", "1 1 x", "1 -1 1", "0 0 0", "1 inf 1")),
        "--optimizer lamb --weight_decay 0",
        *(f"{flag} --ngram_lexicon n.txt" for flag in (
            *("--max_ngrams 2", "--geometric true", "--favor_longer_ngram true"),
            *("--level_weights '1 1 2'", "--masking_fn some.module:function"),
        )),
        *(f"{flag} --decoder_masked_prob 0.5" for flag in (
            *("--graph static", "--binary_head true", "--ngram_lexicon n.txt"),
            "--amp_level O2 --use_amp true --device gpu",
        )),
        *(f"--phases {text} --max_steps 6 --max_seq_len 32" for text in (
            *("128", "16:3,,32:3", "16:-3,32:9", "16:0,32:6", "4:3,32:3", "16:3,24:3", "16:3,32:4"),
            *("16:3:4:4,32:3", "16:3:0,32:3"),
        )),
    ],
    "launch": [
        *("--gpus a train", "--gpus 0,1,0 train", "--gpus 1,01 train", "--processes=-1 train"),
        *("--epochs=3", "--num_processes 2 my.py", "--gpu_ids 0,1 my.py", "--num_machines 2 my.py"),
    ],
    "launch pretrain --model_name_or_path m --input_dir d --output_dir o --device cpu": [
        *("--sharding_degree 4 --processes 2", "--use_amp true", "--command train", "--train_file a"),
    ],
}  # fmt: skip
ROWS = [f"{begin} {flags}" for begin, rows in REFUSED.items() for flags in rows]


@pytest.mark.parametrize("words", ROWS)
def test_the_flag_is_named_in_one_line(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    begin = max((begin for begin in REFUSED if words.startswith(f"{begin} --")), key=len)
    named = words[len(begin) :].split("--")[1].replace("=", " ").split()[0]
    code, line = refusal_of(words, capfd)
    assert code == 2 and named in line, line
    assert list(tmp_path.iterdir()) == []
