"""The last layer on the first token only: the same logits and gradients, used only where it is safe."""

from dataclasses import dataclass

import numpy as np
import paddle
import pytest
from paddle import nn
from tiny_pair import write_new

from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.networks import kernel_path
from ernie_pair.models.networks.classifier import PairClassifier, build_classifier
from ernie_pair.models.source import open_model
from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.runtime.paddle_patches.layers import fuse_attention, own_forward
from ernie_pair.training.recompute import recompute_layers


@dataclass(frozen=True, kw_only=True)
class HalfFlags(KernelFlags, AmpFlags):
    """The flags of a training that decide its kernels."""


ALONE = (
    "ernie", "ernie_gram", "bert", "roberta", "xlm_roberta", "electra", "ppminilm", "skep",
    "distilbert",
)  # fmt: skip
IDS = np.array([[1, 5, 6, 2, 7, 8, 2], [1, 9, 2, 4, 2, 0, 0], [1, 12, 13, 14, 2, 15, 2]])
TYPES = np.array([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1]])


class Whole(PairClassifier):
    """A classifier declared to read all hidden states."""

    reads_first_token = False


class MaxPooled(PairClassifier):
    """A classifier that does read all hidden states."""

    def _pooled(self, states_BSD, pooled_BD, input_ids):
        return states_BSD.max(axis=1)


class Summed(nn.Layer):
    """A head that reads all hidden states."""

    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, 2)

    def forward(self, states_BSD):
        return self.out(states_BSD.sum(axis=1))


def build(folder, family, model_class=PairClassifier, pooling="cls"):
    if not folder.exists():
        write_new(folder, family)
    source = open_model(str(folder), model_type=family, from_scratch=True)
    model = build_classifier(source, 7, 0.0, pooling, model_class)
    with paddle.no_grad():
        for parameter in model.parameters():  # far from the zeros and ones of a new model
            parameter.set_value(parameter + 0.3 * paddle.randn(parameter.shape))
    return model


def logits_and_gradients(model):
    logits = model(paddle.to_tensor(IDS), paddle.to_tensor(TYPES))
    (logits.square().sum() / 100).backward()
    gradients = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    model.clear_gradients()
    return logits.numpy(), gradients


def assert_close(first, second):
    np.testing.assert_allclose(first[0], second[0], rtol=2e-5, atol=2e-5)
    assert first[1].keys() == second[1].keys()
    for name, gradient in first[1].items():
        scale = max(float(np.abs(gradient).max()), 1e-3)
        if not name.endswith("k_proj.bias"):  # whose gradient is zero
            np.testing.assert_allclose(gradient / scale, second[1][name] / scale, atol=5e-4, err_msg=name)


def lengths_of_last_layer(model):
    found = []
    hook = model.layers()[-1].register_forward_post_hook(lambda _, given, out: found.append(out.shape[1]))
    with paddle.no_grad():
        model(paddle.to_tensor(IDS), paddle.to_tensor(TYPES))
    hook.remove()
    return found


@pytest.mark.parametrize("mode", ["train", "recompute", "eval", "pre-norm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_first_token_logits_and_gradients_match_all_tokens(tmp_path, family, mode):
    model, whole = (build(tmp_path / "m", family, kind) for kind in (PairClassifier, Whole))
    whole.set_state_dict(model.state_dict())
    assert model.reads_first_token == (family in ALONE)
    for one in (model, whole):
        recompute_layers(one, mode == "recompute")
        if mode == "pre-norm" and family in ALONE:
            one.layers()[-1].normalize_before = True
        one.eval() if mode == "eval" else one.train()
    assert_close(logits_and_gradients(model), logits_and_gradients(whole))
    if family in ALONE:
        assert lengths_of_last_layer(model) == [1] and lengths_of_last_layer(whole) == [IDS.shape[1]]


def test_models_that_read_all_states_get_all_states(tmp_path):
    mean = build(tmp_path / "mean", "ernie", pooling="mean")
    own = build(tmp_path / "own", "ernie", MaxPooled)
    head = build(tmp_path / "head", "electra")
    head.classifier = Summed(16)
    for model in (mean, own, head):
        assert lengths_of_last_layer(model) == [IDS.shape[1]]
    model = build(tmp_path / "m", "ernie")
    with pytest.raises(ValueError):
        model(paddle.to_tensor(IDS), paddle.to_tensor(TYPES[:2]))  # two rows of types for three
    assert own_forward(model.layers()[-1]) is None


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_the_bare_encoder_returns_all_states(tmp_path, is_recomputed):
    model = build(tmp_path / "m", "ernie_gram")
    recompute_layers(model, is_recomputed)
    logits_and_gradients(model)
    states, _ = model.encoder(paddle.to_tensor(IDS), token_type_ids=paddle.to_tensor(TYPES))
    assert states.shape == [3, 7, 16]


def test_dropout_statistics_match_those_of_all_tokens(tmp_path):
    """Over many passes the logits have the same mean and spread as with all tokens."""
    model, whole = (build(tmp_path / "m", "ernie", kind) for kind in (PairClassifier, Whole))
    whole.set_state_dict(model.state_dict())
    means = []
    for one in (model, whole):
        for part in one.sublayers():
            if isinstance(part, nn.Dropout):
                part.p = 0.1
        one.train()
        paddle.seed(5)
        ids, types = (paddle.to_tensor(np.tile(array, (200, 1))) for array in (IDS, TYPES))
        with paddle.no_grad():
            logits = one(ids, types).numpy().reshape(200, 3, 2)
        assert logits.std(axis=0).min() > 0
        means.append((logits.mean(axis=0), logits.std(axis=0)))
    (first, spread), (second, other) = means
    assert np.all(np.abs(first - second) < 5 * spread / np.sqrt(200) + 5 * other / np.sqrt(200))
    np.testing.assert_allclose(spread, other, rtol=0.5)


@pytest.mark.parametrize("mode", ["eval", "train", "recompute"])
@pytest.mark.parametrize("family", ("ernie_gram", "distilbert", "roformer"))
def test_attention_in_one_operator_changes_no_answer(tmp_path, family, mode):
    """What a GPU asks Paddle for, with its dropout and a last layer for the first token alone."""
    model = build(tmp_path / "m", family)
    inner = [layer.self_attn for layer in model.layers() if family != "roformer"]
    for attention in inner:
        attention.dropout = 0.2
    model.eval() if mode == "eval" else model.train()
    recompute_layers(model, mode == "recompute")
    found = []
    for is_wanted in (False, True):
        fuse_attention(model.layers(), is_wanted)
        assert all((own_forward(attention) is not None) == is_wanted for attention in inner)
        paddle.seed(5)
        found.append(logits_and_gradients(model))
    assert_close(*found)


@pytest.mark.parametrize("capability, half, is_fused", [((8, 0), True, True), ((7, 5), True, False),
                                                        ((9, 0), False, False)])  # fmt: skip
def test_half_precision_on_a_newer_card_has_flash_attention(
    tmp_path, monkeypatch, capability, half, is_fused
):
    monkeypatch.setattr(kernel_path, "gpu_capability", lambda: capability)
    model = build(tmp_path / "m", "ernie_gram")
    attentions = [layer.self_attn for layer in model.layers()]
    choice = kernel_path.choose_path(
        model, HalfFlags(use_amp=half, **({"amp_dtype": "float16"} if half else {})), "gpu"
    )
    assert ("flash attention" in choice.describe()) == is_fused
    assert all((own_forward(each) is not None) == is_fused for each in attentions)
    kernel_path.choose_path(model, KernelFlags(), "cpu")
    assert all(own_forward(each) is None for each in attentions)
