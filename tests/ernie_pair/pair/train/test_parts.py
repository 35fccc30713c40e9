"""A custom training loop, as the documentation writes it, compared with PairTrainer."""

import re

import numpy as np
import pytest
from places import ROOT
from tiny_pair import toy_rows, write_model

from data_tools.base.errors import InputError
from ernie_pair import PairConfig, PairTrainer
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.processes.world import World
from ernie_pair.weights.weight_files import read_weights

TRAIN, DEV = list(toy_rows(90, seed=0)), list(toy_rows(41, seed=1))
SETTINGS = {
    **{"model_type": "ernie", "from_scratch": True, "epochs": 2, "batch_size": 16, "learning_rate": 5e-3},
    **{"dropout": 0.1, "device": "cpu"},
}


def loop_of_the_page():
    """The statements between opening the parts and the evaluation."""
    page = (ROOT / "docs" / "en" / "fine-tune.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "open_parts" in b]
    imports = block.split("\n\n")[0]
    return (
        imports + "\nparts = trainer.open_parts()" + block.split("trainer.open_parts()")[1].split("print(")[0]
    )


@pytest.fixture
def make(tmp_path):
    model = write_model(tmp_path / "model")

    def trainer(folder, **changes):
        config = PairConfig(str(tmp_path / folder), **{**SETTINGS, **changes})
        return PairTrainer(model, config, TRAIN, DEV)

    return trainer


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_accumulation_steps": 2, "batch_size": 8, "lr_scheduler_type": "cosine", "warmup_steps": 3},
        {"grad_clip": 0.05, "layer_decay": 0.8, "freeze": "embeddings", "max_steps": 5},
    ],
)
def test_a_custom_loop_gives_the_same_weights_as_the_trainer(tmp_path, make, changes):
    run = make("run", **changes)
    run.train()
    last = read_weights(tmp_path / "run" / "model_last" / "model.safetensors")
    trainer = make("loop", **changes)
    before = {name: value.numpy() for name, value in trainer.model.named_parameters()}
    exec(loop_of_the_page(), {"trainer": trainer})
    after = {name: value.numpy() for name, value in trainer.model.named_parameters()}
    assert after.keys() == last.keys() and any(not np.array_equal(after[n], before[n]) for n in after)
    for name, value in after.items():
        np.testing.assert_array_equal(value, last[name], err_msg=name)
    assert not list((tmp_path / "loop").rglob(MANIFEST))
    metrics = [e for e in run.state.log_history if e["step"] == run.state.global_step and "eval_loss" in e]
    assert trainer.evaluate()["loss"] == metrics[0]["eval_loss"]
    trainer.save_model(tmp_path / "final")
    assert (tmp_path / "final" / "model_state.pdparams").is_file()


@pytest.mark.parametrize(
    "change", [{"rdrop_alpha": 1.0}, {"class_weights": "balanced"}, {"early_stopping_patience": 2}]
)
def test_flags_that_a_custom_loop_would_ignore_are_refused(make, change):
    (name,) = change
    with pytest.raises(InputError, match=f"^{name}.* is done by PairTrainer.train, and not by a loop"):
        make("loop", **change).open_parts()


def test_open_parts_refuses_several_processes(make):
    trainer = make("loop")
    trainer.world = World(0, 2)
    with pytest.raises(InputError, match="open_parts is for one process; call train"):
        trainer.open_parts()
