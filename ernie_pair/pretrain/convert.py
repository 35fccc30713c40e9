"""Static weights -> a folder of a dynamic model, with the proof that both compute the same."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Tuple

import numpy as np

from data_tools.command_line import option
from data_tools.errors import CheckpointError, InputError
from ernie_pair.checkpoint import MANIFEST, Checkpoint, publish_folder
from ernie_pair.model_folder import CONFIG, VOCAB, ModelSource, match_parameters, open_model, read_config
from ernie_pair.runlog import start_console
from ernie_pair.runtime import quiet_libraries
from ernie_pair.weights import Arrays, read_weights
from ernie_pair.world import World

LARGEST_DIFFERENCE = 1e-5
OUTPUTS = ("sequence_output", "pooled_output", "lm_logits", "sop_logits")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConvertConfig:
    """Convert static ERNIE weights into a folder that from_pretrained loads, and prove that both agree."""

    static_model_path: str = option(help="PREFIX of the weights, for example output/model_last/static_vars")
    output_dir: str = option(help="the folder to make")
    model_name_or_path: str = option(
        "", help="where config.json and vocab.txt lie; empty: beside the weights"
    )


def convert(config: ConvertConfig) -> None:
    """Write ``output_dir`` and print the largest difference of every output.

    Raises CheckpointError when a parameter is missing or left over on either side, or when an output
    differs by more than 1e-5; then nothing is written.
    """
    start_console(World())
    weights_file = find_weights(Path(config.static_model_path))
    source = _source_of(config, weights_file)
    if Path(config.output_dir).resolve() == weights_file.parent.resolve():
        raise InputError(f"--output_dir {config.output_dir} holds the static weights; give another folder")
    feed = random_ids(source.config)
    weights, static_outputs = run_static(source, read_weights(weights_file), str(weights_file), feed)
    publish_folder(
        Path(config.output_dir),
        lambda draft: _fill(draft, source, weights, static_outputs, feed),
    )
    logger.info("%d parameters of %s are now %s", len(weights), weights_file, config.output_dir)


def find_weights(prefix: Path) -> Path:
    """PREFIX.safetensors of this package, or the recipe's PREFIX.pdparams. Raises CheckpointError."""
    for suffix in (".safetensors", ".pdparams"):
        path = prefix.with_name(prefix.name + suffix)
        if path.is_file():
            if (path.parent / MANIFEST).is_file():
                Checkpoint(path.parent).verify()
            return path
    raise CheckpointError(
        f"--static_model_path {prefix}: neither {prefix.name}.safetensors nor {prefix.name}.pdparams is in "
        f"{prefix.parent}; give for example OUTPUT_DIR/model_last/static_vars"
    )


def _source_of(config: ConvertConfig, weights_file: Path) -> ModelSource:
    if config.model_name_or_path:
        return open_model(config.model_name_or_path, model_type="ernie", from_scratch=True)
    folder = weights_file.parent
    missing = [name for name in (CONFIG, VOCAB) if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} has no {' and no '.join(missing)}; give --model_name_or_path")
    return ModelSource(str(folder), read_config(folder / CONFIG), folder / VOCAB, weights_file)


def random_ids(config: Dict) -> Arrays:
    """A padded batch that reaches every part of the vocabulary and, at its longest row, every position."""
    rng = np.random.default_rng(0)
    length = min(64, int(config["max_position_embeddings"]))
    ids = rng.integers(1, config["vocab_size"], (4, length))
    lengths = np.array([length, length - 1, length // 2, 2])
    inside = np.arange(length) < lengths[:, None]
    types = (np.arange(length) >= lengths[:, None] // 2) & inside
    return {
        "input_ids": np.where(inside, ids, int(config.get("pad_token_id", 0))).astype(np.int64),
        "token_type_ids": types.astype(np.int64),
    }


def run_static(source: ModelSource, found: Arrays, where: str, feed: Arrays) -> Tuple[Arrays, Arrays]:
    """The weights under structured names, and what the static model makes of ``feed``."""
    import paddle

    from ernie_pair.pretrain.model import build_ernie, ernie_config

    paddle.enable_static()
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        model = build_ernie(
            ernie_config(source.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        )
        model.eval()
        parameters = model.state_dict()
        inputs = {name: paddle.static.data(name, [None, None], "int64") for name in feed}
        outputs = run_all_outputs(model, inputs)
        executor.run(startup)
        named = name_by_structure(found, parameters, {parameter.name for parameter in main.all_parameters()})
        for name, array in match_parameters(parameters, named, where).items():
            scope.find_var(name).get_tensor().set(array, executor.place)
        values = executor.run(main, feed=feed, fetch_list=list(outputs))
    paddle.disable_static()
    return named, dict(zip(OUTPUTS, values))


def run_all_outputs(model, inputs: Dict) -> tuple:
    """sequence output, pooled output, MLM logits and SOP logits of an ErnieForPretraining."""
    sequence_output, pooled_output = model.ernie(**inputs)
    return (sequence_output, pooled_output, *model.cls(sequence_output, pooled_output))


def name_by_structure(found: Arrays, parameters: Dict[str, object], generated: set) -> Arrays:
    """Translate the generated names of a recipe's file (linear_0.w_0, ...) into structured ones.

    ``generated``: every parameter name of the static program. The decoder weight that the tie with
    the embedding replaced is among them, is read by nothing, and is passed over.
    """
    structured: Dict[str, str] = {}
    for name, parameter in parameters.items():
        structured.setdefault(parameter.name, name)
    if not any(name in structured for name in found):
        return found
    replaced = generated - set(structured)
    return {structured.get(name, name): array for name, array in found.items() if name not in replaced}


def _fill(draft: Path, source: ModelSource, weights: Arrays, static_outputs: Arrays, feed: Arrays) -> None:
    from ernie_pair.pretrain.export import write_model_folder

    write_model_folder(draft, source, weights)
    dynamic_outputs = run_dynamic(draft, feed)
    differences = {
        name: float(np.abs(static_outputs[name] - dynamic_outputs[name]).max()) for name in OUTPUTS
    }
    for name, difference in differences.items():
        logger.info("largest difference of %-15s %.3g", name, difference)
    worst = max(differences.values())
    if not worst <= LARGEST_DIFFERENCE:
        raise CheckpointError(
            f"the dynamic model differs from the static one by {worst:.3g}, more than {LARGEST_DIFFERENCE}: "
            f"{source.name} is not written; check that config.json is the one it was trained with"
        )


def run_dynamic(folder: Path, feed: Arrays) -> Arrays:
    """What the dynamic model of ``folder`` makes of ``feed``."""
    import paddle
    from paddlenlp.transformers import ErnieForPretraining

    quiet_libraries()
    paddle.set_device("cpu")
    model = ErnieForPretraining.from_pretrained(str(folder))
    model.eval()
    with paddle.no_grad():
        outputs = run_all_outputs(model, {name: paddle.to_tensor(array) for name, array in feed.items()})
    return {name: output.numpy() for name, output in zip(OUTPUTS, outputs)}
