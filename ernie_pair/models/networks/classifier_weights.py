"""Load the weights of a file into a classifier: initial weights, or all weights of a trained one."""

from pathlib import Path
from typing import Tuple

from data_tools.files.errors import CheckpointError, InputError
from ernie_pair.models.config_json import architecture_in
from ernie_pair.models.networks.classifier import PairClassifier, build_classifier
from ernie_pair.models.networks.encoder_model import EncoderModel
from ernie_pair.models.networks.model_class import trusted_class
from ernie_pair.models.source import ModelSource, open_model, refuse_no_family
from ernie_pair.weights.parameter_names import match_parameters
from ernie_pair.weights.weight_files import Arrays, as_float32

HEADS = ("classifier.", "pre_classifier.")


def load_initial_weights(model: PairClassifier, source: ModelSource, is_other_task: bool = False) -> str:
    """Load the weights of ``source``, if any, into ``model``, and return a description of its start.

    A file without classifier leaves the classifier as it is, and so does one whose classifier was given
    another pooling, is of another class or ``is_other_task``, for another target; the heads of pretraining
    are passed over; anything else must fit name by name. Raises CheckpointError otherwise.
    """
    if source.weights is None:
        return "start from random weights (--from_scratch true)"
    if source.spec.family not in ("", model.family):
        raise CheckpointError(
            f"{source.name} holds {source.spec.family} weights, and the model is of {model.family}; give "
            "another model"
        )
    found = with_prefix(source.read_weights(), model)
    if is_other_task:  # its head has another number of outputs, or means something else by them
        found = {name: array for name, array in found.items() if not name.startswith(HEADS)}
    theirs, ours = (source.spec.pooling, source.spec.model_class), (model.pooling, model.spec.model_class)
    is_other_head = is_other_task or theirs != ours
    headless = is_other_head or not any(name.startswith(HEADS[0]) for name in found)
    may_miss: Tuple[str, ...] = (*HEADS, *model.head_names()) if headless else ()
    masked_lm = architecture_in(source.spec.config).endswith("ForMaskedLM")  # transformers' has no pooler
    if source.is_hugging_face or masked_lm:  # and no model of transformers what is idle here
        idle = tuple(f"{model.attribute}.{part}" for part in model.way.idle)
        may_miss += _absent_pooler(found, model) + idle
    unused = model.way.pretraining_heads + (HEADS if is_other_head else ()) + unused_parts(model, source)
    set_matching(model, found, source.weights, may_miss=may_miss, may_have=unused)
    passed_over = sum(name.startswith(model.way.pretraining_heads) for name in found)
    notes = ["the classifier is new and random" if headless else "with its classifier"]
    notes += ["the pooler is new and random"] if _absent_pooler(found, model) else []
    notes += [f"{passed_over} weights of the pretraining heads are ignored"] if passed_over else []
    return f"start from the weights {source.weights}: {', '.join(notes)}"


def load_classifier(model_path: str, model_class: str = "") -> Tuple[PairClassifier, Path]:
    """Load a trained classifier, in evaluation mode, and return it with the path of its vocabulary.

    Every weight must be in the file. ``model_class``: the package.module:Class that the folder names, of a
    person's own; see `model_class`. Raises InputError when ``model_path`` is no folder of a model or names
    another class, CheckpointError when the weights do not fit.
    """
    if not Path(model_path).is_dir():
        raise InputError(
            f"--model_path {model_path} is not a folder; give the OUT of a training run, or OUT/best"
        )
    source = open_model(model_path, model_type="")
    refuse_no_family(source, "write model_type there")
    chosen = trusted_class(source, model_class, PairClassifier, is_trained=True)
    model = build_classifier(source, seed=0, dropout=0.0, model_class=chosen)
    assert source.weights is not None  # a model that is not from scratch has some
    found = source.read_weights()
    if any(name.startswith(HEADS[0]) for name, _ in model.named_parameters()):  # an own class may have none
        refuse_no_classifier(found, source.name)
    set_matching(model, found, source.weights, may_have=unused_parts(model, source))
    model.eval()
    return model, source.vocab_file


def unused_parts(model: EncoderModel, source: ModelSource) -> Tuple[str, ...]:
    """Return what the names of weights begin with that the classes of the library of ``source`` pass over.

    A classifier of RoBERTa has no pooler, and transformers' ERNIE no task embedding without use_task_id.
    """
    parts: Tuple[str, ...] = ("pooler.",) if model.way.head == "own" else ()
    if source.is_hugging_face and not source.spec.config.get("use_task_id"):
        parts += ("embeddings.task_type_embeddings.",)
    return tuple(f"{model.attribute}.{part}" for part in parts)


def refuse_no_classifier(found: Arrays, where: str) -> None:
    """Raise CheckpointError when the weights ``found`` are of an encoder, or an embedding model, alone."""
    if not any(name.startswith(HEADS[0]) for name in found):
        raise CheckpointError(
            f"{where} holds no classifier, only an encoder; train one with ernie-pair train"
        )


def with_prefix(found: Arrays, model: EncoderModel) -> Arrays:
    """Return ``found`` with full names: an encoder saved on its own names its weights without the family."""
    if "embeddings.word_embeddings.weight" not in found:
        return found
    whole = HEADS + model.way.pretraining_heads
    return {
        name if name.startswith(whole) else f"{model.attribute}.{name}": array
        for name, array in found.items()
    }


def _absent_pooler(found: Arrays, model: PairClassifier) -> Tuple[str, ...]:
    """Return the beginning of the pooler's names where the model has one and the file has none of it."""
    pooler = f"{model.attribute}.pooler."
    has_one = any(name.startswith(pooler) for name, _ in model.named_parameters())
    return (pooler,) if has_one and not any(name.startswith(pooler) for name in found) else ()


def set_matching(
    model: EncoderModel, found: Arrays, where: Path, may_miss: tuple = (), may_have: tuple = ()
) -> None:
    """Give ``model`` the weights ``found`` in the file ``where``; see `match_parameters` for the rest.

    Raises CheckpointError for a weight that is missing, unknown or of another shape.
    """
    parameters = dict(model.named_parameters())
    tables = {name for name, _ in model.named_buffers()}  # of positions: the same in every model
    found = as_float32({name: array for name, array in found.items() if name not in tables}, str(where))
    model.set(match_parameters(parameters, found, str(where), may_miss=may_miss, may_have=may_have))
