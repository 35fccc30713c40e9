"""The cases that are measured side by side: their models, texts and batches, and the lanes of each."""

import io
import json
import logging
import os
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
from other_libraries.client import PATH_OF_PEER, SCRIPTS

from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.make_sample import SampleConfig, make_sample
from data_tools.text.wordpiece import WordPiece
from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.deployment.export_config import ExportConfig
from ernie_pair.deployment.export_pair import export_pair
from ernie_pair.kernels.library import open_kernels
from ernie_pair.models.commands import NewModelConfig, new_model
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import CONFIG, VOCAB, ModelSpec
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pairs.data.pair_records import Columns
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.train.datasets import open_pair_data
from ernie_pair.pairs.train.trainer import PairTrainer
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import open_pretrain_data
from ernie_pair.runtime.cpu import cpu_level, has_bf16
from ernie_pair.runtime.processes.world import World
from side_by_side.lanes import Lane, measure_lanes

# For the peer: precision, and whether it has its best settings.
PEER_WAYS = {"peer fp32": ("fp32", True), "peer bf16": ("bf16", True), "peer defaults": ("fp32", False)}
# Of an exported model: name of the lane, precision, arguments of PairPredictor.
EXPORTED = {
    "exported paddle": ("fp32", {"backend": "paddle"}),
    "exported paddle bf16": ("bf16", {"backend": "paddle", "precision": "bf16"}),
    "exported onnx": ("fp32", {"backend": "onnx"}),
    "exported onnx int8": ("int8", {"backend": "onnx-int8"}),
}
EXPORTED_ON_GPU = {
    f"exported paddle {name}": (name, {"backend": "paddle", "precision": name, "device": "gpu"})
    for name in ("fp32", "bf16", "fp16")
}
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
SIZES += ("max_position_embeddings", "hidden_act", "type_vocab_size")
USUAL = {"hidden_act": "gelu", "type_vocab_size": 2}
DEV_ROWS, DOCUMENTS = 8, 20_000
SPECIALS_OF_PAIR = 3  # [CLS] and two [SEP]
PEER_LENGTH = 128  # the peer's example scripts pad every pair to it
GRAD_CLIP, NO_LABEL_OF_PEER = 1.0, -100
NO_END = 10**6  # steps


@dataclass(frozen=True)
class Shape:
    """The sizes of a case: the model's, pairs or samples per batch, and tokens of each.

    pairs: of a step of prediction. is_full: texts are joined until they fill all tokens. is_mixed: until they
    have any number of tokens, from 8 to all.
    """

    num_hidden_layers: int = 4
    hidden_size: int = 312
    batch_size: int = 64
    max_seq_len: int = 128
    pairs: int = 512
    is_full: bool = False
    is_mixed: bool = False


class Bench(NamedTuple):
    """What a case is measured with: the flags of bench.py, its shape, a folder of its own."""

    flags: Any
    shape: Shape
    folder: Path


class Case(NamedTuple):
    """A case: its name and what a step is, in terms of its shape, and a function that measures it."""

    name: str
    unit: str
    shape: Shape
    measure: Callable[[Bench], List[Lane]]


def write_model(
    folder: Path, vocab_file: str, model_type: str, shape: Shape, hidden_act: str = "auto"
) -> ModelSpec:
    """Write a model of random weights: heads of 64 or 26 numbers, layers four times as wide inside."""
    sizes = {"hidden_size": shape.hidden_size, "num_hidden_layers": shape.num_hidden_layers}
    sizes["num_attention_heads"] = shape.hidden_size // (26 if shape.hidden_size % 64 else 64)
    sizes["intermediate_size"] = 4 * shape.hidden_size
    kind = {"model_type": model_type, "hidden_act": hidden_act}
    new_model(NewModelConfig(vocab_file=vocab_file, output_dir=str(folder), **kind, **sizes))
    return open_model(str(folder), model_type="", from_scratch=True).spec


def read_rows(pair_file: str, count: int) -> List[Tuple[str, str]]:
    source = PairSource("pair_file", pair_file, "train", None, Columns("", "", ""))
    return [(pair.left, pair.right) for pair in islice(source.rows(), count)]


def write_rows(path: Path, rows: Sequence[Tuple[str, str]], is_labelled: bool = True) -> str:
    labels = (f"\t{number % 2}" if is_labelled else "" for number in range(len(rows)))
    lines = (f"{left}\t{right}{label}\n" for (left, right), label in zip(rows, labels))
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def joined(texts: Iterator[str], length: int) -> str:
    """Return the next of ``texts`` joined until they have ``length`` characters or more."""
    text = ""
    while len(text) < length:
        text += next(texts)
    return text


def mixed_rows(rows: Sequence[Tuple[str, str]], longest: int) -> List[Tuple[str, str]]:
    """Return as many pairs, each of 8 to ``longest`` tokens of Chinese text, any number as likely."""
    texts = cycle([text for row in rows for text in row])
    lengths = np.random.default_rng(1).integers(8, longest + 1, len(rows)) - SPECIALS_OF_PAIR
    halves = [(length - length // 2, length // 2) for length in lengths.tolist()]
    return [(joined(texts, left)[:left], joined(texts, right)[:right]) for left, right in halves]


def write_pairs(folder: Path, pair_file: str, shape: Shape, steps: int) -> None:
    """Write the pairs of ``steps`` batches as training pairs, and a few as dev pairs.

    If they are to fill all tokens, texts are joined until they do: with any vocabulary that takes no more
    characters. Raises InputError for too few.
    """
    count = steps * shape.batch_size + DEV_ROWS
    rows = read_rows(pair_file, count)
    if shape.is_full:
        texts = cycle([text for row in rows for text in row])
        longest = 2 * shape.max_seq_len
        rows = [(joined(texts, longest), joined(texts, longest)) for _ in range(count)]
    elif len(rows) < count:
        raise InputError(f"{pair_file} has {len(rows)} rows, and {count} are needed; lower --rounds")
    write_rows(folder / "train.tsv", rows[:-DEV_ROWS])
    write_rows(folder / "dev.tsv", rows[-DEV_ROWS:])


def pair_settings(folder: Path, shape: Shape, device: str, steps: int, steps_per_line: int) -> Dict[str, Any]:
    """Return the flags of a run on the model and the pairs in ``folder``, all but --output_dir."""
    return {
        "model_name_or_path": str(folder / "model"), "from_scratch": True, "cache_dir": str(folder / "cache"),
        "train_file": str(folder / "train.tsv"), "dev_file": str(folder / "dev.tsv"), "device": device,
        "batch_size": shape.batch_size, "max_seq_len": shape.max_seq_len, "max_steps": steps,
        "logging_freq": steps_per_line, "eval_freq": NO_END, "checkpoint_steps": NO_END,
        "match_embeddings": False,  # which the others have not
    }  # fmt: skip


def pair_lanes(bench: Bench) -> List[Lane]:
    flags, shape, folder = bench
    plan, model = flags.plan, folder / "model"
    spec = write_model(model, flags.vocab_file, "ernie_gram", shape)
    write_pairs(folder, flags.pair_file, shape, plan.total)
    settings = pair_settings(folder, shape, flags.device, plan.total + 1, flags.steps)
    config = TrainConfig(output_dir=str(folder / "batches"), **settings)
    source = open_model(str(model), model_type="", from_scratch=True)
    batches = [batch for (batch,) in islice(open_pair_data(config, source, World()).updates(0), plan.total)]
    longest = max(PEER_LENGTH, *(batch.input_ids.shape[1] for batch in batches))
    task = {"task": "train_pairs", "padded_to": longest, "grad_clip": 0}
    theirs = [batch._asdict() for batch in batches]
    lanes = our_lanes(bench, TrainConfig, "train_pairs", settings)
    return [*lanes, *peer_lanes(bench, task, model, spec, theirs)]


def write_corpus(folder: Path, vocab_file: str) -> None:
    make_sample(SampleConfig(output_dir=str(folder / "sample"), documents=DOCUMENTS))
    text = str(folder / "sample" / "corpus.txt")
    trans_to_json(TransConfig(input_path=text, output_path=str(folder / "text")))
    words = {"chinese": True, "cn_whole_word_segment": True}
    places = {"input_path": str(folder / "text.jsonl"), "output_prefix": str(folder / "data" / "text")}
    create_pretraining_data(CreateConfig(**places, vocab_file=vocab_file, **words))


def pretrain_lanes(bench: Bench) -> List[Lane]:
    flags, shape, folder = bench
    plan, model = flags.plan, folder / "model"
    spec = write_model(model, flags.vocab_file, "ernie", shape, hidden_act="gelu")
    write_corpus(folder, flags.vocab_file)
    settings = {
        "model_name_or_path": str(model), "from_scratch": True, "input_dir": str(folder / "data"),
        "split": "98,1,1", "max_seq_len": shape.max_seq_len, "short_seq_prob": 0.0, "num_workers": 0,
        "micro_batch_size": shape.batch_size, "max_steps": plan.total + 1, "logging_freq": flags.steps,
        "grad_clip": GRAD_CLIP, "device": flags.device,
    }  # fmt: skip
    config = PretrainConfig(output_dir=str(folder / "batches"), **settings)
    data = open_pretrain_data(config, World(), WordPiece.from_file(flags.vocab_file), spec)
    batches = [batch for (batch,) in islice(data.updates(0), plan.total)]
    labels = ("masked_lm_labels", "next_sentence_labels")  # as torch marks those that are none
    theirs = [
        {**each, **{key: np.where(each[key] < 0, NO_LABEL_OF_PEER, each[key]) for key in labels}}
        for each in batches
    ]
    task = {"task": "pretrain", "grad_clip": GRAD_CLIP}
    lanes = our_lanes(bench, PretrainConfig, "pretrain", settings)
    return [*lanes, *peer_lanes(bench, task, model, spec, theirs)]


def ask_lanes(bench: Bench) -> List[Lane]:
    """Return the lanes that predict, from texts to logits, by random weights, exported ones too."""
    flags, shape, folder = bench
    rows = read_rows(flags.pair_file, shape.pairs)
    rows = mixed_rows(rows, shape.max_seq_len) if shape.is_mixed else rows
    texts = write_rows(folder / "pairs.tsv", rows, is_labelled=False)
    write_model(folder / "start", flags.vocab_file, "ernie_gram", shape)
    sizes = {"max_seq_len": shape.max_seq_len, "batch_size": shape.batch_size}
    model, ship, on_cpu = folder / "trained", str(folder / "ship"), flags.device == "cpu"
    given = {"from_scratch": True, "match_embeddings": False, "device": flags.device, **sizes}
    start = PairConfig(str(folder / "trainer"), **given)
    PairTrainer(str(folder / "start"), start).save_model(model)
    spec = open_model(str(model), model_type="").spec
    places = {"model_path": str(model), "input_file": texts, "output_file": str(folder / "out.tsv")}
    settings = {**places, "batch_size": shape.batch_size, "device": flags.device}
    lanes = our_lanes(bench, PredictConfig, "ask_trained", settings)
    judged = {"quantize": "int8", "quantize_file": write_rows(folder / "train.tsv", rows), "format": "both"}
    no_limit = {"max_accuracy_drop": 1.0}  # random weights have no accuracy to lose
    export_pair(
        ExportConfig(model_path=str(model), output_dir=ship, **no_limit, **(judged if on_cpu else {}))
    )
    for name, (precision, way) in (EXPORTED if on_cpu else EXPORTED_ON_GPU).items():
        if precision != "bf16" or not on_cpu or open_kernels().has_bf16:
            task = {"folder": ship, "texts": texts, "settings": {**way, "threads": flags.threads}}
            lanes.append(our_lane(folder, name, precision, {"task": "ask_exported", **task}))
    task = {"task": "ask", "texts": texts, "vocab_file": str(model / VOCAB), **sizes}
    return [*lanes, *peer_lanes(bench, task, model, spec)]


def our_lanes(bench: Bench, config_class: type, task: str, settings: Mapping[str, Any]) -> List[Lane]:
    lanes = []
    for name, (precision, way) in ways_of(config_class, bench.flags.device).items():
        output = {"output_dir": str(bench.folder / name.replace(" ", "_"))}
        flags = {**settings, **way, **(output if config_class is not PredictConfig else {})}
        lanes.append(our_lane(bench.folder, name, precision, {"task": task, "flags": flags}))
    return lanes


def ways_of(config_class: type, device: str) -> Dict[str, Tuple[str, Dict[str, Any]]]:
    """Return {way: (precision, its flags)} that ``config_class`` can run in here; bf16 is AMP on a GPU."""
    ways: Dict[str, Tuple[str, Dict[str, Any]]] = {"plain fp32": ("fp32", {"kernels": "plain"})}
    if device == "gpu":
        trains = "use_amp" in {each.name for each in fields(config_class)}
        half = {"use_amp": True, "amp_dtype": "bfloat16"} if trains else {"precision": "bf16"}
        free = {"plain fp32, not deterministic": ("fp32", {"kernels": "plain", "deterministic": False})}
        return {**ways, "mixed bf16": ("bf16", half), **(free if trains else {})}
    kernels = open_kernels()
    if kernels.library is not None:
        ways["fused fp32"] = ("fp32", {"kernels": "fused"})
    if kernels.has_bf16:
        ways["fused bf16"] = ("bf16", {"kernels": "fused", "precision": "bf16"})
    return ways


def our_lane(folder: Path, name: str, precision: str, task: Mapping[str, Any]) -> Lane:
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "side_by_side.our_lane", _written(folder, name, task)]
    return Lane(name, "ours", precision, command, {"PYTHONPATH": path})


def peer_lanes(
    bench: Bench,
    task: Mapping[str, Any],
    model: Path,
    spec: ModelSpec,
    batches: Sequence[Mapping[str, np.ndarray]] = (),
) -> List[Lane]:
    """Return a lane for each way of the peer, if there is one.

    ``model``: the folder of the model whose sizes it has. In bf16 it is not measured on a CPU that would only
    emulate that. ``batches``: what it trains on.
    """
    flags, folder = bench.flags, bench.folder
    if not flags.peer_python:
        return []
    config = {**USUAL, **read_json_object(model / CONFIG, "make it again")}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    sizes = {name: config[name] for name in SIZES}  # arguments of transformers' BertConfig
    task = {**task, "model": {**sizes, **dropout, "num_labels": 2}, "pad_id": spec.pad_id}
    if batches:
        task = {**task, "batches": str(folder / "batches.npz")}
        save_batches(folder / "batches.npz", batches)
    emulates = flags.device == "cpu" and not has_bf16(cpu_level())
    lanes = []
    for name, (precision, best) in PEER_WAYS.items():
        if not (emulates and precision == "bf16"):
            way = {"precision": precision, "best": best, "threads": flags.threads, "device": flags.device}
            words = ["-m", "side_by_side.peer.lane", _written(folder, name, {**task, **way})]
            lanes.append(Lane(name, "peer", precision, [flags.peer_python, *words], PATH_OF_PEER))
    return lanes


def _written(folder: Path, name: str, task: Mapping[str, Any]) -> str:
    path = folder / f"{name.replace(' ', '_')}.json"
    path.write_text(json.dumps(task), encoding="utf-8")
    return str(path)


def save_batches(path: Path, batches: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Write batches for the peer: the array ``key`` of batch i as key.i, but for what is None."""
    named = ((f"{key}.{i}", array) for i, batch in enumerate(batches) for key, array in batch.items())
    np.savez(path, **{name: array for name, array in named if array is not None})


def in_turn(lanes_of: Callable[[Bench], List[Lane]], is_large: bool = False) -> Callable[[Bench], List[Lane]]:
    """Return the measurement of lanes that take turns.

    is_large: all lanes need more memory than most machines have. On a CPU, unless --lanes names some, only
    the best lanes of each side are measured, those of float32 before those of bfloat16.
    """

    def measure(bench: Bench) -> List[Lane]:
        flags = bench.flags
        with silence():
            lanes = {lane.name: lane for lane in lanes_of(bench)}
        wanted = [name.strip() for name in flags.lanes.split(",") if name.strip()]
        for name in wanted:
            if name not in lanes:
                raise InputError(f"--lanes {name} is not a lane of this case; use some of {', '.join(lanes)}")
        chosen = [lane for name, lane in lanes.items() if name in (wanted or lanes)]
        groups = [chosen]
        if is_large and not wanted and flags.device == "cpu":
            others = {"peer defaults", "plain fp32" if "fused fp32" in lanes else ""}
            best = [lane for lane in chosen if lane.name not in others]
            groups = [
                [lane for lane in best if lane.precision == precision] for precision in ("fp32", "bf16")
            ]
        for group in filter(None, groups):  # no peer and no bfloat16: an empty one
            measure_lanes(group, flags.plan, flags.threads)
        return [lane for group in groups for lane in group]

    return measure


@contextmanager
def silence() -> Iterator[None]:
    """Silence what makes the data and the models: their warnings do not matter here."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


PAIRS, SAMPLES = "one batch of {batch_size} pairs", "one batch of {batch_size} samples"
MODEL = "{num_hidden_layers} x {hidden_size}"
TRAIN = f"train pairs {MODEL}, batch {{batch_size}}"
PRETRAIN = f"pretrain {MODEL}, batch {{batch_size}} x {{max_seq_len}}"
ASK, ASKED = f"ask {MODEL}, {{pairs}} pairs", "the prediction of {pairs} pairs"
BASE = {"num_hidden_layers": 12, "hidden_size": 768}
FULL = Shape(**BASE, batch_size=8, is_full=True)
CASES_OF_STEPS = {
    "pair-small": Case(TRAIN, PAIRS, Shape(), in_turn(pair_lanes)),
    "pair-base": Case(TRAIN, PAIRS, Shape(**BASE), in_turn(pair_lanes, is_large=True)),
    "pair-base-full": Case(f"{TRAIN} x {{max_seq_len}}", PAIRS, FULL, in_turn(pair_lanes, is_large=True)),
    "pretrain-base": Case(
        PRETRAIN, SAMPLES, Shape(**BASE, batch_size=8), in_turn(pretrain_lanes, is_large=True)
    ),
    "ask-small": Case(ASK, ASKED, Shape(), in_turn(ask_lanes)),
    "ask-base": Case(ASK, ASKED, Shape(**BASE), in_turn(ask_lanes)),
    "ask-mixed": Case(
        f"{ASK} of 8 to {{max_seq_len}} tokens",
        ASKED,
        Shape(batch_size=32, max_seq_len=400, pairs=256, is_mixed=True),
        in_turn(ask_lanes),
    ),
}
