"""The hidden states of the layers of a student and of its teacher, and how far they are apart.

Romero et al. 2015 (hints), and Jiao et al. 2020 (TinyBERT) for encoders. B batch, S sequence, D the width of
the student, T that of the teacher.
"""

from typing import Dict, List, Sequence, Tuple

import paddle
from paddle import nn
from paddle.nn import functional as F

from data_tools.base.errors import InputError
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.encoder_model import TRAINING_ONLY
from ernie_pair.processes.world import seed_of


def map_layers(student: int, teacher: int, layer_map: str, name: str) -> List[int]:
    """Return for each of ``student`` layers the one of ``teacher`` layers that it stands for, from 0 on.

    uniform: every k-th, the last among them, 1 3 5 for 3 of 6; last: 3 4 5. Raises InputError if
    ``name``, who has the layers, has too few.
    """
    if student > teacher:
        raise InputError(
            f"--layers {student} is more than the {teacher} layers of {name}; give {teacher} at most, or "
            "--from_scratch true without --hidden_weight"
        )
    if layer_map == "last":
        return list(range(teacher - student, teacher))
    return [(number + 1) * teacher // student - 1 for number in range(student)]


class StateReader:
    """A context in which the outputs of some layers of ``model`` are kept, of the last pass.

    ``states``: [B, S, D] of each of ``layers``. The last layer then runs for all tokens.
    """

    def __init__(self, model: PairClassifier, layers: Sequence[int]):
        self.model, self.layers = model, list(layers)
        self._kept: Dict[int, paddle.Tensor] = {}
        self._hooks: List = []

    @property
    def states(self) -> List[paddle.Tensor]:
        """Return the states of the last pass."""
        return [self._kept[number] for number in self.layers]

    def __enter__(self) -> "StateReader":
        self.model.reads_all_tokens = True
        every = self.model.layers()
        for number in self.layers:
            self._hooks.append(every[number].register_forward_post_hook(self._keep(number)))
        return self

    def __exit__(self, *error) -> None:
        self.model.reads_all_tokens = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._kept.clear()

    def _keep(self, number: int):
        def keep(layer, given, states) -> None:
            self._kept[number] = states[0] if isinstance(states, tuple) else states

        return keep


class StateDistance:
    """The mean squared difference of states, those of the student projected where the widths differ.

    The projections are parts of the student while it is trained, and of nothing that is written as a model:
    see TRAINING_ONLY. Raises InputError if the layers cannot be told apart.
    """

    def __init__(self, student: PairClassifier, teacher: PairClassifier, layer_map: str, seed: int):
        for model, whose in ((student, "the student"), (teacher, "the teacher")):
            if len(model.layers()) != model.spec.num_layers:
                raise InputError(
                    f"--hidden_weight: the layers of {whose}, {model.family}, share their weights; leave "
                    "it out"
                )
        layers = map_layers(student.spec.num_layers, teacher.spec.num_layers, layer_map, "the teacher")
        self.of_student = StateReader(student, range(len(layers)))
        self.of_teacher = StateReader(teacher, layers)
        self.projections = _projections(student, teacher, len(layers), seed)

    def rows(self, is_token_BS1: paddle.Tensor) -> paddle.Tensor:
        """Return the distance of every row, float32 [B]: the mean over layers, widths and its tokens.

        ``is_token_BS1``: float32, 0 for padding.
        """
        pairs = zip(self.of_student.states, self.of_teacher.states, self.projections)
        each = [_distance(*pair, is_token_BS1) for pair in pairs]
        return paddle.add_n(each) / len(each)


def _projections(student: PairClassifier, teacher: PairClassifier, count: int, seed: int) -> Sequence:
    """Return a linear layer D -> T of the student for each layer, None each where the widths are the same."""
    sizes: Tuple[int, int] = (student.spec.hidden_size, teacher.spec.hidden_size)
    if sizes[0] == sizes[1]:
        return [None] * count
    paddle.seed(seed_of(seed, 1))
    made = nn.LayerList([nn.Linear(*sizes) for _ in range(count)])
    student.add_sublayer(TRAINING_ONLY, made)
    return made


def _distance(own_BSD, theirs_BST, projection, is_token_BS1) -> paddle.Tensor:
    if projection is not None:
        own_BSD = projection(own_BSD.astype(projection.weight.dtype))
    difference = own_BSD.astype("float32") - theirs_BST.astype("float32")
    of_tokens_BS = F.square_error_cost(difference, paddle.zeros_like(difference)).mean(axis=2)
    is_token_BS = is_token_BS1.squeeze(-1)
    return (of_tokens_BS * is_token_BS).sum(axis=1) / is_token_BS.sum(axis=1)
