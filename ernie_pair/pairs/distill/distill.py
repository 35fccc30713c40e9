"""Distillation: teacher, student and what the one learns from the other; the engine is that of training.

Hidden states: Romero et al. 2015 (hints), and Jiao et al. 2020 (TinyBERT) for encoders. B batch, S sequence,
D the width of the student, T that of the teacher, C classes.

The loss of a labelled pair is (1 - a) CE(label) + a t^2 KL(p|q), where p and q are the softmax of the logits
of teacher and student divided by the temperature t, and a is --soft_weight; that of a pair without label is
t^2 KL(p|q) (Hinton et al. 2015). --hidden_weight times the distance of the hidden states is added to both.
"""

import hashlib
import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.keyed_cache import ArrayKind, KeyedCache, array_cache
from ernie_pair.core.progress import CountProgress
from ernie_pair.inference.token_rows import Batch, EncodedPairs, exchange_texts, open_tokenizer
from ernie_pair.models.commands import width_settings
from ernie_pair.models.labels import CLASSIFICATION, UNLABELLED, Labels, check_has_classes
from ernie_pair.models.networks.classifier import (
    PairClassifier,
    build_classifier,
    check_has_classifier,
    load_classifier,
    load_initial_weights,
)
from ernie_pair.models.networks.encoders import TRAINING_ONLY, constant_weights, is_token_in, predict_logits
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.source import ModelSource, open_model, open_start, with_match
from ernie_pair.models.spec import ModelSpec
from ernie_pair.models.temperature import read_calibration
from ernie_pair.pairs.config.distill_config import StudentConfig
from ernie_pair.pairs.config.pair_config import refuse_unfit_flags
from ernie_pair.pairs.data.in_memory_pairs import ARGUMENTS, PairDataset, held, open_source
from ernie_pair.pairs.data.row_cache import LOCK_SECONDS
from ernie_pair.pairs.targets.metrics import choose_metric
from ernie_pair.pairs.train.datasets import PairData, open_pairs
from ernie_pair.pairs.train.initial_model import InitialModel, match_asked
from ernie_pair.pairs.train.loss import Forward, PairLoss, RowLosses, ToDevice
from ernie_pair.pairs.train.train_pair import PairTask
from ernie_pair.runtime.paddle_patches.core_settings import without_tf32
from ernie_pair.runtime.processes.world import World, seed_of
from ernie_pair.training.callbacks import PairCallback, checked_callback
from ernie_pair.training.optimizer import autocast
from ernie_pair.training.process_group import join_process_group
from ernie_pair.training.recompute import num_frozen_layers
from ernie_pair.training.task import TrainResult, train_task
from ernie_pair.training.training_step import LossParts
from ernie_pair.weights.parameter_names import MATCH_HEAD, TYPES, fit_rows


def map_layers(student: int, teacher: int, layer_map: str, name: str) -> list[int]:
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
        self._kept: dict[int, paddle.Tensor] = {}
        self._hooks: list = []

    @property
    def states(self) -> list[paddle.Tensor]:
        """Return the states of the last pass."""
        return [self._kept[number] for number in self.layers]

    def __enter__(self) -> "StateReader":
        self.model.reads_all_tokens = True
        every = self.model.layers()
        for number in self.layers:

            def keep(layer, inputs, states, number=number) -> None:
                self._kept[number] = states[0] if isinstance(states, tuple) else states

            self._hooks.append(every[number].register_forward_post_hook(keep))
        return self

    def __exit__(self, *error) -> None:
        self.model.reads_all_tokens = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._kept.clear()


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
        self.projections: Sequence = [None] * len(layers)  # D -> T, where the widths differ
        sizes: tuple[int, int] = (student.spec.hidden_size, teacher.spec.hidden_size)
        if sizes[0] != sizes[1]:
            paddle.seed(seed_of(seed, 1))
            self.projections = nn.LayerList([nn.Linear(*sizes) for _ in layers])
            student.add_sublayer(TRAINING_ONLY, self.projections)

    def rows(self, is_token_BS1: paddle.Tensor) -> paddle.Tensor:
        """Return each row's mean distance over layers, widths and its tokens (1.0, else 0), float32 [B]."""
        states = self.of_student.states, self.of_teacher.states, self.projections
        distances = []
        for own_BSD, theirs_BST, projection in zip(*states):
            if projection is not None:
                own_BSD = projection(own_BSD.astype(projection.weight.dtype))
            difference = own_BSD.astype("float32") - theirs_BST.astype("float32")
            of_tokens_BS = F.square_error_cost(difference, paddle.zeros_like(difference)).mean(axis=2)
            is_token_BS = is_token_BS1.squeeze(-1)
            distances.append((of_tokens_BS * is_token_BS).sum(axis=1) / is_token_BS.sum(axis=1))
        return paddle.add_n(distances) / len(distances)


VERSION = 1  # raised when the same teacher would give other logits for the same rows
PART = 1 << 14  # rows of one file


class Teacher:
    """A trained classifier, frozen, that answers as its calibration.json says: in one order, or both.

    It is called as a classifier is, and gives its logits, float32 [B, C] without a gradient. Raises
    InputError when --teacher is no trained classifier, CheckpointError when its weights cannot be used.
    """

    def __init__(self, config: StudentConfig):
        self.source: ModelSource = open_model(config.teacher, flag="teacher")
        folder = self.source.folder
        assert folder is not None  # or `open_model` has raised
        self.config, self.name = config, str(folder)
        check_has_classifier(self.source.read_weights(), f"--teacher {self.source.name}")
        check_has_classes(self.source.spec.labels, f"--teacher {folder}", "distill")
        self.model: PairClassifier = load_classifier(str(folder), config.model_class)[0]
        for parameter in self.model.parameters():
            parameter.stop_gradient = True
        self.symmetric = read_calibration(folder, self.num_classes).symmetric
        self.tokenizer: AnyTokenizer = open_tokenizer(
            self.source.vocab_file, self.source.spec, config.max_seq_len
        )
        self._sha256 = self._kernels = ""
        self._constant = ExitStack()

    @property
    def num_classes(self) -> int:
        """Return the number of classes C."""
        return self.model.num_classes

    @property
    def fused_state(self):
        """Return the state of the fused kernels, None where Paddle's own compute."""
        return self.model.fused_state

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of all that its answers depend on, in hex."""
        if not self._sha256:
            parts = [self.source.spec.sha256, self.tokenizer.sha256, self.symmetric]
            parts += map(sha256_of_file, self.source.weight_files)
            self._sha256 = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return self._sha256

    def describe(self) -> str:
        """Return its family and size in words."""
        spec = self.model.spec
        return f"{self.model.family}, {spec.num_layers} layers x {spec.hidden_size}"

    def prepare(self, process_group) -> None:
        """Choose the kernels, the same on all ranks; the weights stay as they are from here on."""
        config, group = self.config, process_group
        self._kernels = choose_path(self.model, config, config.device, group.size, group.all_reduce).name
        self._constant.enter_context(constant_weights(self.model))

    def eval(self) -> None:
        """Do nothing: a teacher is always in evaluation mode."""

    def __call__(self, input_ids, token_type_ids):
        """Return the logits of ids and token types int64 [B, S]."""
        with paddle.no_grad(), without_tf32(), autocast(self.config, "O1"):
            if self.symmetric != "average":
                return self.model(input_ids, token_type_ids).astype("float32")
            batch = exchange_texts(Batch(input_ids.numpy(), token_type_ids.numpy(), None))
            ids, types = paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids)
            exchanged = self.model(ids, types).astype("float32")
            # The given order last: a student compares its hidden states with those of the last forward pass.
            return (self.model(input_ids, token_type_ids).astype("float32") + exchanged) / 2

    def logits_of_rows(self, rows: EncodedPairs, cache_dir: Path, process_group) -> np.ndarray:
        """Return the logits of all rows, float32 [N, C], on every rank, from ``cache_dir`` where they are.

        All ranks call it and share the work; rank 0 writes. Raises NumbersError for a logit that is not
        finite, MachineError when the disk does not keep what is written.
        """
        found: list[np.ndarray] = []
        with CountProgress(len(rows), "pair", shown=process_group.rank == 0) as progress:
            for part in _parts_of(rows):
                cache = self._cache_of(part, cache_dir)
                logits = cache.read()
                is_missing = process_group.all_reduce(np.array([float(logits is None)]))[0]
                if logits is None or is_missing:
                    asked = self.config.batch_size, process_group, progress.advance
                    answers = logits = predict_logits(self, part, *asked)
                    if process_group.rank == 0:
                        logits = cache.get(partial(np.asarray, answers), LOCK_SECONDS)
                else:
                    progress.advance(len(part))
                found.append(logits)
        return np.concatenate(found)

    def _cache_of(self, part: EncodedPairs, cache_dir: Path) -> KeyedCache[np.ndarray]:
        config, rows = self.config, hashlib.sha256()  # of the ids, and of where each row begins and parts
        for array, dtype in ((part.ids, np.int32), (part.lengths, np.int64), (part.heads, np.int64)):
            rows.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
        key: dict[str, Any] = {
            "version": VERSION,
            "teacher": self.sha256,
            "rows": rows.hexdigest(),
            "batch_size": config.batch_size,
            "kernels": f"{config.device}, {self._kernels}",
            "computed in": config.amp_dtype if config.use_amp else config.precision,
        }
        wanted = ArrayKind(np.dtype(np.float32), (len(part), self.num_classes))
        return array_cache(cache_dir, key, "teacher-", wanted.fits)


def _parts_of(rows: EncodedPairs) -> Sequence[EncodedPairs]:
    parts = []
    for first in range(0, len(rows), PART):
        last = min(first + PART, len(rows))
        begin, end = rows.starts[first], rows.starts[last]
        starts, heads = rows.starts[first : last + 1] - begin, rows.heads[first:last]
        ids = rows.ids[begin:end]
        parts.append(EncodedPairs(ids, starts, heads, None, rows.pad_id, separators=rows.separators))
    return parts


def open_student(config: StudentConfig, teacher: Teacher) -> InitialModel:
    """Return the student with its initial weights, made of the teacher or of --model_name_or_path.

    Where both are as wide, every k-th layer and all that is no layer are taken over; otherwise the weights
    are random. Raises InputError when the sizes do not fit, or the two read texts otherwise.
    """
    base = _base_of(config, teacher)
    theirs = "cls" if config.model_name_or_path else teacher.model.pooling
    pooling = theirs if config.pooling == "cls" else config.pooling
    base = with_match(base, match_asked(config, pooling, base.spec.labels))
    spec = student_spec(config, base.spec, is_pretrained=bool(config.model_name_or_path))
    source = ModelSource(base.name, spec, base.vocab_file, None)
    model = build_classifier(source, config.seed, config.dropout, pooling, type(teacher.model))
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
    sizes: dict[str, object] = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "intermediate_size": inner,
    }
    if hidden != base.hidden_size:
        sizes.update(width_settings(base.family, hidden))
    return base.replace(**sizes)


def _base_of(config: StudentConfig, teacher: Teacher) -> ModelSource:
    if not config.model_name_or_path:
        return teacher.source
    base = open_start(config)
    tokenizer = open_tokenizer(base.vocab_file, base.spec, config.max_seq_len)
    same_case = base.spec.lower_case == teacher.source.spec.lower_case
    if tokenizer.sha256 != teacher.tokenizer.sha256 or not same_case:
        raise InputError(
            f"--model_name_or_path {config.model_name_or_path}: its vocabulary is another than that of "
            f"--teacher {teacher.name}, which answers about the same token ids; give a model with that one"
        )
    return replace(base, spec=base.spec.with_labels(teacher.source.spec.labels))


def _begin(config: StudentConfig, model: PairClassifier, base: ModelSource, teacher: Teacher) -> str:
    """Give the student its initial weights, and return in words what they are."""
    widths = ("hidden_size", "num_heads", "intermediate_size")
    is_as_wide = all(getattr(model.spec, name) == getattr(base.spec, name) for name in widths)
    if config.from_scratch or not is_as_wide:
        reason = "--from_scratch true" if config.from_scratch else f"{base.name} is of another width"
        return f"start from random weights ({reason})"
    if not config.model_name_or_path:
        giver, what = teacher.model, "the teacher"
    else:
        giver = build_classifier(base, config.seed, config.dropout, model.pooling, type(model))
        what = load_initial_weights(giver, base).replace("start from ", "")
    taken = map_layers(model.spec.num_layers, giver.spec.num_layers, "uniform", base.name)
    theirs, prefix = dict(giver.named_parameters()), f"{model.attribute}.{model.family_spec.layers}."
    with paddle.no_grad():  # layer i takes the weights of layer taken[i], and the rest the giver's rest
        for name, parameter in model.named_parameters():
            if name.startswith(prefix) and len(model.layers()) == len(taken):
                number, _, rest = name[len(prefix) :].partition(".")
                name = f"{prefix}{taken[int(number)]}.{rest}"
            is_other = name.startswith("classifier.") and theirs[name].shape != parameter.shape
            if is_other or name.startswith(MATCH_HEAD) and name not in theirs:
                continue  # of another --pooling; it begins at 0
            array = theirs[name].numpy()
            if name.endswith(TYPES):
                array = fit_rows(array, base.spec.token_types, model.spec.has_match, base.name)
            model.set({parameter.name: array})
    shown = ", ".join(str(number + 1) for number in taken)
    layers = f"{'layer' if len(taken) == 1 else 'layers'} {shown} of {giver.spec.num_layers}"
    return f"start from {layers}, embeddings, pooler and classifier of {what}"


class DistillLoss(PairLoss):
    """The loss of a micro-batch of distillation; ``parts`` of it are told in the log.

    The logits of ``teacher`` are those of the batch where it has them, otherwise it is asked. ``distance``:
    of the hidden states, None where they are not compared. The accuracy of a step counts a pair without
    label as right where the student chooses the class of its teacher.
    """

    def __init__(
        self,
        config: StudentConfig,
        teacher: Teacher,
        class_weights: Optional[np.ndarray],
        distance: Optional[StateDistance] = None,
    ):
        super().__init__(config.rdrop_alpha, class_weights, config.symmetric, config.symmetric_alpha)
        self.config, self.teacher, self.distance = config, teacher, distance
        self.parts = ("soft_loss",) if distance is None else ("soft_loss", "hidden_loss")
        self._batch: Optional[Batch] = None

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the loss of a micro-batch; see `PairLoss`."""
        with ExitStack() as reading:
            if self.distance is not None:
                reading.enter_context(self.distance.of_student)
                reading.enter_context(self.distance.of_teacher)
            self._batch = batch
            return super().__call__(forward, batch, to_device)

    def losses_of_rows(self, logits_BC, batch: Batch, to_device: ToDevice) -> RowLosses:
        """Return the losses of the rows of ``batch``, whose logits float32 [B, C] are given."""
        assert batch.labels is not None  # training reads them
        taught_BC = self._taught(batch, to_device)
        soft_B = soft_losses(logits_BC, taught_BC, self.config.temperature)
        has_label_B = batch.labels != UNLABELLED
        share_B = paddle.to_tensor(np.where(has_label_B, self.config.soft_weight, 1).astype(np.float32))
        known_B = paddle.to_tensor(np.where(has_label_B, batch.labels, 0))
        hard_B = F.cross_entropy(logits_BC, known_B, reduction="none")
        losses_B = (1 - share_B) * hard_B + share_B * soft_B
        answers_B = paddle.where(paddle.to_tensor(has_label_B), known_B, taught_BC.argmax(axis=1))
        if self.distance is None:
            return RowLosses(losses_B, answers_B, (soft_B,))
        is_token_BS1 = paddle.to_tensor(is_token_in(batch.input_ids, self.teacher.model.pad_id)[:, :, None])
        apart_B = self.distance.rows(is_token_BS1.astype("float32"))
        return RowLosses(losses_B + self.config.hidden_weight * apart_B, answers_B, (soft_B, apart_B))

    def _taught(self, batch: Batch, to_device: ToDevice) -> paddle.Tensor:
        """Return the logits of the teacher, float32 [B, C], of the pairs as the files have them."""
        if batch.teacher_logits is not None:
            return to_device(batch.teacher_logits)
        original = self._batch
        assert original is not None
        logits_BC = self.teacher(to_device(original.input_ids), to_device(original.token_type_ids))
        return paddle.concat([logits_BC] * (len(batch.input_ids) // len(original.input_ids)))

    def weights_of_rows(self, labels_B: np.ndarray) -> np.ndarray:
        """Return what each row counts, float32 [B]: one without label 1."""
        return np.where(labels_B == UNLABELLED, np.float32(1), super().weights_of_rows(labels_B))


def soft_losses(logits_BC, taught_BC, temperature: float) -> paddle.Tensor:
    """Return t^2 KL(p|q) of every row, float32 [B], of the logits of student and teacher [B, C]."""
    log_q_BC = F.log_softmax(logits_BC / temperature)
    log_p_BC = F.log_softmax(taught_BC / temperature)
    return temperature**2 * (log_p_BC.exp() * (log_p_BC - log_q_BC)).sum(axis=1)


Datasets = Mapping[str, Optional[PairDataset]]

logger = logging.getLogger(__name__)


def distill_pair(
    config: StudentConfig,
    datasets: Optional[Datasets] = None,
    callbacks: Sequence[Union[PairCallback, type[PairCallback]]] = (),
) -> TrainResult:
    """Distil from the newest checkpoint of ``output_dir``, or from the student's beginning.

    ``datasets``: {train, dev or unlabelled: its pairs}, in place of the files. Raises an ErniePairError for
    whatever the user can fix.
    """
    kept = {
        split: pairs if split == "train" and config.streaming else held(pairs)
        for split, pairs in (datasets or {}).items()
    }
    return train_task(DistillTask(config, kept), list(map(checked_callback, callbacks)))


class DistillTask(PairTask):
    """The training of a student; ``datasets``: {split: its pairs} of Python, in place of the flags'."""

    command = "distill"

    def __init__(self, config: StudentConfig, datasets: Optional[Datasets] = None):
        metric = choose_metric(config.best_metric, CLASSIFICATION)
        to_static = False if config.hidden_weight else config.to_static
        super().__init__(replace(config, best_metric=metric, to_static=to_static))
        self._datasets: Datasets = datasets or {}

    def open_model(self) -> None:
        """Open the teacher, and the student with its initial weights."""
        config = self.config
        self.teacher = Teacher(config)
        refuse_unfit_flags(config, self.teacher.source.spec.labels)
        self.take(open_student(config, self.teacher))

    def open_data(self, world: World) -> None:
        """Open the pairs, and ask the teacher about those to train on what is to be kept of its answers."""
        config, teacher = self.config, self.teacher
        distance = None
        if config.hidden_weight:
            distance = StateDistance(self.model, teacher.model, config.layer_map, config.seed)
        data = open_pairs(config, _sources_of(config, teacher, self._datasets), self.source, world)
        self.data = data._replace(hashes={**data.hashes, "teacher": teacher.sha256})
        size = self.initial.facts["student size"]
        logger.info("teacher %s: %s; student: %s", teacher.name, teacher.describe(), size)
        group = join_process_group(world)
        teacher.prepare(group)
        if not config.asks_in_each_step:
            _keep_logits(config, self.data, teacher, group)
        self.overrides.loss = DistillLoss(config, teacher, data.class_weights, distance)

    def layout(self) -> dict[str, object]:
        """Return when the teacher is asked."""
        return {"teacher_logits": "on the fly" if self.config.asks_in_each_step else "cached"}


def _sources_of(config: StudentConfig, teacher: Teacher, datasets: Datasets) -> dict[str, Any]:
    labels = teacher.source.spec.labels
    optional = replace(labels, are_optional=True)
    if config.streaming and datasets.get("unlabelled") is not None:
        raise InputError(
            "unlabelled_dataset is read whole, and streaming reads one dataset; put the pairs into "
            "train_dataset, where a row needs no label"
        )
    known: dict[str, Optional[Labels]] = {"train": optional, "unlabelled": None, "dev": labels}
    sources: dict[str, Any] = {}
    for split, known_labels in known.items():
        dataset = datasets.get(split)
        given = getattr(config, f"{split}_file", "") if dataset is None else dataset
        if not isinstance(given, (str, Path)) or str(given):
            sources[split] = open_source(config, split, given, known_labels)
        elif split != "unlabelled":
            raise InputError(f"there is no {ARGUMENTS[split]}; give it to distill, or pass a DistillConfig")
    return sources


def _keep_logits(config: StudentConfig, data: PairData, teacher: Teacher, group) -> None:
    if data.train is None:
        raise InputError("--teacher_logits cached needs all rows at once; leave --streaming out")
    if config.dry_run:
        data.train.teacher_logits = np.zeros((len(data.train), teacher.num_classes), np.float32)
        logger.info("the teacher scores %d pairs before the first step", len(data.train))
        return
    logger.info("the teacher scores %d training pairs, except those in the cache", len(data.train))
    cache_dir = Path(config.cache_dir or Path(config.output_dir) / "cache")
    data.train.teacher_logits = teacher.logits_of_rows(data.train, cache_dir, group)
