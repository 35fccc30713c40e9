"""A layer with the files of a model's folder: weights, config.json, tokenizer."""

import json
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import paddle
from paddle import nn

from ernie_pair.kernels.encoder_layer import ModelState
from ernie_pair.models.config_json import CONFIG
from ernie_pair.models.hugging_face.folders import MODEL_STATE, ModelParts, write_their_folder
from ernie_pair.models.hugging_face.settings import refuse_other_model
from ernie_pair.models.networks.encoders import ENCODERS, new_encoder
from ernie_pair.models.spec import ModelSpec
from ernie_pair.models.tokenizer_files import their_tokenizer_files, tokenizer_files
from ernie_pair.weights.half_tensors import set_weight, widen_tensors
from ernie_pair.weights.weight_files import Arrays


class SavedLayer(nn.Layer):
    """A layer that is saved as a model; ``spec`` describes it, as in its config.json.

    ``keeps_frozen``: parameters with ``stop_gradient`` stay frozen in training: the caller froze them.
    """

    spec: ModelSpec
    keeps_frozen = False

    def __init__(self) -> None:
        super().__init__()
        self.frozen_modules: List[nn.Layer] = []  # what stays in evaluation mode

    def train(self) -> None:
        """Set training mode, except for what is frozen."""
        super().train()
        for layer in self.frozen_modules:
            layer.eval()

    def saved_tensors(self) -> Dict[str, paddle.Tensor]:
        """Return {name: tensor} of what a checkpoint holds of the model."""
        return dict(self.named_parameters())

    def own_weights(self) -> Dict[str, paddle.Tensor]:
        """Return {name: tensor} of what the folder of the model holds."""
        return self.state_dict()

    def set(self, arrays: Arrays) -> None:
        """Set `saved_tensors` to the values of {tensor.name: array}; others stay as they are."""
        for tensor in self.saved_tensors().values():
            if tensor.name in arrays:
                set_weight(tensor, arrays[tensor.name])

    def files_beside(self, vocab_file: Path, max_seq_len: int = 0) -> Dict[str, bytes]:
        """Return {name: content} of what a folder holds beside the weights.

        ``max_seq_len``: tokens per pair in training, which the tokenizer's configuration remembers.
        """
        config = json.dumps(self.spec.to_config(), indent=2, ensure_ascii=False)
        return {**tokenizer_files(vocab_file, self.spec, max_seq_len), CONFIG: f"{config}\n".encode()}

    def write_paddle(self, folder: Path, vocab_file: Path, max_seq_len: int) -> None:
        """Fill ``folder`` with the weights for Paddle, and `files_beside`."""
        # As plain arrays: tensors would carry along names that differ from process to process.
        paddle.save(widen_tensors(self.own_weights()), str(folder / MODEL_STATE))
        for name, content in self.files_beside(vocab_file, max_seq_len).items():
            (folder / name).write_bytes(content)


THEIRS = "hugging_face"
TRAINING_ONLY = "distillation"  # the part that is trained along, and no part of what is written


class EncoderModel(SavedLayer):
    """A model on an encoder. ``spec`` describes it, as in its config.json; its family is known."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.family, self.way, self.spec = spec.family, ENCODERS[spec.family], spec
        self.pad_id = spec.pad_id
        self.attribute = self.way.attribute or spec.family
        self.add_sublayer(self.attribute, new_encoder(spec))
        self.written_apart: Tuple[
            str, ...
        ] = ()  # begins names of weights that are none of transformers' model
        self.fused_state: Optional[ModelState] = None  # of the fused kernels, where they compute the encoder

    @property
    def encoder(self):
        """Return the encoder, a model of PaddleNLP."""
        return getattr(self, self.attribute)

    def is_unused(self, name: str) -> bool:
        """Return whether no output depends on the parameter of this name."""
        return name.startswith(tuple(f"{self.attribute}.{part}" for part in self.unused_parts()))

    def unused_parts(self) -> Tuple[str, ...]:
        """Return the name prefixes of the encoder's parameters that no output depends on."""
        return self.way.idle

    def fix_unused(self) -> None:
        """Freeze the parameters that no output depends on, once all parameters exist."""
        for name, parameter in self.named_parameters():
            parameter.stop_gradient = self.is_unused(name)

    def head_names(self) -> Tuple[str, ...]:
        """Return the names of the parameters outside the encoder: the head, and those of a subclass."""
        names = (name for name, _ in self.named_parameters())
        return tuple(name for name in names if not name.startswith(f"{self.attribute}."))

    def layers(self) -> List[nn.Layer]:
        """Return the layers of the encoder, from the embeddings up; shared ones stand once."""
        found = self.encoder
        for name in self.way.layers.split("."):
            found = getattr(found, name)
        return list(found)

    def embeddings(self) -> List[nn.Layer]:
        """Return the parts of the encoder that make the input of its first layer."""
        return [part for name, part in self.encoder.named_children() if name not in ("encoder", "pooler")]

    def depth_of(self, name: str) -> int:
        """Return 0 for a parameter of the embeddings, 1 to L of a layer, L + 1 of the head and the pooler."""
        num_layers, prefix = len(self.layers()), f"{self.attribute}."
        inside = name[len(prefix) :]
        if not name.startswith(prefix) or inside.startswith("pooler."):
            return num_layers + 1
        if inside.startswith(f"{self.way.layers}."):
            return 1 + int(inside[len(self.way.layers) + 1 :].split(".")[0])
        is_last_norm = inside.startswith("encoder.") and "embedding" not in inside
        return num_layers if is_last_norm else 0

    def own_weights(self) -> Dict[str, paddle.Tensor]:
        """Return {name: tensor} of the model, without parameters that are trained but not saved."""
        found = super().own_weights()
        return {name: found[name] for name in found if not name.startswith(f"{TRAINING_ONLY}.")}

    def write(
        self, folder: Path, vocab_file: Path, max_seq_len: int = 0, save_format: str = "paddle"
    ) -> None:
        """Fill ``folder`` so that from_pretrained, and ``load_classifier``, read it.

        ``max_seq_len``: tokens per pair in training, which the tokenizer's configuration remembers.
        ``save_format``: paddle is for PaddleNLP, hf for transformers; both is for PaddleNLP with a folder
        hugging_face inside. Raises InputError for hf where transformers has no such model.
        """
        if save_format != "hf":
            self.write_paddle(folder, vocab_file, max_seq_len)
        if save_format != "paddle":
            theirs = folder / THEIRS if save_format == "both" else folder
            theirs.mkdir(exist_ok=True)
            spec, arrays = self.spec, widen_tensors(self.own_weights())
            apart = self.written_apart
            arrays = {name: array for name, array in arrays.items() if not name.startswith(apart)}
            tokenizer = their_tokenizer_files(vocab_file, spec, max_seq_len)
            write_their_folder(theirs, ModelParts(self.family, spec.config, arrays, tokenizer, "the model"))

    def refuse_other_than_theirs(self) -> None:
        """Raise InputError when transformers has no model that computes the same."""
        refuse_other_model(self.spec.config, self.family, "--save_format hf")
