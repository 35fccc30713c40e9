"""Checkpoints as others write them: Paddle's own save functions on a static ERNIE of random weights."""

import pickle
import shutil
from pathlib import Path
from typing import Dict

import numpy as np
import paddle

from ernie_pair.models.spec import read_spec
from ernie_pair.pretraining.graph.model import CLASSES, ernie_config
from ernie_pair.weights.parameter_names import EMBEDDINGS, IN_LAYERS, OUTSIDE_LAYERS

SECOND_NAMES = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")


def write_checkpoints(model_folder: Path, output: Path) -> Dict[str, np.ndarray]:
    """The recipe's two layouts, ``output``/pickled/static_vars.pd* and ``output``/single/static_vars/*.

    Returns the weights under structured names. Adam's state lies among them, and the numbers of the
    generated names do not begin at 0.
    """
    paddle.enable_static()
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        model = _shifted_model(read_spec(model_folder / "config.json", model_folder / "vocab.txt"))
        logits, order = model(paddle.static.data("ids", [None, None], "int64"))
        paddle.optimizer.AdamW(0.1).minimize(paddle.mean(logits) + paddle.mean(order))
        executor.run(startup)
        weights = _random_weights(model, scope, executor)
        for name in ("pickled", "single"):
            (output / name).mkdir(parents=True)
            for file in ("vocab.txt", "config.json"):
                shutil.copyfile(model_folder / file, output / name / file)
        paddle.static.save(main, str(output / "pickled" / "static_vars"))
        _save_each(output / "pickled", scope, output / "single" / "static_vars")
    paddle.disable_static()
    return weights


def _shifted_model(spec):
    """Made after other layers, as in the process of a recipe."""
    config = ernie_config(spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with paddle.utils.unique_name.guard():
        for kind in ("linear", "linear", "embedding"):
            paddle.utils.unique_name.generate(kind)
        return CLASSES[spec.family][1](config)


def _random_weights(model, scope, executor) -> Dict[str, np.ndarray]:
    rng, weights = np.random.default_rng(1), {}
    for name, parameter in model.state_dict().items():
        if name not in SECOND_NAMES:
            weights[name] = rng.normal(0, 0.2, parameter.shape).astype(np.float32)
            scope.find_var(parameter.name).get_tensor().set(weights[name], executor.place)
    return weights


def _save_each(pickled: Path, scope, folder: Path) -> None:
    """Write what ``pickled`` has as `save_persistables` does, which takes no program of Paddle 3.3."""
    folder.mkdir()
    for suffix in ("pdparams", "pdopt"):
        for name in pickle.loads((pickled / f"static_vars.{suffix}").read_bytes()):
            tensor = scope.find_var(name).get_tensor()
            paddle.save(tensor, str(folder / name), use_binary_format=True)


def ernies_names():
    """{structured name: its name in ERNIE's own programs}, for two layers."""
    ends = {"weight": "w_0", "bias": "b_0"}
    modules = {old: new.format(family="ernie") for old, new in OUTSIDE_LAYERS.items()}
    for layer in "01":
        for old, new in IN_LAYERS.items():
            modules[f"encoder_layer_{layer}_{old}"] = f"ernie.encoder.layers.{layer}.{new}"
    names = {f"ernie.embeddings.{new}.weight": old for old, new in EMBEDDINGS.items()}
    for old, new in modules.items():
        for end, generated_end in ends.items():
            normed = f"_{'scale' if end == 'weight' else 'bias'}"
            names[f"{new}.{end}"] = old + (normed if old.endswith("layer_norm") else f".{generated_end}")
    names["cls.predictions.decoder_bias"] = names.pop("cls.predictions.decoder.bias")
    names.pop("cls.predictions.decoder.weight")
    return names
