"""The student of a distillation before its first step: its size, and where its weights come from."""

from dataclasses import replace
from typing import Dict, Optional, Sequence

import paddle

from data_tools.base.errors import InputError
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.model_files.new_model import settings_of_width
from ernie_pair.model_files.source import NAME_FAMILY, ModelSource, open_model, refuse_no_family
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.pair.config.distill_config import StudentConfig
from ernie_pair.pair.distill.hidden_states import map_layers
from ernie_pair.pair.distill.teacher import Teacher
from ernie_pair.pair.model.classifier import PairClassifier, build_classifier
from ernie_pair.pair.model.classifier_weights import load_initial_weights
from ernie_pair.pair.model.kernel_path import choose_path
from ernie_pair.pair.step.freezing import num_frozen_layers
from ernie_pair.pair.train.initial_model import InitialModel


def open_student(config: StudentConfig, teacher: Teacher) -> InitialModel:
    """Return the student with its initial weights, made of the teacher or of --model_name_or_path.

    Where both are as wide, every k-th layer and all that is no layer are taken over; otherwise the weights
    are random. Raises InputError when the sizes do not fit, or the two read texts otherwise.
    """
    base = _base_of(config, teacher)
    spec = student_spec(config, base.spec, is_pretrained=bool(config.model_name_or_path))
    pooling = "mean" if "mean" in (config.pooling, _pooling_of(config, teacher)) else "cls"
    own = type(teacher.model)
    source = ModelSource(base.name, spec, base.vocab_file, None)
    model = build_classifier(source, config.seed, config.dropout, pooling, own)
    num_frozen_layers(config, len(model.layers()))  # refused before any data are read
    choose_path(model, config, config.device)  # the same
    beginning = _begin(config, model, base, teacher)
    facts = {"teacher": teacher.name, "teacher sha256": teacher.sha256, "teacher size": teacher.describe()}
    size = f"{model.family}, {spec.num_layers} layers x {spec.hidden_size}"
    return InitialModel(model, source, beginning, {**facts, "student size": size})


def student_spec(config: StudentConfig, base: ModelSpec, is_pretrained: bool) -> ModelSpec:
    """Return the spec of the student that ``base`` is cut down to. Raises InputError."""
    layers = config.layers or (base.num_layers if is_pretrained else max(1, base.num_layers // 2))
    hidden = config.hidden_size or base.hidden_size
    each = base.hidden_size // base.num_heads
    heads = config.heads or (base.num_heads if hidden == base.hidden_size else max(1, hidden // each))
    if hidden % heads:
        raise InputError(
            f"--hidden_size {hidden} is not a multiple of --heads {heads}; give --heads a divisor of it"
        )
    inner = config.intermediate_size or max(1, round(base.intermediate_size * hidden / base.hidden_size))
    sizes: Dict[str, object] = {
        **{"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden},
        "intermediate_size": inner,
    }
    if hidden != base.hidden_size:
        sizes.update(settings_of_width(base.family, hidden))
    return base.replace(**sizes)


def _base_of(config: StudentConfig, teacher: Teacher) -> ModelSource:
    """Return the source of what the student is made of, with the classes of the teacher."""
    if not config.model_name_or_path:
        return teacher.source
    base = open_model(
        config.model_name_or_path, model_type=config.model_type or "", from_scratch=config.from_scratch
    )
    refuse_no_family(base, NAME_FAMILY)
    tokenizer = open_tokenizer(base.vocab_file, base.spec, config.max_seq_len)
    same_case = base.spec.lower_case == teacher.source.spec.lower_case
    if tokenizer.sha256 != teacher.tokenizer.sha256 or not same_case:
        raise InputError(
            f"--model_name_or_path {config.model_name_or_path}: its vocabulary is another than that of "
            f"--teacher {teacher.name}, which answers about the same token ids; give a model with that one"
        )
    return replace(base, spec=base.spec.with_labels(teacher.source.spec.labels))


def _pooling_of(config: StudentConfig, teacher: Teacher) -> str:
    return "cls" if config.model_name_or_path else teacher.model.pooling


def _begin(config: StudentConfig, model: PairClassifier, base: ModelSource, teacher: Teacher) -> str:
    """Give the student its initial weights, and return in words what they are."""
    if config.from_scratch or not _is_as_wide(model.spec, base.spec):
        reason = "--from_scratch true" if config.from_scratch else f"{base.name} is of another width"
        return f"start from random weights ({reason})"
    if not config.model_name_or_path:
        giver, what = teacher.model, "the teacher"
    else:
        giver = build_classifier(base, config.seed, config.dropout, model.pooling, type(model))
        what = load_initial_weights(giver, base).replace("start from ", "")
    taken = map_layers(model.spec.num_layers, giver.spec.num_layers, "uniform", base.name)
    take_weights(model, giver, taken)
    shown = ", ".join(str(number + 1) for number in taken)
    layers = f"{'layer' if len(taken) == 1 else 'layers'} {shown} of {giver.spec.num_layers}"
    return f"start from {layers}, embeddings, pooler and classifier of {what}"


def _is_as_wide(one: ModelSpec, other: ModelSpec) -> bool:
    names = ("hidden_size", "num_heads", "intermediate_size")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def take_weights(model: PairClassifier, giver: PairClassifier, taken: Sequence[int]) -> None:
    """Give layer i of ``model`` the weights of layer ``taken[i]`` of ``giver``, and the rest its rest."""
    theirs = dict(giver.named_parameters())
    prefix = f"{model.attribute}.{model.way.layers}."
    with paddle.no_grad():
        for name, parameter in model.named_parameters():
            number = _layer_in(name, prefix) if len(model.layers()) == len(taken) else None
            if number is not None:
                rest = name[len(f"{prefix}{number}.") :]
                name = f"{prefix}{taken[number]}.{rest}"
            model.set({parameter.name: theirs[name].numpy()})


def _layer_in(name: str, prefix: str) -> Optional[int]:
    return int(name[len(prefix) :].split(".")[0]) if name.startswith(prefix) else None
