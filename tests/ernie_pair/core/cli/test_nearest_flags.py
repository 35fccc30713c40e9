"""Which flag is suggested for a typo, or for the name of a flag in the Trainer of other packages."""

from dataclasses import fields

import pytest
from command_configs import CONFIGS

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.cli.options import hints_of, path_of
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.launch.launch import CONFIGS as LAUNCHED_CONFIGS
from ernie_pair.launch.launch import read_launch
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig

MEANT = {
    TrainConfig: """lr: learning_rate; num_train_epochs: epochs; per_device_train_batch_size: batch_size;
        per-device-train-batch-size: batch_size; max_seq_length: max_seq_len; fp16: use_amp;
        logging_steps: logging_freq; eval_steps: eval_freq; warmup_ratio: warmup_rate;
        init_from_ckpt: model_name_or_path; overwrite_output_dir: fresh_start; max_grad_norm: grad_clip;
        learing_rate: learning_rate""",
    PretrainConfig: """lr: max_lr; per_device_train_batch_size: micro_batch_size; num_train_epochs: max_steps;
        epochs: max_steps""",
    EmbedConfig: "max_length: max_seq_len",
    PredictConfig: "fp16: precision; init_from_ckpt: model_path",
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


@pytest.mark.parametrize("word", ["num_train_epochs", "weight_decya", "do_train"])
@pytest.mark.parametrize("command", LAUNCHED_CONFIGS)
def test_a_launched_command_gives_the_same_hint(command, word, tmp_path):
    with pytest.raises(InputError) as expected:
        parse_config(LAUNCHED_CONFIGS[command], [f"--{word}", "3"])
    (tmp_path / "run.yaml").write_text(f"launch: {{command: {command}, processes: 2}}\n")
    for first in (command, str(tmp_path / "run.yaml")):
        with pytest.raises(InputError) as caught:
            read_launch([first, f"--{word}", "3"])
        assert caught.value.message == expected.value.message


def test_each_unknown_flag_gets_its_own_hint():
    with pytest.raises(InputError) as caught:
        parse_config(TrainConfig, "--do_train --lr 1 --learning_rat 2 --num_train_epochs 3".split())
    assert caught.value.message.endswith("did you mean --learning_rate, --epochs? --help lists the flags")


def test_a_flags_file_gets_the_same_hint(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("seed: 1\nnum_train_epochs: 3\n")
    with pytest.raises(InputError, match=r":2: num_train_epochs is not a flag; did you mean epochs\?"):
        parse_config(TrainConfig, ["--config", str(path)])


@pytest.mark.parametrize("config_class", CONFIGS)
def test_what_is_named_like_a_path_is_one_and_no_number_is(config_class):
    for item in fields(config_class):
        is_named = item.name.endswith(("_file", "_dir", "_path", "_prefix", "_lexicon"))
        assert path_of(item) or not is_named, item.name
        assert not path_of(item) or hints_of(config_class)[item.name] not in (int, float, bool), item.name
