"""Outputs of the static and the dynamic model for the same ids; their difference verifies a conversion."""

from pathlib import Path
from typing import Dict, List

import numpy as np

from data_tools.files.errors import CheckpointError
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pretrain.graph.vocab_padding import cut_vocabulary
from ernie_pair.runtime.device import quiet_libraries
from ernie_pair.weights.parameter_names import match_parameters, structured_names, without_ngram_head
from ernie_pair.weights.weight_files import Arrays, as_float32

FEEDS = ("input_ids", "token_type_ids")
PADDED_LENGTH = 64
# The outputs that a model may lack, and what the names of their weights begin with, within the model.
HEAD_OUTPUTS = {
    "pooled_output": "pooler.",
    "lm_logits": "cls.predictions.",
    "sop_logits": "cls.seq_relationship.",
}


def parity_batches(spec: ModelSpec) -> Dict[str, Arrays]:
    """Draw the batches that verify a conversion, always the same for a spec.

    Returns {name: input_ids and token_type_ids, int64 [B, S]}: padded rows that reach every part of the
    vocabulary and every type, pairs of two segments, and a row as long as the position table.
    """
    rng = np.random.default_rng(0)
    length = min(PADDED_LENGTH, spec.max_positions)
    kept = {
        "padded": [length, length - 1, length // 2, 2],
        "two_segments": [length, 2 * length // 3, length // 3],
        "full_length": [spec.max_positions],
    }
    return {name: _random_batch(rng, spec, np.array(lengths), name) for name, lengths in kept.items()}


def _random_batch(rng: np.random.Generator, spec: ModelSpec, lengths: np.ndarray, name: str) -> Arrays:
    shape = len(lengths), lengths.max()
    places, ends = np.arange(shape[1]), lengths[:, None]
    ids, types = (rng.integers(0, max(1, most), shape) for most in (spec.vocab_size, spec.token_types))
    if name != "padded":  # the first half of a row is the first segment
        types = np.where(places < ends // 2, 0, min(1, max(0, spec.token_types - 1)))
    return {
        "input_ids": np.where(places < ends, ids, spec.pad_id).astype(np.int64),
        "token_type_ids": np.where(places < ends, types, 0).astype(np.int64),
    }


def named_weights(found: Arrays, model, where: str) -> Arrays:
    """Return ``found`` under the names of ``model``, in float32, without rows beyond its vocabulary.

    The n-gram head is left out: no PaddleNLP model has one.

    Raises CheckpointError if the encoder or a head is incomplete.
    """
    parameters = model.state_dict()
    named = without_ngram_head(structured_names(found, parameters, where))
    named = as_float32(cut_vocabulary(named, model.config.vocab_size), where)
    missing = [HEAD_OUTPUTS[output] for output in _outputs_not_of(named)]
    may_miss = (*missing, *(f"{model.base_model_prefix}.{head}" for head in missing))
    match_parameters(parameters, named, where, may_miss=may_miss)
    return named


def _outputs_not_of(named: Arrays) -> List[str]:
    """Return the outputs whose weights ``named`` lacks; a head is present entirely or not at all.

    The head for sentence order needs the pooler.
    """
    missing = [output for output, head in HEAD_OUTPUTS.items() if not any(head in name for name in named)]
    return missing if "sop_logits" in missing else [o for o in missing if o != "pooled_output"]


def outputs_of(weights: Arrays) -> List[str]:
    """Return the names of the outputs that can be computed from ``weights``."""
    missing = _outputs_not_of(weights)
    return ["sequence_output", *(output for output in HEAD_OUTPUTS if output not in missing)]


def run_static(spec: ModelSpec, found: Arrays, where: str, batches: Dict[str, Arrays]) -> tuple:
    """Run the static model with the weights ``found`` on ``batches``, on the CPU and in float32.

    ``batches``: see `parity_batches`. Returns the weights under structured names, and {batch: {output:
    float32 array}}: sequence_output [B, S, H], pooled_output [B, H], lm_logits [B, S, V], sop_logits [B, 2].
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
        inputs = {name: paddle.static.data(name, [None, None], "int64") for name in FEEDS}
        outputs = _all_outputs(model, inputs)
        executor.run(startup)
        named = named_weights(found, model, where)
        parameters = model.state_dict()
        for name, array in named.items():
            scope.find_var(parameters[name].name).get_tensor().set(array, executor.place)
        wanted = outputs_of(named)
        fetched = [outputs[name] for name in wanted]
        values = {
            name: dict(zip(wanted, executor.run(main, feed=batch, fetch_list=fetched)))
            for name, batch in batches.items()
        }
    paddle.disable_static()
    return named, values


def run_dynamic(folder: Path, spec: ModelSpec, batches: Dict[str, Arrays]) -> Dict[str, Arrays]:
    """Run the dynamic model that from_pretrained loads from ``folder``.

    Returns {batch: {output: float32 array}}. ``batches`` and the shapes of the outputs are those of
    `run_static`; all heads are among them.
    """
    import paddle

    from ernie_pair.pretrain.graph.model import CLASSES

    quiet_libraries()
    paddle.set_device("cpu")
    model = CLASSES[spec.family or "ernie"][1].from_pretrained(str(folder))
    model.eval()
    found = {}
    with paddle.no_grad():
        for batch, feed in batches.items():
            tensors = {name: paddle.to_tensor(array) for name, array in feed.items()}
            found[batch] = {name: output.numpy() for name, output in _all_outputs(model, tensors).items()}
    return found


def _all_outputs(model, inputs: Dict) -> Dict:
    from ernie_pair.pretrain.graph.model import encoder_of

    sequence, pooled = encoder_of(model)(**inputs)
    return dict(zip(("sequence_output", *HEAD_OUTPUTS), (sequence, pooled, *model.cls(sequence, pooled))))


def largest_differences(one: Dict[str, Arrays], other: Dict[str, Arrays]) -> Dict[str, Dict[str, float]]:
    """Return {output: {batch: the largest absolute difference}}, of the batches and outputs in ``one``.

    Raises CheckpointError on NaN or infinity.
    """
    found: Dict[str, Dict[str, float]] = {}
    for batch, outputs in one.items():
        for name, array in outputs.items():
            difference = float(np.abs(array - other[batch][name]).max())
            if not np.isfinite(difference):
                raise CheckpointError(f"{name} holds NaN or infinity; convert a checkpoint without them")
            found.setdefault(name, {})[batch] = difference
    return found
