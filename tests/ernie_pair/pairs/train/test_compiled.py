"""The compiled forward pass: bit-identical to the dynamic graph, and when it is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from tiny_pair_job import run, same, tiny_config, tiny_job, weights

from ernie_pair.core.errors import InputError
from ernie_pair.models.networks.classifier import PairClassifier, build_classifier
from ernie_pair.models.source import open_model
from ernie_pair.pairs.train.train_pair import compile_forward
from ernie_pair.training.recompute import freeze

PLAIN = {"kernels": "plain"}
WAYS = {
    "dropout": {},
    "no dropout": {"dropout": 0.0},
    "ErnieGram": {"model_type": "ernie_gram"},
    "BERT": {"model_type": "bert"},
    "R-Drop": {"rdrop_alpha": 1.0},
    "FGM": {"fgm_epsilon": 0.5, "grad_clip": 0.1},
    "accumulation, class weights": {
        "gradient_accumulation_steps": 2,
        "batch_size": 8,
        "class_weights": "1,2.5",
    },
    "skipping": {"on_nan": "skip"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_is_bit_identical_to_the_dynamic_graph(folder, way):
    """Over steps with several sequence lengths, and an evaluation in between."""
    dynamic, whole = (tiny_job(folder, to_static=to, **PLAIN, **WAYS[way]) for to in (False, True))
    assert whole.job.is_compiled and not dynamic.job.is_compiled
    for first, last in ((1, 3), (4, 6)):
        wanted, found = run(dynamic, last, first), run(whole, last, first)
        assert list(map(dict, found)) == list(map(dict, wanted))
        assert whole.job.evaluate("valid") == dynamic.job.evaluate("valid")
    assert same(weights(whole.job), weights(dynamic.job))
    lengths = {batch.input_ids.shape[1] for step in zip(range(6), dynamic.updates) for batch in step[1]}
    assert len(lengths) > 1


def test_frozen_layers_stay_frozen_in_a_program(folder):
    def prepare(model):
        freeze(model, tiny_config(folder, freeze_layers=1))

    both = [tiny_job(folder, prepare=prepare, to_static=to, **PLAIN) for to in (False, True)]
    before = weights(both[0].job)
    for tiny in both:
        run(tiny, 4)
    assert same(*(weights(tiny.job) for tiny in both))
    kept = [name for name, array in weights(both[1].job).items() if np.array_equal(array, before[name])]
    assert any("embeddings" in name for name in kept) and not any("classifier" in name for name in kept)


def test_nothing_is_compiled_on_a_cpu_by_default(folder):
    assert not tiny_job(folder, **PLAIN).job.is_compiled


def model_of(folder, model_class=PairClassifier):
    source = open_model(str(folder / "model"), model_type="ernie", from_scratch=True)
    return build_classifier(source, 1, 0.1, model_class=model_class)


def settings(**changes):
    nothing = {"to_static": True, "device": "gpu", "use_recompute": False, "use_amp": False}
    return SimpleNamespace(**{**nothing, **changes})


@pytest.mark.parametrize(
    "changes, processes, reason",
    [
        ({"use_recompute": True}, 1, "use_recompute=True runs a layer twice"),
        ({"use_amp": True}, 1, "use_amp=True casts by other rules"),
        ({}, 2, "there are 2"),
    ],
)
def test_flags_incompatible_with_to_static_are_refused(folder, changes, processes, reason):
    model = model_of(folder)
    with pytest.raises(InputError, match=f"to_static=True: .*{reason}.*; leave it out"):
        compile_forward(settings(**changes), model, processes)
    assert compile_forward(settings(to_static="auto", **changes), model, processes) is None


def test_fused_kernels_cannot_be_compiled(folder):
    tiny = tiny_job(folder)
    if tiny.job.model.fused_state is None:
        pytest.skip("no fused kernels here")
    with pytest.raises(InputError, match="add kernels plain"):
        tiny_job(folder, to_static=True)


@pytest.mark.parametrize(
    "asked, device, is_compiled", [("auto", "gpu", 1), (False, "gpu", 0), (True, "cpu", 1)]
)
def test_the_flag_and_the_device_decide_about_compilation(folder, asked, device, is_compiled):
    found = compile_forward(settings(to_static=asked, device=device), model_of(folder), 1)
    assert (found is not None) == is_compiled
