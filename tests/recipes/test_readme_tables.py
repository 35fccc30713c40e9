"""Every row of the flag tables of the pages is used to train a tiny model.

Pretraining: a row that asks for several processes is a run launched with that many; all other rows together
are one run. Pairs: each flag is a run of its own, and its weights differ from those of the plain run unless
SAME_WEIGHTS says why. What needs a GPU is refused on a CPU with the message listed here.
"""

import re
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import tiny_pair
import tiny_pretrain
from launched import run_script
from pages import ROOT, rows
from safetensors.numpy import load_file

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError, counted, without_flags
from ernie_pair.kernels.library import open_kernels
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(600)]

ROWS = rows()
NEED_A_GPU = {
    "--use_amp true": "--use_amp true --amp_dtype float16 needs a GPU",
    "--sharding stage2": "--sharding stage2 needs GPUs",
}
SAME_WEIGHTS = {
    "--use_recompute true": "the same numbers, computed twice",
    "--early_stopping_patience 3": "ends a run, and changes no step of it",
}
END = "end   step 2/2  100.0%"
SMALLER = {"--global_batch_size 512": "--global_batch_size 8", "--grad_clip 1.0": "--grad_clip 0.01"}


def words_of(flags):
    return [word for flag in flags for word in SMALLER.get(flag, flag).split()]


def knows(config_class, row):
    names = {item.name for item in fields(config_class)}
    return {word[2:] for word in words_of(row.flags) if word.startswith("--")} <= names


def rows_of(config_class):
    tables = {(row.page, row.table) for row in ROWS}
    tables -= {(row.page, row.table) for row in ROWS if not knows(config_class, row)}
    return [row for row in ROWS if (row.page, row.table) in tables]


PRETRAIN, PAIRS = rows_of(PretrainConfig), rows_of(TrainConfig)


def test_every_row_has_flags_of_pretraining_or_pair_training():
    assert len(PRETRAIN) + len(PAIRS) == len(ROWS) and PRETRAIN and PAIRS
    assert all(row.flags and row.flags[0].startswith("--") for row in ROWS)
    shown = {flag for row in ROWS for flag in row.flags}
    assert shown >= {*NEED_A_GPU, *SAME_WEIGHTS, *SMALLER}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_flags_named_in_a_row_exist(row):
    config_class = PretrainConfig if row in PRETRAIN else TrainConfig
    names = {item.name for item in fields(config_class)}
    explained = {
        word for cell in row.cells for word in cell.replace("`", " ").split() if word.startswith("--")
    }
    assert {word.strip(",;)(")[2:] for word in explained} <= names


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrain")
    tiny_pretrain.write_corpus(folder / "data", tiny_pretrain.write_model(folder / "model"))
    return folder


def pretrain(world, output, flags, processes=1, fails=False):
    words = words_of(flags)
    changes = {name[2:]: value for name, value in zip(words[::2], words[1::2])}
    settings = {"max_steps": 2, "eval_iters": 1, "micro_batch_size": 2, "eval_freq": 2, **changes}
    line = tiny_pretrain.flags(world / "model", world / "data", world / output, **settings)
    script = ROOT / "scripts" / "run_pretrain_static.py"
    return run_script(world, script, *line, processes=processes, fails=fails)[0]


def processes_of(row):
    words = words_of(row.flags)
    given = dict(zip(words[::2], words[1::2]))
    return int(given.get("--dp_degree", 1)) * int(given.get("--sharding_degree", 1))


# Each set of flags once, though the pages of both languages show it.
ON_A_CPU = list({tuple(row.flags): row for row in PRETRAIN if row.flags[0] not in NEED_A_GPU}.values())
LAYOUTS = [row for row in ON_A_CPU if processes_of(row) > 1]
OTHERS = [row for row in ON_A_CPU if row not in LAYOUTS]


def param_of(row):
    return pytest.param(row, id=row.name, marks=[pytest.mark.slow] * (row.flags != ["--sharding_degree 4"]))


@pytest.mark.parametrize("row", map(param_of, LAYOUTS))
def test_a_layout_from_the_tables_trains(world, row):
    processes = processes_of(row)
    log = pretrain(world, f"of_{processes}_{len(row.flags[0])}", row.flags, processes)
    assert counted(processes, "process", "processes") in log and END in log


def test_all_other_rows_train_together(world):
    assert END in pretrain(world, "together", [flag for row in OTHERS for flag in row.flags])


def test_a_cpu_refuses_half_precision_but_takes_a_loss_scale(world):
    half = "--use_amp true"
    assert NEED_A_GPU[half] in pretrain(world, "half", [half], fails=True)
    assert END in pretrain(world, "scaled", [half, "--amp_dtype float32"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without any flag of the tables, with a model of seven layers and mostly negative pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    config = tiny_pair.train_config(folder, max_steps=3, learning_rate=5e-3, checkpoint_steps=3)
    tiny_pair.write_model(folder / "model", num_hidden_layers=7)
    lines = (folder / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "train.tsv").write_text("".join(lines[:60] + lines[60::2]), encoding="utf-8")
    train_pair(config)
    return config


def trained_weights(config):
    return load_file(f"{config.output_dir}/model_last/model.safetensors")


def with_flags(config, flags):
    words = flags.split()
    values = {**asdict(config), **{flag[2:]: value for flag, value in zip(words[::2], words[1::2])}}
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return parse_config(TrainConfig, [word for name in given for word in (f"--{name}", str(given[name]))])


@pytest.mark.parametrize("flags", sorted({flag for row in PAIRS for flag in row.flags}))
def test_each_pair_training_flag_has_the_expected_effect(plain, tmp_path, flags):
    reason = without_flags(NEED_A_GPU.get(flags, ""))
    if flags == "--precision bf16":
        reason = re.escape(open_kernels().why_no_bf16 or "")
    if reason:
        with pytest.raises(InputError, match=reason):
            train_pair(with_flags(plain, flags))
        return
    config = replace(with_flags(plain, SMALLER.get(flags, flags)), output_dir=str(tmp_path / "out"))
    assert config != replace(plain, output_dir=config.output_dir)
    train_pair(config)
    before, after = trained_weights(plain), trained_weights(config)
    same = before.keys() == after.keys() and all(np.array_equal(before[n], after[n]) for n in before)
    assert same == (flags in SAME_WEIGHTS)
