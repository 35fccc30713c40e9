"""PairTrainer trains any layer that returns logits: a reader's own class, and PaddleNLP's classifiers."""

import json
from collections import namedtuple

import numpy as np
import paddle
import pytest
from own_layers import TINY, Bag, bag, paddlenlp_model, state, tutorial_model
from paddle import nn
from paddlenlp.transformers import BertForSequenceClassification, ErnieForSequenceClassification
from run_files import events, killed_after
from tiny_pair import DEV, TRAIN, VOCAB
from tiny_pair import SETTINGS as TINY_RUN

from ernie_pair import PairCallback, PairClassifier, PairConfig, PairTrainer
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.models.networks.classifier import classifier_around
from ernie_pair.models.networks.custom_model import CustomModel
from ernie_pair.models.spec import parse_spec
from ernie_pair.weights.weight_files import read_weights

SETTINGS = {**TINY_RUN, "max_seq_len": 32, "epochs": 2, "eval_freq": 5, "checkpoint_steps": 4}
Answer = namedtuple("Answer", "logits")


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    return path


@pytest.fixture
def make(tmp_path, vocab_file):
    def trainer(layer, *datasets, own=None, folder="out", **settings):
        config = PairConfig(str(tmp_path / folder), **{**SETTINGS, **settings})
        own = {"vocab_file": vocab_file, **(own or {})}
        return PairTrainer(layer, config, *(datasets or (TRAIN, DEV)), **own)

    return trainer


def same(first, second):
    assert first.keys() >= second.keys()
    return {name for name in second if np.array_equal(first[name], second[name])}


@pytest.mark.parametrize("layer", [tutorial_model, paddlenlp_model])
def test_any_layer_is_trained_and_holds_the_best_weights(make, layer):
    layer, seen = layer(), []
    before = state(layer)

    class Look(PairCallback):
        def on_train_begin(self, *args, **kwargs):
            seen.append(state(layer))

    trainer = make(layer, own={"callbacks": [Look()]}, epochs=8)
    result = trainer.train()
    assert same(seen[0], before) == set(before)  # the first step starts from the weights it has
    assert result.is_done and result.metrics["accuracy"] > 0.6
    assert trainer.evaluate().items() >= result.metrics.items()
    after, saved = state(layer), read_weights(result.best_model / "model_state.pdparams")
    assert same(after, saved) == set(before) and same(after, before) != set(before)
    card = (result.best_model / "README.md").read_text(encoding="utf-8")
    is_own = type(layer).__name__ in ("TeachingPlanModel", "Bag")
    assert (f"layer = {type(layer).__name__}(...)" in card and 'weights="."' in card) == is_own
    assert ("ernie-pair evaluate" in card) != is_own


def test_a_trainer_changes_no_mode_and_no_random_numbers(make):
    layer = tutorial_model()
    layer.train()
    layer.dropout.eval()
    paddle.seed(5)
    wanted = paddle.rand([4]).numpy()
    paddle.seed(5)
    trainer = make(layer)
    assert np.array_equal(paddle.rand([4]).numpy(), wanted)
    assert layer.training and layer.ptm.training and not layer.dropout.training
    assert trainer.model.spec.max_positions == TINY["max_position_embeddings"]


@pytest.mark.parametrize("layer", [tutorial_model, bag])
def test_a_resumed_run_of_a_layer_equals_an_unbroken_one(tmp_path, make, layer):
    whole, second = layer(), layer(seed=9)  # the checkpoint has the weights
    make(whole, folder="whole").train()
    with killed_after(5):
        make(layer()).train()
    assert make(second).train().step == 12
    assert events(tmp_path / "out") == events(tmp_path / "whole")
    assert same(state(second), state(whole)) == set(state(whole))


@pytest.mark.parametrize("layer, part, head", [
    (tutorial_model, "ptm", "clf"), (paddlenlp_model, "ernie", "classifier"),
])  # fmt: skip
def test_what_the_caller_froze_stays_without_optimizer_state(tmp_path, make, layer, part, head):
    layer = layer()
    for parameter in getattr(layer, part).parameters():
        parameter.stop_gradient = True
    before, last = state(layer), tmp_path / "out" / "model_last"
    make(layer, max_steps=4).train()
    trained = {f"{head}.weight", f"{head}.bias"}
    assert same(read_weights(last / "model.safetensors"), before) == set(before) - trained
    found = read_weights(last / "optimizer.safetensors")
    assert {name.rpartition(".")[0] for name in found} == trained


@pytest.mark.parametrize(
    "answer",
    [lambda logits: (logits, "hidden"), lambda logits: [logits], lambda logits: {"logits": logits}, Answer],
)
def test_logits_are_found_in_what_a_layer_returns(make, answer):
    plain, wrapped = bag(), bag(answer=answer)
    expected = make(plain, folder="plain").predict(DEV).predictions
    assert np.array_equal(make(wrapped).predict(DEV).predictions, expected)


class ByPlace(Bag):
    def forward(self, ids, types):
        return super().forward(ids, types)


class AnyName(Bag):
    def forward(self, input_ids, **more):
        return super().forward(input_ids, more["token_type_ids"])


class NoTypes(Bag):
    def forward(self, input_ids):
        return super().forward(input_ids, input_ids * 0)


@pytest.mark.parametrize("kind", [ByPlace, AnyName, NoTypes])
def test_a_layer_is_asked_as_its_forward_is_written(make, kind):
    paddle.seed(0)
    assert make(kind(), max_steps=2).train().is_done


class Normed(Bag):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1D(2)

    def forward(self, input_ids, token_type_ids):
        return self.norm(super().forward(input_ids, token_type_ids))


def test_batch_norm_is_saved_and_restored(tmp_path, make):
    trainer = make(Normed())
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    again = make(Normed(), own={"weights": tmp_path / "saved"}, folder="again")
    assert np.array_equal(again.predict(DEV).predictions, trainer.predict(DEV).predictions)
    assert "norm._mean" in read_weights(tmp_path / "out" / "model_last" / "model.safetensors")


@pytest.mark.parametrize("target", ["regression", "ranking"])
def test_a_layer_with_one_output_gives_scores(tmp_path, make, target):
    queries = [[("今天", b, label) for _, b, label in rows] for rows in (TRAIN[:12], DEV[:12])]
    data = queries if target == "ranking" else ()
    trainer = make(bag(num_outputs=1), *data, target=target, max_steps=3)
    result = trainer.train()
    assert result.is_done and trainer.predict([row[:2] for row in DEV]).scores.shape == (41,)
    trainer.save_model(tmp_path / "saved")
    again = make(bag(seed=3, num_outputs=1), own={"weights": tmp_path / "saved"}, folder="again")
    assert np.array_equal(again.predict(DEV).predictions, trainer.predict(DEV).predictions)


@pytest.mark.parametrize("layer", [tutorial_model, bag])
def test_a_saved_layer_is_loaded_into_another(tmp_path, make, layer):
    trainer = make(layer(), label_map="0=different,1=same")
    trainer.train()
    expected = trainer.predict(DEV)
    assert set(expected.labels) <= {"different", "same"}
    trainer.save_model(tmp_path / "saved")
    name = type(layer()).__name__
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == [name] and config["layer_class"].endswith(f":{name}")
    assert config["id2label"] == {"0": "different", "1": "same"}
    for folder in ("saved", "out", "out/best", "out/model_last"):
        own = {"weights": tmp_path / folder, "vocab_file": None}
        found = make(layer(seed=7), own=own, folder="again").predict(DEV)
        if folder != "out/model_last":
            assert np.array_equal(found.predictions, expected.predictions) and found.labels == expected.labels
    by_paddle = layer(seed=8)
    by_paddle.set_state_dict(paddle.load(str(tmp_path / "saved" / "model_state.pdparams")))
    assert np.array_equal(make(by_paddle, folder="more").predict(DEV).predictions, expected.predictions)


@pytest.fixture(scope="module")
def saved(module_path):
    (module_path / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    config = PairConfig(str(module_path / "out"), **SETTINGS)
    trainer = PairTrainer(tutorial_model(), config, TRAIN, DEV, vocab_file=module_path / "vocab.txt")
    trainer.save_model(module_path / "saved")
    return module_path / "saved"


def test_weights_of_another_kind_are_refused(tmp_path, make):
    make(bag()).save_model(tmp_path / "saved")
    with pytest.raises(InputError, match="made from the class Bag, and the model is a TeachingPlanModel"):
        make(tutorial_model(), own={"weights": tmp_path / "saved"})
    with pytest.raises(InputError, match="is no folder of a layer of your own"):
        make(bag(), own={"weights": tmp_path})
    with pytest.raises(InputError, match="weights is for a layer of your own"):
        make(paddlenlp_model(), own={"weights": tmp_path / "saved"})
    with pytest.raises(CheckpointError, match="of another shape: words.weight"):
        make(bag(num_ids=60), own={"weights": tmp_path / "saved"})


class Broken(Bag):
    def forward(self, input_ids, token_type_ids):
        raise ValueError("no such thing")


class Mask(Bag):
    def forward(self, input_ids, segments, mask):
        return super().forward(input_ids, segments)


class Ambiguous(Bag):
    def forward(self, ids, mask=None):
        return super().forward(ids, ids * 0)


MADE = [{"pooling": "mean"}, {"dropout": 0.2}, {"from_scratch": True}, {"model_type": "bert"}]
UNKNOWN = [{"freeze": "encoder"}, {"freeze_layers": 1}, {"use_recompute": True}, {"fgm_epsilon": 1.0}]
UNKNOWN += [{"to_static": True}, {"save_format": "hf"}]


@pytest.mark.parametrize("layer, settings, reason", [
    *((bag, flag, r"\w+[= ]\S+: Bag is a layer") for flag in UNKNOWN),
    *((bag, flag, r"\w+[= ]\S+: Bag is made already") for flag in (*MADE, {"model_class": "a:B"})),
    (bag, {"layer_decay": 0.9}, "layer_decay=0.9: Bag is a layer of your own, whose encoder is unknown"),
    (bag, {"kernels": "fused"}, "kernels fused: .*; use kernels auto"),
    (paddlenlp_model, {"pooling": "mean"}, "ErnieForSequenceClassification is made already"),
    (lambda: bag(num_outputs=3), {"label_map": "0=a,1=b"}, "Bag returns 3 numbers per pair, and the run"),
    (lambda: bag(num_outputs=1), {}, "one number per pair, which is a score; pass target regression"),
    (bag, {"target": "regression"}, "Bag returns 2 numbers per pair, and the run has 1"),
    (lambda: paddlenlp_model(num_labels=1), {}, "ErnieForSequenceClassification returns one number per pair"),
    (lambda: bag(num_ids=9), {}, "tokens, its model takes 9; give the vocabulary of this model"),
    (tutorial_model, {"max_seq_len": 100}, "max_seq_len=100 is more than the model's 64 positions"),
    (lambda: bag(answer=lambda logits: logits.sum()), {}, r"Bag returns \[\] of 2 pairs; return logits"),
    (lambda: bag(answer=lambda logits: None), {}, "Bag returns NoneType of 2 pairs; return logits"),
    (Broken, {}, r"Broken fails on input_ids and token_type_ids, int64 \[2, .*ValueError: no such thing"),
    (Mask, {}, r"Mask.forward takes \(input_ids, segments, mask\); let it take"),
    (Ambiguous, {}, r"Ambiguous.forward takes \(ids, mask\); let it take"),
    (lambda: nn.Dropout(0.1), {}, r"Dropout.forward takes|Dropout"),
    (lambda: paddle.DataParallel(bag()), {}, "give it the layer without DataParallel"),
    (lambda: frozen(bag()), {}, "Bag has no parameter to train"),
    (lambda: with_a_double(bag()), {}, "Bag has parameters in float64 beside others"),
])  # fmt: skip
def test_what_a_layer_cannot_have_is_refused_in_one_line(tmp_path, make, layer, settings, reason):
    with pytest.raises(InputError, match=reason) as error:
        make(layer(), **settings)
    assert len(str(error.value).splitlines()) == 1 and not (tmp_path / "out").exists()
    assert not settings or str(error.value).startswith(next(iter(settings))) or "returns" in reason


def frozen(layer):
    for parameter in layer.parameters():
        parameter.stop_gradient = True
    return layer


def with_a_double(layer):
    layer.scale = layer.create_parameter([1], dtype="float64")
    return layer


@pytest.mark.parametrize("layer", [paddlenlp_model, lambda: make_classifier(paddlenlp_model())])
def test_what_flags_froze_trains_again_without_them(tmp_path, make, layer):
    layer = layer()
    make(layer, freeze="encoder", max_steps=1, folder="probe").train()
    before = state(layer)
    make(layer, max_steps=4).train()
    last = read_weights(tmp_path / "out" / "model_last" / "model.safetensors")
    name = "ernie.encoder.layers.0.linear1.weight"
    assert not np.array_equal(last[name], before[name])


def make_classifier(layer):
    spec = parse_spec({**TINY, "model_type": "ernie", "architectures": ["ErnieForSequenceClassification"]})
    return classifier_around(layer, spec)


@pytest.mark.parametrize("family", ["ernie", "bert"])
def test_a_classifier_of_paddlenlp_gives_its_own_numbers(make, tmp_path, family):
    layer = paddlenlp_model(family)
    trainer = make(layer, kernels="plain", layer_decay=0.9, freeze_layers=1)
    assert isinstance(trainer.model, PairClassifier) and trainer.config.model_type == family
    ids = paddle.randint(4, len(VOCAB), [3, 7])
    layer.eval()
    trainer.model.eval()
    assert np.array_equal(trainer.model(ids, ids * 0).numpy(), layer(ids, ids * 0).numpy())
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    kind = {"ernie": ErnieForSequenceClassification, "bert": BertForSequenceClassification}[family]
    loaded = kind.from_pretrained(str(tmp_path / "saved"))
    layer.eval()
    loaded.eval()
    np.testing.assert_allclose(loaded(ids, ids * 0).numpy(), layer(ids, ids * 0).numpy(), atol=1e-6)


class Sharper(BertForSequenceClassification):
    def forward(self, input_ids, token_type_ids=None, **more):
        return super().forward(input_ids, token_type_ids, **more) * 2


def test_a_changed_classifier_of_paddlenlp_is_a_plain_layer(make):
    changed = paddlenlp_model()
    changed.extra = nn.Linear(2, 2)
    for layer in (changed, Sharper(paddlenlp_model("bert").config)):
        trainer = make(layer, max_steps=3, folder=type(layer).__name__)
        assert isinstance(trainer.model, CustomModel) and trainer.train().is_done
