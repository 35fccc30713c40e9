"""Custom model classes: they train, save and load when named, and are never imported on a folder's say-so."""

import json
import shutil
import sys
import textwrap

import numpy as np
import pytest
from asked import predicted
from paddle import nn
from tiny_pair import toy_rows, train_config, write_model, write_pairs

from ernie_pair import PairClassifier, PairConfig, PairTrainer
from ernie_pair.core.errors import InputError
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.models.networks import classifier as model_class
from ernie_pair.models.networks.classifier import build_classifier, load_classifier
from ernie_pair.models.source import open_model
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.weights.weight_files import read_weights

TRAIN, DEV = list(toy_rows(90, seed=0)), list(toy_rows(41, seed=1))
SETTINGS = {"model_type": "ernie", "max_steps": 6, "batch_size": 16, "learning_rate": 5e-3, "device": "cpu"}
SOURCE = """
from paddle import nn
from ernie_pair import PairClassifier

open("imported.txt", "a").write("once ")


class Deeper(PairClassifier):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = nn.Linear(self.num_classes, self.num_classes)

    def forward(self, input_ids, token_type_ids):
        return self.extra(super(Deeper, self).forward(input_ids, token_type_ids))


class Plain(Deeper):
    def forward(self, input_ids, token_type_ids):
        return super(Plain, self).forward(input_ids, token_type_ids) + sum(input_ids.tolist()[0])


class Stranger(nn.Layer):
    pass
"""
NAME = "own_models:Deeper"


class Scaled(PairClassifier):
    """A custom class, defined in this module."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.5))

    def forward(self, input_ids, token_type_ids):
        return self.scale * super().forward(input_ids, token_type_ids)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder, with a user's module and an initial model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    (tmp_path / "own_models.py").write_text(SOURCE)
    source = open_model(str(write_model(tmp_path / "new")), model_type="ernie", from_scratch=True)
    (tmp_path / "start").mkdir()
    build_classifier(source, seed=3, dropout=0.1).write(tmp_path / "start", source.vocab_file)
    yield tmp_path
    sys.modules.pop("own_models", None)


def trained(here, **changes):
    config = PairConfig(str(here / "out"), **{**SETTINGS, "model_class": NAME, **changes})
    trainer = PairTrainer(here / "start", config, TRAIN, DEV)
    return trainer, trainer.train().best_model


def test_custom_layers_train_save_and_load(here):
    trainer, best = trained(here)
    told = json.loads((best / "config.json").read_text())
    assert (told["model_class"], told["architectures"], told["model_type"]) == (NAME, ["Deeper"], "ernie")
    expected = trainer.predict(DEV).predictions
    model, _ = load_classifier(str(best), NAME)
    assert type(model).__name__ == "Deeper"
    weights = {name: value.numpy() for name, value in model.named_parameters()}
    config = PairConfig("elsewhere", **{**SETTINGS, "model_class": NAME})
    again = PairTrainer(best, config, TRAIN, DEV)
    np.testing.assert_array_equal(again.predict(DEV).predictions, expected)
    loaded = {name: value.numpy() for name, value in again.model.named_parameters()}
    assert {"extra.weight", "extra.bias"} < loaded.keys() == weights.keys()
    again.save_model(here / "final")
    assert json.loads((here / "final" / "config.json").read_text())["model_class"] == NAME


def test_custom_layers_learn_and_resume_bit_identically(here):
    config = PairConfig(str(here / "whole"), **{**SETTINGS, "model_class": NAME, "checkpoint_steps": 3})
    whole = PairTrainer(here / "start", config, TRAIN, DEV)
    before = whole.model.extra.weight.numpy()
    whole.train()
    shutil.copytree(here / "whole", here / "cut")
    shutil.rmtree(here / "cut" / "checkpoints" / "step_00000006")
    resumed = PairTrainer(here / "start", PairConfig(str(here / "cut"), **{**SETTINGS, "model_class": NAME}))
    resumed.train_dataset, resumed.eval_dataset = TRAIN, DEV
    resumed.train()
    weights = "checkpoints/step_00000006/model.safetensors"
    assert (here / "cut" / weights).read_bytes() == (here / "whole" / weights).read_bytes()
    (last,) = (here / "whole" / "checkpoints").glob("step_00000006")
    assert not np.array_equal(read_weights(last / "model.safetensors")["extra.weight"], before)
    with pytest.raises(InputError, match="model_class was 'own_models:Deeper' and is now None"):
        other = PairConfig(str(here / "cut"), **SETTINGS)
        PairTrainer(here / "start", other, TRAIN, DEV).train()


def test_a_class_named_by_a_folder_is_never_auto_imported(here):
    _, best = trained(here)
    sys.modules.pop("own_models")
    (here / "imported.txt").unlink()
    pairs = write_pairs(here / "pairs.tsv", 20)
    config = PairConfig("elsewhere", **SETTINGS)
    for attempt in (
        lambda: load_classifier(str(best)),
        lambda: predicted(best, pairs, here / "answers.tsv"),
        lambda: export_pair(ExportConfig(str(best), str(here / "ship"))),
        lambda: PairTrainer(best, config),
    ):
        with pytest.raises(InputError, match="names the class own_models:Deeper: code of somebody"):
            attempt()
    assert not (here / "imported.txt").exists() and "own_models" not in sys.modules


@pytest.mark.parametrize(
    "name, reason",
    [
        ("own_models", "model_class own_models is not package.module:class; write a class like that"),
        ("own_models:Absent", "own_models has no class Absent; fix the name"),
        ("no_such_module:Deeper", "No module named 'no_such_module'; set PYTHONPATH or fix the name"),
        ("own_models:Stranger", "Stranger is not a subclass of PairClassifier; derive it from that"),
        ("collections:Counter", "collections:Counter is not a subclass of PairClassifier"),
    ],
)
def test_an_invalid_model_class_is_refused(here, name, reason):
    with pytest.raises(InputError, match=reason):
        PairTrainer(here / "start", PairConfig("out", **{**SETTINGS, "model_class": name}))


def test_a_model_class_that_contradicts_the_folder_is_refused(here):
    _, best = trained(here)
    told = json.loads((best / "config.json").read_text())
    (best / "config.json").write_text(json.dumps({**told, "model_class": "theirs:Deeper"}))
    with pytest.raises(InputError, match="names the class theirs:Deeper, and model_class own_models:Deeper"):
        load_classifier(str(best), NAME)
    (best / "config.json").write_text(json.dumps({**told, "model_class": 7}))
    with pytest.raises(InputError, match="model_class is 7, and takes a text; correct it"):
        load_classifier(str(best), NAME)
    with pytest.raises(InputError, match="is a model without a class of its own; leave model_class .* out"):
        load_classifier(str(here / "start"), NAME)


def test_the_commands_train_predict_and_export_a_custom_class(here):
    config = train_config(here, model_class=NAME, max_steps=2)
    train_pair(config)
    (best,) = (here / "out").glob("best-accuracy-*")
    pairs = write_pairs(here / "pairs.tsv", 20)
    answers = predicted(best, pairs, here / "answers.tsv", model_class=NAME)
    assert len(answers["prediction"]) == 20
    export_pair(ExportConfig(str(best), str(here / "ship"), model_class=NAME))  # which checks parity


def test_export_refuses_a_class_without_a_static_graph(here):
    _, best = trained(here, model_class="own_models:Plain", max_steps=1)
    ship = ExportConfig(str(best), str(here / "ship"), model_class="own_models:Plain")
    with pytest.raises(InputError, match=r"no static graph .*'tolist'.*; write super\(Plain, self\) in"):
        export_pair(ship)
    assert not (here / "ship").exists()


def test_the_docstring_example_works(here):
    example = model_class.__doc__.split("\n\n", 1)[1].split("\n\nIt is trained")[0]
    head = "from paddle import nn\nfrom ernie_pair import PairClassifier\n"
    (here / "own_models.py").write_text(f"{head}\n{textwrap.dedent(example)}\n")
    trainer, best = trained(here, model_class="own_models:WithMargin", max_steps=1)
    assert "extra.weight" in dict(trainer.model.named_parameters())
    export_pair(ExportConfig(str(best), str(here / "ship"), model_class="own_models:WithMargin"))


def test_an_in_memory_custom_model_trains_without_a_flag(here):
    source = open_model(str(here / "new"), model_type="ernie", from_scratch=True)
    model = build_classifier(source, seed=1, dropout=0.0, model_class=Scaled)
    config = PairConfig(str(here / "out"), **SETTINGS)
    trainer = PairTrainer(model, config, TRAIN, DEV, vocab_file=source.vocab_file)
    best = trainer.train().best_model
    told = json.loads((best / "config.json").read_text())["model_class"]
    assert told == f"{__name__}:Scaled" and trainer.config.model_class == told
    again, _ = load_classifier(str(best), told)
    assert again.scale.numpy() == model.scale.numpy()

    class Hidden(PairClassifier):
        pass

    with pytest.raises(InputError, match="Hidden cannot be found again by its name; define it at the top"):
        build_classifier(source, seed=1, dropout=0.0, model_class=Hidden)
