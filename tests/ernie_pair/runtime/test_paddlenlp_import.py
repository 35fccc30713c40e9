import subprocess
import sys

import pytest
from places import ROOT

HEAVY = ["datasets", "sklearn", "paddlenlp.taskflow", "paddlenlp.trainer"]


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("module", ["models.networks.encoders", "pretrain.graph.model", "models.source"])
def test_a_model_is_imported_without_the_rest_of_paddlenlp(module):
    code = f"import sys, ernie_pair.{module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    assert run_python(code) == []


def test_whoever_asks_for_the_rest_gets_it():
    names = "paddlenlp.Taskflow.__name__, paddlenlp.datasets.__name__"
    code = f"import ernie_pair.models.networks.encoders, paddlenlp; print({names})"
    assert run_python(code) == ["Taskflow", "paddlenlp.datasets"]


def test_the_trainer_of_paddlenlp_can_be_imported_afterwards():
    code = """
import ernie_pair.models.networks.encoders
from paddlenlp.trainer import set_seed
import paddlenlp, sys
it = sys.modules["paddlenlp.trainer"]
print(paddlenlp.trainer is it, it.set_seed is set_seed, it.__spec__.origin == it.__file__)"""
    assert run_python(code) == ["True"] * 3


def test_a_paddlenlp_that_is_there_is_taken():
    code = """
import paddlenlp
from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers
print(transformers is paddlenlp.transformers, "paddlenlp.taskflow" in __import__("sys").modules)"""
    assert run_python(code) == ["True", "True"]


def test_paddlenlp_computes_what_its_models_alone_compute():
    code = """
import paddle
{first}
from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers
paddle.seed(1)
model = transformers.ErnieModel(transformers.ErnieConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0))
states, _ = model(paddle.to_tensor([[1, 2, 3, 0]]))
print(*states.numpy().ravel().tolist())"""
    assert run_python(code.format(first="")) == run_python(code.format(first="import paddlenlp"))
