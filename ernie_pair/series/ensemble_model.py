"""Several classifiers as one layer: the mean of their logits, each divided by its temperature.

B batch, S sequence, C classes.
"""

from pathlib import Path
from typing import List, NamedTuple, Sequence

import numpy as np
import paddle
from paddle import nn

from data_tools.files.errors import InputError
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.labels import refuse_no_classes
from ernie_pair.models.networks.classifier import PairClassifier, load_classifier
from ernie_pair.models.networks.kernel_path import choose_path, logits_of
from ernie_pair.models.source import model_folder_of
from ernie_pair.models.temperature import Calibration, read_calibration
from ernie_pair.pair.data.encoded_pairs import encode_texts
from ernie_pair.train.process_group import SingleProcess


class Member(NamedTuple):
    """A model of the ensemble, from the folder ``path``, and how its own logits were calibrated."""

    path: Path
    model: PairClassifier
    vocab_file: Path
    calibration: Calibration

    def tokenizer(self, max_seq_len: int) -> AnyTokenizer:
        """Return its tokenizer. Raises InputError when it reads no ``max_seq_len`` tokens at once."""
        return open_tokenizer(self.vocab_file, self.model.spec, max_seq_len)


class EnsembleClassifier(nn.Layer):
    """A classifier of several; it can be exported as each of them can."""

    def __init__(self, members: Sequence[Member]):
        super().__init__()
        self.models = nn.LayerList([member.model for member in members])
        shares = [1 / (member.calibration.temperature * len(members)) for member in members]
        # Of a scale by a number behind a sum Paddle Inference 2.6.2 makes another answer, in its pass
        # operator_scale_onednn_fuse_pass; a product with a tensor it leaves alone.
        self.register_buffer("shares", paddle.to_tensor(shares, dtype="float32"))
        first = members[0].model
        self.spec, self.num_classes = first.spec, first.num_classes
        self.family = ", ".join(dict.fromkeys(member.model.family for member in members))
        ways = [member.model.way for member in members]
        self.way = next((way for way in ways if way.takes_types), ways[0])

    def forward(self, input_ids, token_type_ids):
        """Return the logits [B, C] of ids and token types int64 [B, S]."""
        logits_BC = self.models[0](input_ids, token_type_ids) * self.shares[0]
        for number in range(1, len(self.models)):
            logits_BC = logits_BC + self.models[number](input_ids, token_type_ids) * self.shares[number]
        return logits_BC


def open_members(paths: Sequence[str], model_class: str) -> List[Member]:
    """Open the models. Raises InputError if they are not of the same classes and the same vocabulary."""
    folders = [model_folder_of(Path(path)) for path in paths]
    members = [_open(folder, model_class) for folder in folders]
    for number, member in enumerate(members):
        _refuse_again(member, members[:number])
        _refuse_other(member, members[0])
    return members


def _open(folder: Path, model_class: str) -> Member:
    model, vocab_file = load_classifier(str(folder), model_class)
    refuse_no_classes(model.spec.labels, str(folder), "ensemble")
    return Member(folder, model, vocab_file, read_calibration(folder, model.num_classes))


def _refuse_again(member: Member, before: Sequence[Member]) -> None:
    if any(member.path.samefile(other.path) for other in before):
        raise InputError(f"{member.path} is named twice; name each model once")


def _refuse_other(member: Member, first: Member) -> None:
    """Raise InputError when the logits, or the ids, of two models mean different things."""
    names, others = member.model.spec.labels.names, first.model.spec.labels.names
    if names != others:
        raise InputError(
            f"{member.path} has the classes {', '.join(names)}, and {first.path} {', '.join(others)}; give "
            "models of the same classes in the same order"
        )
    one, other = member.tokenizer(0), first.tokenizer(0)
    if one.sha256 != other.sha256 or member.model.spec.lower_case != first.model.spec.lower_case:
        raise InputError(
            f"{member.vocab_file} gives a text other ids than {first.vocab_file}: one exported model has "
            "one vocabulary; give models of the same one, or export each by itself"
        )


def length_of(members: Sequence[Member], asked: int) -> int:
    """Return the tokens per pair: ``asked``, or where that is 0 the least that any model was trained with.

    Raises InputError for more than a model reads at once.
    """
    length = asked or min(member.model.spec.inference_length for member in members)
    for member in members:
        member.tokenizer(length)
    return length


def symmetry_of(members: Sequence[Member], asked: str) -> str:
    """Return how pairs are scored: as ``asked``, of which auto is as the models were tuned.

    Raises InputError if they were not all tuned so.
    """
    chosen = [member.calibration.chosen_symmetry(asked, str(member.path)) for member in members]
    for member, one in zip(members, chosen):
        if one != chosen[0]:
            raise InputError(
                f"{member.path} is scored with --symmetric {one}, and {members[0].path} with {chosen[0]}; "
                "pass --symmetric average or none, a model tuned the other way first: ernie-pair evaluate "
                "--symmetric average --calibrate_on FILE --save_temperature true"
            )
    return chosen[0]


def member_logits(
    member: Member, texts: Sequence[Sequence[str]], max_seq_len: int, batch_size: int
) -> np.ndarray:
    """Return the logits of a model at its temperature, float32 [N, C], of left and right texts."""
    rows = encode_texts(texts[0], texts[1], None, member.tokenizer(max_seq_len), max_seq_len)
    choose_path(member.model, KernelFlags(), "cpu")
    logits = logits_of(member.model, rows, batch_size, SingleProcess())
    choose_path(member.model, KernelFlags(kernels="plain"), "cpu")  # which alone can be exported
    return logits / np.float32(member.calibration.temperature)
