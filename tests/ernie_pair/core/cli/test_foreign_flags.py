"""Which flag is suggested for a typo, or for the name of a flag in other packages."""

import subprocess
import sys
from dataclasses import fields

import pytest
from command_configs import CONFIGS
from places import ROOT

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.cli.flag_words import flags_given, split_words
from ernie_pair.core.cli.foreign_flags import ADVICE, STEPS_ALONE, foreign_flags
from ernie_pair.core.cli.options import hints_of, place_word, read_given
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.launch.launch_config import CONFIGS as LAUNCHED_CONFIGS
from ernie_pair.launch.launch_config import LaunchConfig, read_launch
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig

OURS = {item.name: (one, item) for one in [*CONFIGS, LaunchConfig] for item in fields(one)}


@pytest.mark.parametrize("foreign", foreign_flags())
def test_each_suggested_flag_exists_and_takes_its_value(foreign):
    for target in foreign_flags()[foreign]:
        name, _, value = target.partition(" ")
        assert name in OURS and not OURS[name][1].metadata["positional"], target
        if value:
            split = split_words([f"--{name}", value], OURS[name][0])
            given = flags_given(split, OURS[name][0])[name]
            assert read_given(given, hints_of(OURS[name][0])[name]) in (value, True), target


def test_foreign_names_are_normalised_and_unique():
    for name in [*foreign_flags(), *ADVICE]:
        assert name == name.lower() and "-" not in name
    assert not set(foreign_flags()) & set(ADVICE)


MEANT = {
    TrainConfig: """lr: learning_rate; num_train_epochs: epochs; per_device_train_batch_size: batch_size;
        per-device-train-batch-size: batch_size; max_seq_length: max_seq_len; fp16: use_amp true;
        bf16: use_amp true; save_steps: checkpoint_steps; logging_steps: logging_freq; eval_steps: eval_freq;
        warmup_ratio: warmup_rate; warmup_proportion: warmup_rate; init_from_ckpt: model_name_or_path;
        overwrite_output_dir: fresh_start true; rdrop_coef: rdrop_alpha; max_grad_norm: grad_clip;
        learing_rate: learning_rate; early_stop: early_stopping_patience""",
    PretrainConfig: """lr: max_lr; per_device_train_batch_size: micro_batch_size;
        gradient_accumulation_steps: global_batch_size; tensorboard: report_to tensorboard""",
    EmbedConfig: "max_length: max_seq_len",
    PredictConfig: "fp16: precision fp16; init_from_ckpt: model_path; params_path: model_path",
    EvaluateConfig: "test_file: input_file",
}


@pytest.mark.parametrize(
    ("config_class", "pair"),
    [(one, " ".join(pair.split())) for one, pairs in MEANT.items() for pair in pairs.split(";")],
)
def test_a_foreign_or_misspelt_flag_suggests_ours(config_class, pair):
    word, meant = pair.replace("-", "_").split(": ")
    with pytest.raises(InputError) as caught:
        parse_config(config_class, [f"--{pair.split(': ')[0]}", "3"])
    hint = f"did you mean --{meant}? --help lists the flags"
    assert caught.value.message == f"unrecognized arguments: --{word} 3; {hint}"


NEEDED = "--model_name_or_path x --train_file x --dev_file x --output_dir x".split()


def test_our_flags_may_be_written_with_dashes():
    config = parse_config(TrainConfig, "--weight-decay 0.5 --epochs 2".split() + NEEDED)
    assert (config.weight_decay, config.epochs) == (0.5, 2)


@pytest.mark.parametrize("word", ADVICE)
def test_a_foreign_flag_without_equivalent_gives_advice(word):
    with pytest.raises(InputError) as caught:
        parse_config(TrainConfig, [f"--{word}"])
    assert caught.value.message == (
        f"unrecognized arguments: --{word}; {ADVICE[word]}; --help lists the flags"
    )


@pytest.mark.parametrize("word", ["num_train_epochs", "epochs"])
def test_epochs_in_pretraining_suggest_max_steps(word):
    with pytest.raises(InputError, match="pretraining counts steps: give max_steps, which is epochs x sampl"):
        parse_config(PretrainConfig, [f"--{word}", "3"])


@pytest.mark.parametrize("word", "num_train_epochs lr fp16 do_train".split())
@pytest.mark.parametrize("command", LAUNCHED_CONFIGS)
def test_a_launched_command_gives_the_same_hint(command, word, tmp_path):
    with pytest.raises(InputError) as expected:
        parse_config(LAUNCHED_CONFIGS[command], [f"--{word}", "3"])
    (tmp_path / "run.yaml").write_text(f"launch: {{command: {command}, processes: 2}}\n")
    for first in (command, str(tmp_path / "run.yaml")):
        with pytest.raises(InputError) as caught:
            read_launch([first, f"--{word}", "3"])
        assert caught.value.message == expected.value.message


@pytest.mark.parametrize("word", ["num_gpus", "n_gpu"])
def test_launch_explains_how_to_set_the_process_count(word):
    with pytest.raises(InputError, match="name the GPUs by gpus 0,1, or give the number of processes on"):
        read_launch(["train", f"--{word}", "2"])


@pytest.mark.recipes
def test_scripts_give_the_same_hint():
    for file in ("-m ernie_pair pretrain", "scripts/run_pretrain_static.py"):
        words = [sys.executable, *file.split(), "--num_train_epochs", "3"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 2 and done.stderr.startswith("error: ") and STEPS_ALONE in done.stderr


def test_each_unknown_flag_gets_its_own_hint():
    with pytest.raises(InputError) as caught:
        parse_config(TrainConfig, "--do_train --do_eval --lr 1 --learning_rat 2 --num_epochs 3".split())
    assert caught.value.message.endswith(
        f"{ADVICE['do_train']}; did you mean --learning_rate, --epochs? --help lists the flags"
    )


def test_a_flags_file_recognises_foreign_names_too(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("seed: 1\nnum_train_epochs: 3\n")
    with pytest.raises(InputError, match=r":2: num_train_epochs is not a flag; did you mean epochs\?"):
        parse_config(TrainConfig, ["--config", str(path)])


def test_path_options_are_recognised_by_name():
    places = {name: place_word(name) for name in ("train_file", "output_dir", "model_path", "seed")}
    assert places == {"train_file": "FILE", "output_dir": "FOLDER", "model_path": "PATH", "seed": ""}
    for one in CONFIGS:  # a number or a boolean is not a path
        for item in fields(one):
            assert not place_word(item.name) or hints_of(one)[item.name] not in (int, float, bool), item.name
