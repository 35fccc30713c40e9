"""The cases that are measured side by side: their models, texts and batches, and the lanes of each."""

import io
import json
import logging
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from other_libraries.client import PATH_OF_PEER, SCRIPTS, last_line

from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.make_sample import SampleConfig, make_sample
from data_tools.text.wordpiece import WordPiece
from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.deployment.export_config import ExportConfig
from ernie_pair.deployment.export_pair import export_pair
from ernie_pair.inference.token_rows import (
    encode_single_texts,
    encode_texts,
    evaluation_batches,
    open_tokenizer,
)
from ernie_pair.kernels.library import open_kernels
from ernie_pair.models.commands import NewModelConfig, new_model
from ernie_pair.models.source import CONFIG, VOCAB, open_model
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pairs.data.pair_records import Columns
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.train.datasets import open_pair_data
from ernie_pair.pairs.train.trainer import PairTrainer
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import open_pretrain_data
from ernie_pair.runtime.cpu import cpu_level, has_bf16
from ernie_pair.runtime.gpu.cards import count_cards
from ernie_pair.runtime.processes.child_command import words_of
from ernie_pair.runtime.processes.world import World
from ernie_pair.training import step_work
from side_by_side.lanes import Lane, Turn, Work, measure_lanes

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
PRODUCTS = {"fp32": "float32", "bf16": "bfloat16"}
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
SIZES += ("max_position_embeddings", "hidden_act", "type_vocab_size")
USUAL = {"hidden_act": "gelu", "type_vocab_size": 2}
DEV_ROWS, DOCUMENTS = 8, 20_000
SPECIALS_OF_PAIR = 3  # [CLS] and two [SEP]
PEER_LENGTH = 128  # the peer's example scripts pad every pair to it
GRAD_CLIP, NO_LABEL_OF_PEER = 1.0, -100
PROCESSES, STEPS_PER_LINE, LINES = 2, 5, 4  # of whole runs; the first line is that of the warm-up
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
    """What a case is measured with: the flags of bench_side_by_side.py, its shape, a folder of its own."""

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
    ids = [batch.input_ids for batch in batches]
    longest = max(PEER_LENGTH, *(each.shape[1] for each in ids))
    best, padded = (plan.work_of([pair_work(spec, each, length) for each in ids]) for length in (0, longest))
    task = {"task": "train_pairs", "padded_to": longest, "grad_clip": 0}
    theirs = [batch._asdict() for batch in batches]
    lanes = our_lanes(bench, TrainConfig, "train_pairs", settings, best)
    return [*lanes, *peer_lanes(bench, task, best, padded, model, spec, theirs)]


def pair_work(spec: ModelSpec, ids: np.ndarray, padded_to: int = 0) -> Work:
    lengths = np.count_nonzero(ids != spec.pad_id, axis=1)
    flops = step_work.FORWARD_PASSES_OF_TRAINING * _forward_flops(spec, lengths, 2)
    return Work(len(ids), int(lengths.sum()), len(ids) * (padded_to or ids.shape[1]), flops)


def _forward_flops(spec: ModelSpec, lengths: np.ndarray, labels: int) -> int:
    """Return the operations of rows of ``lengths`` tokens: nobody needs those of padding."""
    size = step_work.EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
    alike = zip(*(counts.tolist() for counts in np.unique(lengths, return_counts=True)))
    encoder = sum(step_work.count_encoder(size, rows, length, rows_read=rows) for length, rows in alike)
    return encoder + step_work.count_classifier(size, len(lengths), labels)


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
    size, steps = step_work.EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size), []
    for ids, masked in ((each["input_ids"], len(each["masked_positions"])) for each in batches):
        forward = step_work.count_pretraining(size, *ids.shape, masked, spec.vocab_size)
        real, flops = (
            int(np.count_nonzero(ids != spec.pad_id)),
            step_work.FORWARD_PASSES_OF_TRAINING * forward,
        )
        steps.append(Work(len(ids), real, ids.size, flops))
    work = plan.work_of(steps)
    labels = ("masked_lm_labels", "next_sentence_labels")  # as torch marks those that are none
    theirs = [
        {**each, **{key: np.where(each[key] < 0, NO_LABEL_OF_PEER, each[key]) for key in labels}}
        for each in batches
    ]
    task = {"task": "pretrain", "grad_clip": GRAD_CLIP}
    lanes = our_lanes(bench, PretrainConfig, "pretrain", settings, work)
    return [*lanes, *peer_lanes(bench, task, work, work, model, spec, theirs)]


def ask_lanes(bench: Bench) -> List[Lane]:
    """Return the lanes that predict, from texts to logits, by random weights, exported ones too."""
    flags, shape, folder = bench
    rows = read_rows(flags.pair_file, shape.pairs)
    rows = mixed_rows(rows, shape.max_seq_len) if shape.is_mixed else rows
    texts = write_rows(folder / "pairs.tsv", rows, is_labelled=False)
    write_model(folder / "start", flags.vocab_file, "ernie_gram", shape)
    sizes = {"max_seq_len": shape.max_seq_len, "batch_size": shape.batch_size}
    model, ship, on_cpu = folder / "trained", str(folder / "ship"), flags.device == "cpu"
    start = PairConfig(str(folder / "trainer"), from_scratch=True, device=flags.device, **sizes)
    PairTrainer(str(folder / "start"), start).save_model(model)
    spec = open_model(str(model), model_type="").spec
    work = [rows_work(spec, rows, model / VOCAB, shape)] * flags.rounds
    places = {"model_path": str(model), "input_file": texts, "output_file": str(folder / "out.tsv")}
    settings = {**places, "batch_size": shape.batch_size, "device": flags.device}
    lanes = our_lanes(bench, PredictConfig, "ask_trained", settings, work)
    judged = {"quantize": "int8", "quantize_file": write_rows(folder / "train.tsv", rows), "format": "both"}
    no_limit = {"max_accuracy_drop": 1.0}  # random weights have no accuracy to lose
    export_pair(
        ExportConfig(model_path=str(model), output_dir=ship, **no_limit, **(judged if on_cpu else {}))
    )
    for name, (precision, way) in (EXPORTED if on_cpu else EXPORTED_ON_GPU).items():
        if precision != "bf16" or not on_cpu or open_kernels().has_bf16:
            task = {"folder": ship, "texts": texts, "settings": {**way, "threads": flags.threads}}
            lanes.append(our_lane(folder, name, precision, {"task": "ask_exported", **task}, work))
    task = {"task": "ask", "texts": texts, "vocab_file": str(model / VOCAB), **sizes}
    return [*lanes, *peer_lanes(bench, task, work, work, model, spec)]


def rows_work(spec: ModelSpec, rows: Sequence[Sequence[str]], vocab_file: Path, shape: Shape) -> Work:
    """Return the work of reading ``rows``, pairs or single texts, in batches of similar length."""
    single = len(rows[0]) == 1
    tokenizer = open_tokenizer(vocab_file, spec, shape.max_seq_len, of_pairs=not single)
    columns = list(map(list, zip(*rows)))
    if single:
        encoded = encode_single_texts(columns[0], tokenizer, shape.max_seq_len)
    else:
        encoded = encode_texts(*columns, None, tokenizer, shape.max_seq_len)
    batches = [encoded.lengths[picked] for picked in evaluation_batches(encoded.lengths, shape.batch_size)]
    padded = sum(len(lengths) * int(lengths.max()) for lengths in batches)
    flops = _forward_flops(spec, encoded.lengths, spec.num_labels)
    return Work(len(encoded), int(encoded.lengths.sum()), padded, flops)


def encode_lanes(bench: Bench) -> List[Lane]:
    flags, shape, folder = bench
    rows = read_rows(flags.pair_file, shape.pairs)
    texts = write_rows(folder / "pairs.tsv", rows, is_labelled=False)
    tokenizer = WordPiece.from_file(Path(flags.vocab_file))
    tokens = int(encode_texts(*map(list, zip(*rows)), None, tokenizer, shape.max_seq_len).lengths.sum())
    work = [Work(len(rows), tokens, tokens, 0)] * flags.rounds
    task = {"task": "encode", "texts": texts, "vocab_file": flags.vocab_file}
    task["max_seq_len"] = shape.max_seq_len
    return [our_lane(folder, "encode", "fp32", task, work), *peer_lanes(bench, task, work, work)]


def our_lanes(
    bench: Bench, config_class: type, task: str, settings: Mapping[str, Any], work: Sequence[Work]
) -> List[Lane]:
    lanes = []
    for name, (precision, way) in ways_of(config_class, bench.flags.device).items():
        output = {"output_dir": str(bench.folder / name.replace(" ", "_"))}
        flags = {**settings, **way, **(output if config_class is not PredictConfig else {})}
        lanes.append(our_lane(bench.folder, name, precision, {"task": task, "flags": flags}, work))
    return lanes


def ways_of(config_class: type, device: str) -> Dict[str, Tuple[str, Dict[str, Any]]]:
    """Return {way: (precision, its flags)} that ``config_class`` can run in here; bf16 is AMP on a GPU."""
    ways: Dict[str, Tuple[str, Dict[str, Any]]] = {"plain fp32": ("fp32", {"kernels": "plain"})}
    if device == "gpu":
        trains = "use_amp" in {each.name for each in fields(config_class)}
        half = {"use_amp": True, "amp_dtype": "bfloat16"} if trains else {"precision": "bf16"}
        return {**ways, "mixed bf16": ("bf16", half)}
    kernels = open_kernels()
    if kernels.library is not None:
        ways["fused fp32"] = ("fp32", {"kernels": "fused"})
    if kernels.has_bf16:
        ways["fused bf16"] = ("bf16", {"kernels": "fused", "precision": "bf16"})
    return ways


def our_lane(
    folder: Path, name: str, precision: str, task: Mapping[str, Any], work: Sequence[Work] = ()
) -> Lane:
    paths = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    command = [sys.executable, "-m", "side_by_side.our_lane", _written(folder, name, task)]
    output = task.get("flags", {}).get("output_dir")
    events = Path(output) / "metrics.jsonl" if output else None
    side = "product" if task["task"] == "product" else "ours"
    return Lane(name, side, precision, command, work, {"PYTHONPATH": os.pathsep.join(paths)}, events)


def peer_lanes(
    bench: Bench,
    task: Mapping[str, Any],
    work: Sequence[Work],
    of_defaults: Sequence[Work],
    model: Optional[Path] = None,
    spec: Optional[ModelSpec] = None,
    batches: Sequence[Mapping[str, np.ndarray]] = (),
) -> List[Lane]:
    """Return a lane for each way of the peer, if there is one; ``of_defaults``: the work with its defaults.

    ``model``: the folder of the model whose sizes it has; what needs none is only run in float32. In bf16 it
    is not measured on a CPU that would only emulate that. ``batches``: what it trains on.
    """
    flags, folder = bench.flags, bench.folder
    if not flags.peer_python:
        return []
    if model:
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
        if (model or name == "peer fp32") and not (emulates and precision == "bf16"):
            way = {"precision": precision, "best": best, "threads": flags.threads, "device": flags.device}
            words = ["-m", "side_by_side.peer.lane", _written(folder, name, {**task, **way})]
            its_work = work if best else of_defaults
            lanes.append(Lane(name, "peer", precision, [flags.peer_python, *words], its_work, PATH_OF_PEER))
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
    """Return the measurement of lanes that take turns, and of the rate of matrix products beside them.

    is_large: all lanes need more memory than most machines have. On a CPU, unless --lanes names some, only
    the best lanes of each side are measured, those of float32 before those of bfloat16.
    """

    def measure(bench: Bench) -> List[Lane]:
        flags, folder = bench.flags, bench.folder
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
            groups = [[lane for lane in best if lane.precision == precision] for precision in PRODUCTS]
        for group in filter(None, groups):  # no peer and no bfloat16: an empty one
            precisions = {lane.precision for lane in group if any(work.flops for work in lane.work)}
            for precision in sorted(precisions & PRODUCTS.keys()):
                task = {"task": "product", "dtype": PRODUCTS[precision], "device": flags.device}
                group.append(our_lane(folder, f"product {precision}", precision, task))
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


def measure_processes(bench: Bench) -> List[Lane]:
    """Measure whole runs in turn: processes of one thread, and one process of as many threads."""
    flags, shape, folder = bench
    steps = STEPS_PER_LINE * LINES
    with silence():
        write_model(folder / "model", flags.vocab_file, "ernie_gram", shape)
        write_pairs(folder, flags.pair_file, shape, steps)
    settings = pair_settings(folder, shape, flags.device, steps, STEPS_PER_LINE)
    sizes = {count: {"batch_size": shape.batch_size // count} for count in (1, PROCESSES)}
    names = {count: counted(count, "process", "processes") for count in sizes}
    ways = {names[count]: (count, PROCESSES // count, size) for count, size in sizes.items()}
    lanes = []
    for name, runs in runs_in_turn("train_pair.py", folder, settings, ways, flags.rounds).items():
        lanes.append(Lane(name, "ours", "fp32"))
        for events in runs:
            speed = median(event["samples_per_second"] for event in events)
            lanes[-1].turns.append(Turn(shape.batch_size / speed, None, events[-1]["memory_gb"], {}))
    return lanes


def runs_in_turn(
    script: str, folder: Path, settings: Mapping[str, Any], ways: Mapping[str, Tuple], rounds: int
) -> Dict[str, List[List[Dict[str, Any]]]]:
    """Return {way: the events of each of its runs}; ``ways``: {way: (processes, threads, its own flags)}."""
    runs = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (processes, threads, flags) in ways.items():
            run = {**settings, "output_dir": str(folder / way), **flags}
            runs[way].append(train_events(script, run, processes, threads))
    return runs


def medians_of(runs: Mapping[str, List[List[Dict[str, Any]]]], figure: str) -> Dict[str, float]:
    """Return {way: the median over its runs of the median of ``figure`` in each}."""
    each = {way: [median(event[figure] for event in events) for events in of] for way, of in runs.items()}
    return {way: median(values) for way, values in each.items()}


def train_events(
    script: str, flags: Dict[str, Any], processes: int = 0, threads: int = 0
) -> List[Dict[str, Any]]:
    """Run the program ``script`` and return its training lines without that of the warm-up.

    A launcher starts ``processes``, of ``threads`` each; 0: without a launcher. What an earlier run left in
    --output_dir is deleted. Raises InputError, with its last line of stderr, if the run fails.
    """
    output, launcher = Path(flags["output_dir"]), []
    shutil.rmtree(output, ignore_errors=True)
    if flags["device"] == "gpu" and processes > count_cards():
        raise InputError(f"{processes} processes need {processes} GPUs, and {count_cards()} are visible")
    if processes:
        cards = ["--gpus", ",".join(map(str, range(processes)))]
        where = cards if flags["device"] == "gpu" else ["--nproc_per_node", str(processes)]
        launcher = ["-m", "ernie_pair.launcher", "--log_dir", f"{output}_log", *where]
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPTS / script), *words_of(**flags)],
        env={**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        of = f" of {counted(processes, 'process', 'processes')}" if processes else ""
        raise InputError(f"a run{of} ended with code {done.returncode}: {last_line(done.stderr)}")
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["split"] == "train"][1:]


PAIRS, SAMPLES = "one batch of {batch_size} pairs", "one batch of {batch_size} samples"
MODEL = "{num_hidden_layers} x {hidden_size}"
TRAIN = f"train pairs {MODEL}, batch {{batch_size}}"
PRETRAIN = f"pretrain {MODEL}, batch {{batch_size}} x {{max_seq_len}}"
ASK, ASKED = f"ask {MODEL}, {{pairs}} pairs", "the prediction of {pairs} pairs"
ENCODED, WHOLE_RUNS = "the token ids of {pairs} pairs", "{batch_size} pairs, by the wall clock of whole runs"
BESIDE = f"{PROCESSES} processes of 1 thread, 1 process of {PROCESSES}: {TRAIN}"
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
    "encode": Case("encode {pairs} pairs", ENCODED, Shape(pairs=20_000), in_turn(encode_lanes)),
    "processes": Case(BESIDE, WHOLE_RUNS, Shape(), measure_processes),
}
