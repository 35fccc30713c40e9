"""What other packages call our flags: transformers, PaddleNLP and its examples, Megatron.

A target is a flag, with its value if the foreign name implies one. Of several targets a command suggests the
first that it has: the batch is --batch_size for pairs, and --micro_batch_size in pretraining.
"""

from dataclasses import Field, fields
from difflib import get_close_matches
from string import ascii_uppercase
from typing import Any, Collection, Dict, List, Sequence, Tuple

_RATE = ("learning_rate", "max_lr")
_BATCH = ("batch_size", "micro_batch_size")
_MODEL = ("model_path", "model", "model_name_or_path", "teacher", "static_model_path")
_START = ("model_name_or_path", "model_path", "model", "static_model_path")
_OUTPUT = ("output_dir", "output_file", "output", "output_path", "output_prefix", "answers_file")
_TRAIN = ("train_file", "input_dir", "input_path", "input_file")
_DEV = ("dev_file", "input_file", "test_file", "eval_file")
_INPUT = ("input_file", "input_path", "texts_file", "queries_file", "text_file", "train_file")
_HALF = ("use_amp true", "precision fp16")
# --amp_dtype auto is bfloat16 if the GPU has it, and has no effect without --use_amp.
_BFLOAT16 = ("use_amp true", "precision bf16")
_LENGTH = ("max_seq_len",)
_SHARDING = ("sharding", "sharding_degree")


def _same(target: Tuple[str, ...], words: str) -> Dict[str, Tuple[str, ...]]:
    return dict.fromkeys(words.split(), target)


FOREIGN_FLAGS: Dict[str, Tuple[str, ...]] = {
    # optimisation
    **_same(_RATE, "lr learningrate peak_lr base_lr init_lr max_learning_rate learning_rate max_lr"),
    **_same(("min_lr",), "min_learning_rate end_lr lr_end"),
    **_same(("epochs",), "num_train_epochs num_epochs n_epochs epoch train_epochs max_epochs epochs"),
    **_same(
        ("max_steps",), "num_training_steps num_train_steps max_train_steps total_steps train_iters steps"
    ),
    **_same(_BATCH, "per_device_train_batch_size per_gpu_train_batch_size train_batch_size bs batch"),
    **_same(_BATCH, "mini_batch_size batch_size micro_batch_size"),
    **_same(
        ("eval_batch_size", *_BATCH), "per_device_eval_batch_size per_gpu_eval_batch_size eval_batch_size"
    ),
    **_same(
        ("gradient_accumulation_steps", "global_batch_size"),
        "gradient_accumulation accumulate_steps accumulate_gradients grad_accum accumulate_grad_batches "
        "gradient_merge_steps acc_steps gradient_accumulation_steps",
    ),
    **_same(("warmup_rate",), "warmup_ratio warmup_proportion warmup_fraction lr_warmup_fraction"),
    **_same(("warmup_steps",), "num_warmup_steps warmup warmup_iters lr_warmup_iters warmup_step"),
    **_same(("weight_decay",), "wd weightdecay l2 weight_decay_rate"),
    **_same(("grad_clip",), "max_grad_norm clip_grad clip_norm gradient_clip_val grad_norm clip_gradients"),
    **_same(("lr_scheduler_type", "lr_decay_style"), "lr_scheduler scheduler lr_decay lr_schedule"),
    **_same(("decay_steps",), "lr_decay_iters lr_decay_steps"),
    **_same(("optimizer",), "optim"),
    **_same(("adam_beta1",), "beta1"),
    **_same(("adam_beta2",), "beta2"),
    **_same(("adam_epsilon",), "epsilon eps adam_eps"),
    **_same(("dropout", "hidden_dropout_prob"), "hidden_dropout_prob dropout_prob dropout_rate dropout"),
    **_same(("attention_probs_dropout_prob", "dropout"), "attention_dropout attn_dropout"),
    **_same(("rdrop_alpha",), "rdrop_coef rdrop use_rdrop r_drop"),
    **_same(("fgm_epsilon",), "fgm adv_epsilon use_fgm"),
    **_same(("layer_decay",), "layerwise_lr_decay layer_lr_decay llrd layerwise_decay"),
    **_same(("freeze encoder",), "freeze_encoder freeze_base_model"),
    **_same(("seed",), "random_seed data_seed set_seed"),
    **_same(("use_recompute",), "gradient_checkpointing recompute enable_recompute checkpoint_activations"),
    # precision
    **_same(_HALF, "fp16 use_fp16 amp mixed_precision half float16"),
    **_same(_BFLOAT16, "bf16 use_bf16 bfloat16"),
    **_same(("precision",), "dtype torch_dtype fp16_full_eval bf16_full_eval"),
    **_same(("amp_level",), "fp16_opt_level opt_level o1 o2"),
    **_same(("amp_dtype",), "half_precision_backend amp_type"),
    **_same(("init_loss_scaling",), "loss_scale scale_loss initial_loss_scale"),
    # model and data
    **_same(_MODEL, "params_path model_dir ckpt ckpt_path checkpoint_path model_file model_path"),
    **_same(
        _START, "init_from_ckpt init_from_params init_checkpoint pretrained_model_name_or_path model_name"
    ),
    **_same(_START, "pretrained_model pretrained_model_path load bert_model load_checkpoint from_pretrained"),
    **_same(
        _LENGTH, "max_seq_length max_length max_len seq_len seq_length sequence_length max_sequence_length"
    ),
    **_same(_LENGTH, "max_source_length block_size"),
    **_same(
        _TRAIN, "train_path train_data train_set train_dataset data_path data_dir data train train_data_path"
    ),
    **_same(_TRAIN, "dataset dataset_name task_name dataset_path"),
    **_same(_DEV, "validation_file valid_file valid_path dev_path eval_file eval_path dev_set dev_data dev"),
    **_same(_DEV, "eval_dataset validation_data valid_data eval_data_path test_path test_data test_file"),
    **_same(_INPUT, "input_file input_path input predict_file predict_path data_file corpus texts"),
    **_same(
        _OUTPUT, "output_dir output out save_dir save_path checkpoint_dir logging_dir output_file ckpt_dir"
    ),
    **_same(("vocab_file",), "vocab vocab_path vocabulary tokenizer_vocab"),
    **_same(("text_a",), "text_column sentence1_key text_a_column first_column sentence1 query_column"),
    **_same(("text_b",), "text_pair_column sentence2_key text_b_column second_column sentence2 title_column"),
    **_same(("label",), "label_column_name label_column label_key"),
    **_same(("label_map",), "label_list num_labels num_classes labels id2label label2id"),
    **_same(("cache_dir",), "overwrite_cache preprocessing_cache"),
    **_same(("masked_lm_prob",), "mlm_probability mlm_prob mask_prob masked_lm_probability"),
    **_same(("cn_whole_word_segment", "whole_word_mask"), "wwm whole_word_masking cn_whole_word"),
    **_same(("bucket",), "group_by_length length_bucket"),
    **_same(("pooling",), "pooler pooling_mode pooler_type pooling_strategy"),
    # evaluation, logs and checkpoints
    **_same(("eval_freq",), "eval_steps evaluation_steps valid_steps eval_interval eval_strategy eval_step"),
    **_same(("eval_freq",), "evaluation_strategy val_check_interval eval_every"),
    **_same(("logging_freq", "log_interval"), "logging_steps log_steps log_freq log_every log_interval"),
    **_same(("logging_freq",), "logging_strategy print_freq log_every_n_steps"),
    **_same(
        ("checkpoint_steps", "save_steps"), "save_steps save_freq save_interval save_strategy save_every"
    ),
    **_same(("keep_checkpoints",), "save_total_limit max_checkpoints num_checkpoints keep_checkpoint_max"),
    **_same(("best_metric",), "metric_for_best_model metric monitor metric_name"),
    **_same(("early_stopping_patience",), "early_stopping patience early_stop early_stop_patience"),
    **_same(("early_stopping_min_delta",), "early_stopping_threshold min_delta"),
    **_same(
        ("fresh_start true", "overwrite true"), "overwrite_output_dir force from_start overwrite restart"
    ),
    **_same(("allow_change",), "ignore_data_skip override"),
    **_same(("report_to wandb",), "wandb use_wandb"),
    **_same(("report_to tensorboard",), "tensorboard use_tensorboard"),
    **_same(("bootstrap",), "num_bootstrap n_bootstrap bootstrap_samples"),
    **_same(("scores true",), "return_probs probs probabilities output_probs return_all_scores"),
    **_same(("threshold",), "cls_threshold decision_threshold similarity_threshold"),
    **_same(("top_k",), "k topk num_results n_best"),
    **_same(("beam_size",), "num_beams num_beam beams"),
    **_same(("trials",), "n_trials num_trials"),
    **_same(("folds",), "k_fold kfold n_splits num_folds"),
    # devices and processes
    **_same(("device cpu",), "no_cuda use_cpu cpu"),
    **_same(("device gpu",), "use_gpu cuda use_cuda gpu"),
    **_same(("device",), "devices select_device accelerator"),
    **_same(
        _SHARDING, "zero_stage sharding_stage fsdp deepspeed group_sharded sharding sharding_parallel_degree"
    ),
    **_same(("dp_degree",), "data_parallel_degree dp data_parallel_size"),
    **_same(
        ("workers", "num_workers"), "dataloader_num_workers num_workers preprocessing_num_workers num_proc"
    ),
    **_same(("workers", "processes"), "n_jobs jobs processes num_processes"),
    **_same(("nnodes",), "num_machines num_nodes"),
    **_same(("master",), "main_process_ip master_addr rdzv_endpoint"),
    **_same(("threads",), "num_threads cpu_threads n_threads"),
    **_same(("host",), "ip address bind"),
    **_same(("max_batch",), "max_batch_size"),
    **_same(("format onnx",), "onnx to_onnx"),
    **_same(("quantize", "int8"), "quantization quant int8"),
    **_same(("backend",), "provider engine_type"),
}

_BY_COMMANDS = "`ernie-pair train` trains, `evaluate` evaluates and `predict` predicts: leave it out"
LAUNCHED = "several processes are started by `ernie-pair launch COMMAND --gpus 0,1`: leave it out here"
# For `ernie-pair launch` itself.
LAUNCHING = "name the GPUs by --gpus 0,1, or give the number of processes on the CPU as --processes"
# For a command without --epochs: pretraining.
STEPS_ALONE = (
    "pretraining counts steps: give --max_steps, which is epochs x samples of the corpus / samples of a step "
    "(--global_batch_size); --dry_run true says how many epochs a number of steps makes"
)
_BY_ITSELF = "a run resumes from its newest checkpoint when its command is started again: leave it out"

# What has no flag here, and what to do instead.
ADVICE: Dict[str, str] = {
    **dict.fromkeys("do_train do_eval do_predict do_test do_export".split(), _BY_COMMANDS),
    **dict.fromkeys("gpus n_gpu num_gpus gpu_ids nproc_per_node local_rank nnodes".split(), LAUNCHED),
    **dict.fromkeys("resume resume_from_checkpoint auto_resume".split(), _BY_ITSELF),
    "disable_tqdm": "a bar is shown on a terminal and in a notebook alone; TQDM_DISABLE=1 in the environment "
    "hides it: leave it out",
    "load_best_model_at_end": "the best model is always kept, in OUTPUT_DIR/best: leave it out",
}


def left_out_of_command(config_class: Any, left_out: Sequence[Field], program: str) -> str:
    """Return which arguments and flags of ``program`` are missing, and an example or what explains them."""
    names = [item.name.upper() if item.metadata["positional"] else f"--{item.name}" for item in left_out]
    has_argument = left_out[0].metadata["positional"]
    other = _taking_the_place(config_class, left_out)
    words = ascii_uppercase[: config_class.__dataclass_fields__[other].metadata["values"]] if other else ""
    missing = _missing(names, left_out, f"--{other} {' '.join(words)}" if other else "")
    if has_argument and config_class.EXAMPLE:
        return f"{missing}; for example: {program} {config_class.EXAMPLE}"
    return f"{missing}; --help says what {'it means' if len(names) == 1 else 'they mean'}"


def left_out_of_call(config_class: Any, left_out: Sequence[Field]) -> str:
    """Return which keywords of a call in Python are missing, and how they are given."""
    names = [item.name for item in left_out]
    other = _taking_the_place(config_class, left_out)
    given = ", ".join(f"{name}=..." for name in names)
    missing = _missing(names, left_out, f"{other}=..." if other else "")
    return f"{missing}; give {'it' if len(names) == 1 else 'them'}: {config_class.__name__}({given})"


def _missing(names: Sequence[str], left_out: Sequence[Field], other: str) -> str:
    """Return that ``names`` are missing, with what a single one means and what takes their place."""
    if len(names) == 1 and left_out[0].metadata["positional"]:
        return f"{names[0]} is missing: {left_out[0].metadata['help']}"
    missing = f"{names[0]} is missing" if len(names) == 1 else f"{_listed(names)} are missing"
    replaced = [name for name, item in zip(names, left_out) if item.metadata["unless"]]
    return f"{missing} ({other} takes the place of {_listed(replaced)})" if other else missing


def _taking_the_place(config_class: Any, left_out: Sequence[Field]) -> str:
    """Return the option that takes the place of some that were left out; '' for none."""
    others: List[str] = [item.metadata["unless"] for item in left_out if item.metadata["unless"]]
    for other in others:
        if others.count(other) == sum(item.metadata["unless"] == other for item in fields(config_class)):
            return other
    return ""


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


_MOST = 3


def nearest_names(word: str, names: Collection[str]) -> List[str]:
    """Return the names that begin with a word, at most 3, or else the one that it misspells; [] for none."""
    begun = sorted((name for name in names if len(word) > 2 and name.startswith(word)), key=len)
    return begun[:_MOST] or get_close_matches(word, list(names), n=1)


def meant_flags(word: str, names: Collection[str]) -> List[str]:
    """Return the flags, with a value if the name implies one, that a foreign or misspelt name may mean.

    ``names``: the flags of the command. Names in other packages take precedence over similar spelling.
    """
    key = word.lower().replace("-", "_")
    translated = [target for target in FOREIGN_FLAGS.get(key, ()) if target.split()[0] in names]
    return translated[:1] or nearest_names(key, names)[:1]


def advice_on(word: str, names: Collection[str]) -> str:
    """Return what to do instead of a flag of other packages that does not exist here; '' for other words.

    ``names``: the flags of the command.
    """
    key = word.lower().replace("-", "_")
    counts_steps = "epochs" not in names and {"max_steps", "global_batch_size"} <= set(names)
    if counts_steps and FOREIGN_FLAGS.get(key) == ("epochs",):
        return STEPS_ALONE
    advice = ADVICE.get(key, "")
    return LAUNCHING if advice == LAUNCHED and {"gpus", "processes"} <= set(names) else advice


_ENDINGS = {"_file": "FILE", "_dir": "FOLDER", "_path": "PATH", "_prefix": "PREFIX", "_lexicon": "FILE"}
_PLACES = {
    **dict.fromkeys(("report", "index"), "FOLDER"),
    **dict.fromkeys(("config", "train_config", "calibrate_on", "tune_on", "file"), "FILE"),
    **dict.fromkeys(("output", "input", "prefix", "model", "teacher", "reranker"), "PATH"),
    **dict.fromkeys(("model_name_or_path", "embedding_model", "add_twins_to", "domain_data"), "PATH"),
    **dict.fromkeys(("checkpoint", "checkpoints", "first", "second"), "PATH"),
}


def place_word(name: str) -> str:
    """Return the placeholder of option ``name``: FILE, FOLDER, PATH or PREFIX; '' if it takes no path."""
    ending = next((word for end, word in _ENDINGS.items() if name.endswith(end)), "")
    return _PLACES.get(name, ending)
