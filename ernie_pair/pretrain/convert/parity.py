"""What the static and the dynamic model make of the same ids; conversion is proved by their difference."""

from pathlib import Path
from typing import Dict, List

import numpy as np

from data_tools.base.errors import CheckpointError
from ernie_pair.device.device import quiet_libraries
from ernie_pair.model_files.source import match_parameters
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.pretrain.graph.vocab_padding import cut_vocabulary
from ernie_pair.weights.parameter_names import structured_names
from ernie_pair.weights.weight_files import Arrays, as_float32

ENCODER_OUTPUTS = ("sequence_output", "pooled_output")
HEAD_OUTPUTS = {"lm_logits": "cls.predictions.", "sop_logits": "cls.seq_relationship."}


def random_ids(spec: ModelSpec) -> Arrays:
    """Draw a padded batch that reaches every part of the vocabulary, every type, and many positions.

    Returns input_ids and token_type_ids, int64 [4, S]. The same for a spec every time.
    """
    rng = np.random.default_rng(0)
    length = min(64, spec.max_positions)
    inside = np.arange(length) < np.array([length, length - 1, length // 2, 2])[:, None]
    ids, types = (rng.integers(0, max(1, most), (4, length)) for most in (spec.vocab_size, spec.token_types))
    return {
        "input_ids": np.where(inside, ids, spec.pad_id).astype(np.int64),
        "token_type_ids": np.where(inside, types, 0).astype(np.int64),
    }


def named_weights(found: Arrays, model, where: str) -> Arrays:
    """Return ``found`` under the names of ``model``, in float32, without rows beyond its vocabulary.

    Raises CheckpointError when the encoder is not whole, or a head is there in part.
    """
    parameters = model.state_dict()
    named = structured_names(found, parameters, where)
    named = as_float32(cut_vocabulary(named, model.config.vocab_size), where)
    match_parameters(parameters, named, where, may_miss=_heads_not_in(named))
    return named


def _heads_not_in(named: Arrays) -> tuple:
    """Return the heads that ``named`` lacks; a head is there as a whole or not at all."""
    return tuple(head for head in HEAD_OUTPUTS.values() if not any(name.startswith(head) for name in named))


def outputs_of(weights: Arrays) -> List[str]:
    """Return the names of the outputs that can be computed from ``weights``."""
    missing = _heads_not_in(weights)
    return [*ENCODER_OUTPUTS, *(output for output, head in HEAD_OUTPUTS.items() if head not in missing)]


def run_static(spec: ModelSpec, found: Arrays, where: str, feed: Arrays) -> tuple:
    """Run the static model of ``found`` on ``feed``, on the CPU and in float32.

    ``feed``: int64 [B, S] each, see `random_ids`. Returns the weights under structured names, and {output:
    float32 array}: sequence_output [B, S, H], pooled_output [B, H], lm_logits [B, S, V], sop_logits [B, 2].
    Raises CheckpointError when ``found`` does not fit the model.
    """
    import paddle

    from ernie_pair.pretrain.graph.model import build_ernie, ernie_config

    paddle.enable_static()
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        model = build_ernie(ernie_config(spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
        model.eval()
        inputs = {name: paddle.static.data(name, [None, None], "int64") for name in feed}
        outputs = _all_outputs(model, inputs)
        executor.run(startup)
        named = named_weights(found, model, where)
        parameters = model.state_dict()
        for name, array in named.items():
            scope.find_var(parameters[name].name).get_tensor().set(array, executor.place)
        wanted = outputs_of(named)
        values = executor.run(main, feed=feed, fetch_list=[outputs[name] for name in wanted])
    paddle.disable_static()
    return named, dict(zip(wanted, values))


def run_dynamic(folder: Path, spec: ModelSpec, feed: Arrays) -> Arrays:
    """Run the dynamic model that from_pretrained loads from ``folder``, and return {output: float32 array}.

    ``feed`` and the shapes of the outputs are those of `run_static`; all heads are among them.
    """
    import paddle

    from ernie_pair.pretrain.graph.model import CLASSES

    quiet_libraries()
    paddle.set_device("cpu")
    model = CLASSES[spec.family or "ernie"][1].from_pretrained(str(folder))
    model.eval()
    with paddle.no_grad():
        outputs = _all_outputs(model, {name: paddle.to_tensor(array) for name, array in feed.items()})
    return {name: output.numpy() for name, output in outputs.items()}


def _all_outputs(model, inputs: Dict) -> Dict:
    from ernie_pair.pretrain.graph.model import encoder_of

    sequence, pooled = encoder_of(model)(**inputs)
    return dict(zip((*ENCODER_OUTPUTS, *HEAD_OUTPUTS), (sequence, pooled, *model.cls(sequence, pooled))))


def largest_differences(one: Arrays, other: Arrays) -> Dict[str, float]:
    """Return {output: the largest absolute difference}, of the outputs in ``one``.

    Raises CheckpointError on NaN or infinity.
    """
    differences = {name: float(np.abs(array - other[name]).max()) for name, array in one.items()}
    for name, difference in differences.items():
        if not np.isfinite(difference):
            raise CheckpointError(f"{name} holds NaN or infinity; the weights are no model")
    return differences
