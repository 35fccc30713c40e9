"""A layer with the files of a model's folder: weights, config.json, tokenizer."""

import json
from pathlib import Path
from typing import Dict, List

import paddle
from paddle import nn

from ernie_pair.model_files.config_json import CONFIG
from ernie_pair.model_files.hugging_face.paddle_folder import MODEL_STATE
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.model_files.tokenizer_files import tokenizer_files
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
