"""Any `paddle.nn.Layer` that returns logits, as a model of pairs: a reader's own class; and save_model.

Its weights keep the names that they have in the layer, and its folder says of which class it is:

    {"architectures": ["TeachingPlanModel"], "layer_class": "models:TeachingPlanModel", "num_labels": 2, ...}

The class is never imported: whoever loads such a folder makes the layer first. B batch, S sequence, C
classes.
"""

import inspect
import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

import numpy as np
import paddle
from paddle import nn

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.atomic_folder import is_as_made, published_folder, read_folder_record
from ernie_pair.inference.token_rows import encode_texts, open_tokenizer
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.encoders import SavedLayer
from ernie_pair.models.source import ModelSource
from ernie_pair.models.spec import LAYER_CLASS, SIZES, ModelSpec
from ernie_pair.models.temperature import CALIBRATION
from ernie_pair.weights.parameter_names import match_parameters
from ernie_pair.weights.weight_files import first_not_finite, read_weights

IDS, TYPES = "input_ids", "token_type_ids"
BY_NAME, BY_PLACE, IDS_ALONE = "by name", "by place", "ids alone"  # how a layer takes its inputs
SHORT = 16  # tokens, of the pairs that a layer is tried with
MAX_POSITIONS = SIZES["max_position_embeddings"][1]  # of a layer that does not say how much it reads at once
SAVED_MODEL: Dict[str, object] = {"kind": "saved model"}


class CustomModel(SavedLayer):
    """The model that ``layer`` is; ``spec`` says what its inputs and outputs mean, see `custom_settings`.

    Attributes that it has not are those of ``layer``. Raises InputError if ``layer`` takes other inputs than
    ids and token types, or has nothing to train.
    """

    fused_state = None  # the fused kernels know encoders alone
    keeps_frozen = True

    def __init__(self, layer: nn.Layer, spec: ModelSpec):
        super().__init__()
        self.family, self.spec, self.pad_id = type(layer).__name__, spec, spec.pad_id
        self.pooling, self.num_classes = "", spec.num_labels
        self.inputs = find_inputs(layer)
        self.layer = layer
        trained = [parameter for parameter in layer.parameters() if not parameter.stop_gradient]
        if not trained:
            raise InputError(f"{self.family} has no parameter to train; leave some without stop_gradient")
        if len({parameter.dtype == paddle.float64 for parameter in trained}) > 1:
            raise InputError(
                f"{self.family} has parameters in float64 beside others, which Paddle's AdamW does not move "
                "together; give all of them one type"
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "layer":  # it is being made, or copied
                raise
            return getattr(self.layer, name)

    def forward(self, input_ids, token_type_ids):
        """Return the logits [B, C] of ids and token types, int64 [B, S]."""
        if self.spec.token_types == 1:
            token_type_ids = token_type_ids * 0
        return logits_in(ask_layer(self.layer, self.inputs, input_ids, token_type_ids))

    def named_parameters(self, prefix: str = "", include_sublayers: bool = True):
        """Return an iterator over (name, parameter), under the names in the layer."""
        return self.layer.named_parameters(prefix, include_sublayers)

    def state_dict(self, *args, **kwargs):
        """Return the state of the layer: parameters and persistable buffers under their names in it."""
        return self.layer.state_dict(*args, **kwargs)

    def set_state_dict(self, *args, **kwargs):
        """Set the state of the layer, as its own method does."""
        return self.layer.set_state_dict(*args, **kwargs)

    set_dict = load_dict = set_state_dict

    def saved_tensors(self) -> Dict[str, paddle.Tensor]:
        """Return {name: tensor} of what a checkpoint holds: buffers too, which may change in training."""
        return self.state_dict()

    def layers(self) -> List[nn.Layer]:
        """Return no layers: those of an encoder are unknown."""
        return []

    def embeddings(self) -> List[nn.Layer]:
        """Return no embeddings, as `layers`."""
        return []

    def depth_of(self, name: str) -> int:
        """Return 1 for every parameter: all are of the head, and learn at the full rate."""
        return 1

    def is_unused(self, name: str) -> bool:
        """Return False: what the layer computes is unknown."""
        return False

    def check_no_running_statistics(self) -> None:
        """Raise InputError if the layer keeps means of what it has seen, as BatchNorm does."""
        kinds = (nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D)
        for name, part in self.layer.named_sublayers(include_self=True):
            if isinstance(part, kinds):
                raise InputError(
                    f"{self.family}: {name} is a {type(part).__name__}, whose statistics would differ "
                    "between the processes of a run; use LayerNorm, or train in one process"
                )

    def num_product_weights(self, trained_only: bool = False) -> int:
        """Return how many weights are multiplied with each token, about: all matrices but lookup tables."""
        tables = {each.weight.name for each in self.sublayers() if isinstance(each, nn.Embedding)}
        matrices = [p for p in self.parameters() if p.ndim > 1 and p.name not in tables]
        return sum(int(p.size) for p in matrices if not (trained_only and p.stop_gradient))

    def write(
        self, folder: Path, vocab_file: Path, max_seq_len: int = 0, save_format: str = "paddle"
    ) -> None:
        """Fill ``folder``; `load_custom_weights` and the layer's own ``set_state_dict`` read its weights."""
        assert save_format == "paddle"  # others are refused before
        self.write_paddle(folder, vocab_file, max_seq_len)


def find_inputs(layer: nn.Layer) -> str:
    """Return how ``layer`` takes ids and types: BY_NAME, BY_PLACE, IDS_ALONE. Raises InputError for more."""
    named, kinds = inspect.signature(layer.forward).parameters, inspect.Parameter
    takes_any = any(each.kind is kinds.VAR_KEYWORD for each in named.values())
    many = (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    needed = [n for n, each in named.items() if each.default is kinds.empty and each.kind not in many]
    if set(needed) <= {IDS, TYPES} and (IDS in named or takes_any):
        return BY_NAME if TYPES in named or takes_any else IDS_ALONE
    has_places = not any(named[name].kind is kinds.KEYWORD_ONLY for name in needed)
    if list(named) == needed and len(needed) in (1, 2) and has_places:
        return BY_PLACE if len(needed) == 2 else IDS_ALONE
    raise InputError(
        f"{type(layer).__name__}.forward takes ({', '.join(named)}); let it take ({IDS}, {TYPES}), and "
        "the rest with defaults"
    )


def ask_layer(layer: nn.Layer, inputs: str, input_ids, token_type_ids):
    """Return what ``layer`` answers; ``inputs`` is what `find_inputs` returns of it."""
    placed = [] if inputs == BY_NAME else [input_ids, token_type_ids][: 1 if inputs == IDS_ALONE else 2]
    named = {IDS: input_ids, TYPES: token_type_ids} if inputs == BY_NAME else {}
    return layer(*placed, **named)


@paddle.jit.not_to_static
def logits_in(answer):
    """Return the logits in what a layer answers: itself, the first of a tuple, or what is called logits."""
    if isinstance(answer, dict):
        return answer.get("logits")
    if isinstance(answer, (tuple, list)):
        return answer[0] if answer else None
    return getattr(answer, "logits", answer)


def measure_width(layer: nn.Layer, spec: ModelSpec, vocab_file: Path, max_seq_len: int) -> int:
    """Return C of the logits [B, C] of ``layer``, which is run once, on two pairs, in evaluation mode.

    Neither modes nor Paddle's random numbers change. Raises InputError if it fails or answers otherwise.
    """
    name, inputs = type(layer).__name__, find_inputs(layer)
    tokenizer = open_tokenizer(vocab_file, spec, max_seq_len)
    rows = encode_texts(["今天天气好", "我"], ["天气", "你"], None, tokenizer, min(max_seq_len, SHORT))
    batch = rows.batch(np.arange(2))
    modes = [(each, each.training) for each in layer.sublayers(include_self=True)]
    numbers = paddle.get_rng_state()
    layer.eval()
    try:
        with paddle.no_grad():
            pairs = paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids)
            logits = logits_in(ask_layer(layer, inputs, *pairs))
    except Exception as error:  # whatever the code of a person raises
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{name} fails on {IDS} and {TYPES}, int64 {list(batch.input_ids.shape)}: "
            f"{type(error).__name__}: {reason}; correct its forward, or give the vocabulary of this model"
        ) from error
    finally:
        paddle.set_rng_state(numbers)
        for each, was_training in modes:
            each.training = was_training
    shape = list(logits.shape) if isinstance(logits, paddle.Tensor) else type(logits).__name__
    if not (isinstance(shape, list) and len(shape) == 2 and shape[0] == 2):
        raise InputError(f"{name} returns {shape} of 2 pairs; return logits, [2, number of classes]")
    return int(shape[1])


def load_custom_weights(model: CustomModel, source: ModelSource) -> None:
    """Give ``model`` the weights of a folder that one of its class was saved in.

    Raises CheckpointError, with nothing set, for one missing, unknown, of another shape or not finite.
    """
    assert source.weights is not None  # `open_layer_folder` refuses a folder without
    # A layer of the user's own may hold all of itself in a part called module: its names are kept.
    found, where = read_weights(source.weights), str(source.weights)
    chosen = match_parameters(model.saved_tensors(), found, where)
    wrong = first_not_finite(found)
    if wrong is not None:
        raise CheckpointError(f"{where}: {wrong} holds NaN or infinity; give weights of an earlier step")
    model.set(chosen)


def custom_settings(layer: nn.Layer, vocab_size: int, pad_id: int) -> Dict[str, Any]:
    """Return the config.json of ``layer``, without its labels; the two numbers are those of its tokenizer.

    What a model of PaddleNLP inside says of its inputs is taken from there.
    """
    parts = layer.sublayers(include_self=True)
    tables = [int(part.weight.shape[0]) for part in parts if isinstance(part, nn.Embedding)]
    settings = {
        "architectures": [type(layer).__name__],
        LAYER_CLASS: f"{type(layer).__module__}:{type(layer).__qualname__}",
        "vocab_size": max(tables, default=vocab_size),
        "pad_token_id": pad_id,
        "max_position_embeddings": MAX_POSITIONS,
        "type_vocab_size": 1 if find_inputs(layer) == IDS_ALONE else 2,
    }
    inner = next((p.config for p in parts if hasattr(getattr(p, "config", None), "vocab_size")), None)
    for name in settings.keys() & SIZES.keys():
        value = getattr(inner, name, None)
        settings.update({name: value} if isinstance(value, int) else {})
    return settings


def save_classifier(
    folder: Path,
    model: Union[PairClassifier, CustomModel],
    vocab_file: Path,
    max_seq_len: int,
    from_folder: Optional[Path],
) -> None:
    """Write ``model`` into ``folder``, whole or not at all, in place of an earlier one at most.

    ``from_folder``: where unchanged weights come from; their calibration.json goes along. Raises InputError
    where something lies that this did not write or that was added to since, OSError when the disk refuses.
    """
    folder = Path(os.path.realpath(folder))
    is_ours = is_as_made(folder) and SAVED_MODEL.items() <= (read_folder_record(folder) or {}).items()
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if os.path.lexists(folder) and not (is_ours or is_empty):
        raise InputError(
            f"save_model: {folder} holds what save_model did not write, which would be lost; give another "
            "folder"
        )
    with published_folder(folder, lambda draft: SAVED_MODEL) as draft:
        model.write(draft, vocab_file, max_seq_len)
        if from_folder is not None and (from_folder / CALIBRATION).is_file():
            shutil.copyfile(from_folder / CALIBRATION, draft / CALIBRATION)
