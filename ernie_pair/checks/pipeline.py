"""From text and labelled pairs to a model that serves: one run of commands that can each be run alone.

What is not given is decided from the data and the machine, and told before it is done. Run it again: what is
done has nothing to do, what was cut short goes on, and what was made of other inputs or flags stops it.
"""

import json
import os
import shlex
import sys
import time
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np

from ernie_pair.checkpoint.run_config import flags_of
from ernie_pair.checkpoint.run_folder import find_best
from ernie_pair.checks.faq import INDEX, SearchSteps
from ernie_pair.checks.pipeline_inputs import (
    MAX_POSITIONS,
    PREPARE,
    RECORD,
    REPORT,
    TRAIN,
    InputSummary,
    PipelineConfig,
    build_record,
    inspect_inputs,
)
from ernie_pair.checks.recipe import RecipeCommands, Step, choose_epochs, run_steps
from ernie_pair.checks.versions import (
    COMPARED,
    CURRENT,
    FLIPS,
    describe_change,
    describe_current,
    link_current,
    name_of,
    served_in,
    use,
    version_of,
    versions_in,
    write_flips,
)
from ernie_pair.core.errors import InputError, again_with, counted
from ernie_pair.core.files.atomic_folder import only_writer
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.core.files.results import paths_named, read_record
from ernie_pair.core.progress import say
from ernie_pair.models.labels import Labels, match_class
from ernie_pair.models.model_card import describe_worth, learned_nothing_in
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pretraining.config.pretrain_config import PRETRAINED
from ernie_pair.report.page import Origin, Table, render_page
from ernie_pair.report.plot_runs import group_of, open_runs
from ernie_pair.runtime.cpu import free_memory
from ernie_pair.runtime.processes.child_command import words_of

MAX_AUDITED = 200 << 20  # bytes of text
VECTORS = "vectors"  # the folder of what `reads_apart` begins with
GENERAL = "general.json"  # what `evaluate` says of the general pairs


class Size(NamedTuple):
    """A new model, for text of at least so many ``characters``, and the rates at which it learns."""

    characters: int
    hidden_size: int
    layers: int
    heads: int
    pretraining_rate: float
    training_rate: float


SIZES = (
    Size(0, 192, 4, 3, 1e-3, 3e-4),
    Size(8_000_000, 312, 4, 12, 5e-4, 2e-4),
    Size(60_000_000, 384, 6, 6, 4e-4, 1e-4),
    Size(600_000_000, 768, 12, 12, 1e-4, 5e-5),
)
EFFICIENCY = 0.7  # of the rate of products alone that a step of training reaches
MASKED = 0.15
BATCH, SAMPLES = 32, 64  # pairs of a step of training, samples of one of pretraining
STEPS = 400  # of training, the fewest
FEW_FOR_A_CLASSIFIER = 300  # rows: of fewer, texts are read apart, see docs/en/few-labels.md
FEW, FEW_RATE = 10_000, 1e-4  # fewer pairs than these are learnt at this rate after pretraining
PASSES, MIN_STEPS = 20, 200  # the most over the text, and the fewest in all


def pipeline(config: PipelineConfig) -> dict[str, Any]:
    """Turn texts and labelled pairs into a model that serves; print what was reached, and return it.

    {"model": the exported folder, "index": of an FAQ, "report": its page, "result": a line, "metrics": of
    `evaluate`, of an FAQ alone those of `evaluate search`}. The commands run in processes of their own; what
    they say is added to pipeline.log in ``output_dir``.

    Raises InputError with all that is wrong with the inputs before anything is written, and the error that a
    step ends with.
    """
    if config.use:
        return use(config)
    top, config = Path(config.output_dir), version_of(config)
    folder = Path(config.output_dir)
    inputs = inspect_inputs(config)
    plan = Plan(config, inputs)
    if plan.search and not config.fresh_start:
        plan.search.check_same()
    files = {"model": folder / "exported"} if config.train_file else {}
    files.update({"index": folder / INDEX} if config.faq_file else {}, report=folder / REPORT)
    seconds, steps = dict(inputs.seconds), plan.steps()
    measured: dict[str, Any] = {"flops": inputs.flops, "cores": inputs.cores, "seconds": seconds}
    rows: list[dict[str, Any]] = []
    is_done = not config.fresh_start and all(path.exists() for path in files.values())
    is_done = is_done and build_record(config, True, **measured).were_made()
    lines = [f"{folder} was made from the same inputs and flags: nothing to do"] if is_done else plan.lines()
    say("\n".join(lines), sys.stderr)
    if config.dry_run:
        return files
    if config.fresh_start:
        _set_aside(folder)
    if is_done:
        say("\n".join(line for line in plan.summary() if line.split()[0] in ("report", "serve", "result")))
        return {**files, "result": plan.verdict, "metrics": plan.metrics}

    def recorded() -> Iterator[Step]:
        for make in steps:
            step = make()
            seconds.setdefault(step.title, 0.0)
            build_record(config, bool(config.keep), **measured).keep()
            yield step

    log = folder / "pipeline.log"
    for step, took, decided in run_steps("pipeline", config, recorded(), len(steps), log, config.verbose):
        seconds[step.title] = took = max(took, seconds[step.title])  # of one that was done, what it took then
        commands = [shlex.join(["ernie-pair", *words]) for words in step.commands]
        rows.append({"title": step.title, "seconds": took, "decided": decided, "commands": commands})
    with build_record(config, True, **measured).published() as (draft,):
        draft.write_text(plan.page(rows), encoding="utf-8")
    if config.train_file and (plan.is_better or not (top / CURRENT).exists()):
        link_current(top, folder)
    *lines, result = plan.summary()
    say("\n" + "\n".join([*lines, *describe_current(top), result]))
    return {**files, "result": plan.verdict, "metrics": plan.metrics}


def _set_aside(folder: Path) -> None:
    """Rename the folder of an earlier pipeline, and say so."""
    if read_record(folder / RECORD).get("command") == "pipeline":
        aside = folder.with_name(f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        with only_writer(Path(os.path.realpath(folder))):
            folder.rename(aside)
        say(f"--fresh_start: the earlier pipeline is now in {aside}", sys.stderr)


class Plan:
    """What a pipeline does with its inputs: the plan in words, the steps, and what came of them."""

    def __init__(self, config: PipelineConfig, inputs: InputSummary):
        self.config, self.inputs, self.folder = config, inputs, Path(config.output_dir)
        self.recipe = RecipeCommands(self.folder, config.device, config.gpus)
        spec, labels = inputs.spec, inputs.labels
        wants = config.pretrain
        if wants == "auto":  # pretraining would forget what vectors are for
            wants = spec is None or bool(config.input_path) and not inputs.is_embedding
        family = "ernie" if spec is None else spec.family
        parts = [part for part in ("dev", "test") if not getattr(config, f"{part}_file")]
        self.parts, self.search = parts if config.train_file else [], None
        if inputs.faq is not None:
            exported = str(self.folder / "exported") if config.train_file else ""
            length = min(inputs.length, 64)
            self.search = SearchSteps(config, inputs.faq, self.recipe, exported, length)
        self.trains = bool(config.train_file) or (self.search is not None and self.search.is_trained)
        self.pretrains = bool(wants) and family in PRETRAINED and self.trains
        self.characters = inputs.characters_of_pairs + (inputs.text.characters if inputs.text else 0)
        self.size = self._choose_size()
        self.is_new = spec is None and self.trains
        if config.general_file and self.is_new and not self.pretrains:
            raise InputError(
                "--general_file: the new model knows nothing before its training, so this cannot cost it "
                "anything; leave it out, or --pretrain false"
            )
        self.start = str(self.folder / "small") if self.is_new else config.model_name_or_path
        # Tokens of a sample of pretraining.
        self.length = max(inputs.length, 64) if inputs.text else inputs.length
        words = [f"{number}={word}" for word, number in labels.classes.items() if word != str(number)]
        has_words = labels.has_classes and labels.names != Labels.numbered(len(labels.names)).names
        label_map = config.label_map or (",".join(words) if has_words else "")
        self.label_map = {"label_map": label_map} if label_map else {}
        given = {"json_key": config.json_key, "text_column": config.text_column, "sheet": config.sheet}
        self.of_text = {name: value for name, value in given.items() if value not in ("", "text")}

    def _choose_size(self) -> Size:
        """Return the largest new model for this much text that can read all of it twice within the time."""
        fitting = [size for size in SIZES if size.characters <= self.characters]
        for size in reversed(fitting):
            seconds = self._seconds(size.hidden_size, size.layers, 4 * size.hidden_size, 18_000)
            if 2 * self.characters * seconds <= 60 * self.config.minutes:
                return size
        return SIZES[0]

    def _seconds(self, hidden: int, layers: int, inner: int, vocabulary: int) -> float:
        """Return about what a token takes in a step of training, forward and backward."""
        weights = layers * (4 * hidden * hidden + 2 * hidden * inner) + MASKED * hidden * vocabulary
        return 6 * weights / (EFFICIENCY * self.inputs.flops)

    def _seconds_of_model(self) -> float:
        spec = self.inputs.spec
        if spec is not None:
            return self._seconds(spec.hidden_size, spec.num_layers, spec.intermediate_size, spec.vocab_size)
        path = self.folder / "small" / "config.json"
        vocabulary = read_json_object(path, "remove it")["vocab_size"] if path.is_file() else 8000
        width = self.size.hidden_size
        return self._seconds(width, self.size.layers, 4 * width, vocabulary)

    @property
    def rows(self) -> float:
        """Return about how many training pairs are left when dev and test pairs are split off."""
        return self.inputs.rows.get("train", 0) * (1 - len(self.parts) * self.config.dev_share)

    @property
    def epochs(self) -> int:
        """Return the passes over the training pairs."""
        return self.config.epochs or choose_epochs(self.rows, BATCH, STEPS)

    def _choose_rate(self, of_new_model: float) -> float:
        spec = self.inputs.spec
        return of_new_model if spec is None else 1e-4 if spec.hidden_size < 512 else 5e-5

    @property
    def reads_apart(self) -> bool:
        """Return whether vectors are trained first, and a match follows from their cosine."""
        has_match = self.inputs.labels.has_classes and len(self.inputs.labels.names) == 2
        return has_match and (self.rows < FEW_FOR_A_CLASSIFIER or self.inputs.is_embedding)

    def rate_on_pairs(self) -> float:
        """Return the rate of training on pairs, see docs/RESULTS.md."""
        rate = self.size.training_rate
        return self._choose_rate(min(FEW_RATE, rate) if self.pretrains and self.rows < FEW else rate)

    def count_steps(self, tokens: int) -> int:
        """Return the steps of pretraining on a corpus of so many tokens: within the time, or PASSES of it."""
        step = SAMPLES * self.length  # batches are padded to their longest sample
        within = 60 * self.config.minutes / (step * self._seconds_of_model())
        return int(float(f"{max(MIN_STEPS, min(within, PASSES * tokens / step)):.2g}"))

    def lines(self) -> list[str]:
        """Return lines on what is to be done, and about how long and how much memory it takes."""
        config, inputs, spec, text = self.config, self.inputs, self.inputs.spec, self.inputs.text
        pairs = f"{', '.join(f'{n:,} {split}' for split, n in inputs.rows.items())} ({inputs.balance})"
        if self.parts:
            parts = " and ".join(f"{config.dev_share:.0%} for {part}" for part in self.parts)
            pairs += f"; {parts}, split off by query"
        given = {"the training pairs": config.train_file, "the FAQ": config.faq_file}
        read = f"the texts of {' and of '.join(name for name, file in given.items() if file)}"
        if text is not None:
            documents = f"{'' if text.is_whole else 'about '}{text.documents:,} documents"
            about = f"{counted(text.files, 'file')}, {documents}, about {text.characters:,} characters"
            read = f"{about}; and {read}"
        name, width, layers, vocabulary = "new", self.size.hidden_size, self.size.layers, 8000
        if not self.is_new and spec is None:
            name = config.model_name_or_path
        elif spec is not None:
            name, width = config.model_name_or_path, spec.hidden_size
            layers, vocabulary = spec.num_layers, spec.vocab_size
        steps, second = self.count_steps(self.characters), self._seconds_of_model()
        of_pretraining = max(1, round(steps * SAMPLES * self.length * second / 60))
        rows = inputs.rows.get("train", 0)
        passes = self.epochs * (2 if self.reads_apart else 1)
        of_training = max(1, round(rows * passes * inputs.mean_length * second / 60))
        parameters = 12 * layers * width**2 + vocabulary * width
        memory = 0.8 + self.trains * (16 * parameters + 160 * SAMPLES * self.length * width * layers) / 1e9
        samples = f"about {steps:,} steps of {SAMPLES} samples of {self.length} tokens"
        if steps == MIN_STEPS and of_pretraining > config.minutes:
            samples += f", the fewest, which take more than --minutes {config.minutes:g}"
        model = f"{name}: {layers} layers of width {width}" if self.trains else f"{name}, as it is"
        reads_text = self.pretrains or self.is_new
        read = read if reads_text else f"--input_path {config.input_path} is not used"
        if self.search and self.search.why_no_encoder:
            model = f"{model if self.trains else 'none, BM25 alone'}; {self.search.why_no_encoder}"
        epochs = f"{counted(self.epochs, 'epoch')} on pairs of at most {inputs.length} tokens"
        epochs += ", of vectors first, then by their cosine" if self.reads_apart else ""
        lines = {
            **({"version": f"{self.folder}, after {config.keep}"} if config.keep else {}),
            **({"pairs": pairs} if config.train_file else {}),
            **({"faq": self.search.describe()} if self.search else {}),
            **({"text": read} if reads_text or text else {}),
            "model": model,
            "pretraining": f"{samples}: about {of_pretraining} min" if self.pretrains else "none",
            **({"training": f"{epochs}: about {of_training} min"} if config.train_file else {}),
            **({"general": f"{config.general_file}, before and after"} if config.general_file else {}),
            "memory": f"about {memory:.1f} GB; {free_memory() / 1e9:.1f} GB are free",
            "output": f"{self.folder}; stop it at any time, the same command continues",
        }
        if config.device == "gpu":
            lines["note"] = "times and sizes are those of the CPU; a GPU needs less: give more --minutes"
        return [f"{name:<13}{line}" for name, line in lines.items()]

    def steps(self) -> list[Callable[[], Step]]:
        """Return what makes each step: its commands follow from what those before it have made."""
        is_prepared, has_pairs = self.pretrains or self.is_new, bool(self.config.train_file)
        chosen = [self._audit] if has_pairs or self.inputs.text and self.trains else []
        chosen += [self._split] if self.parts else []
        chosen += [self.search.split] if self.search else []
        chosen += [self._prepare] if is_prepared else []
        chosen += [self._pretrain, self._convert] if self.pretrains else []
        chosen += [self._train, self._evaluate, self._export] if has_pairs else []
        chosen += [self._measure_general] if self.config.general_file else []
        chosen += [self._compare] if self.is_compared else []
        if self.search:
            rate, is_new = self._choose_rate(self.size.training_rate), self.is_new and not self.pretrains
            chosen += self.search.steps(self._pretrained, rate, is_new)
        return chosen

    def _pretrained(self) -> str:
        return str(self.folder / "dynamic") if self.pretrains else self.start

    def file(self, split: str) -> tuple[str, dict[str, object]]:
        """Return the file of train, dev or test, and the flags with which its rows are read."""
        if self.parts:
            return str(self.folder / "pairs" / f"{split}.jsonl"), {}
        return getattr(self.config, f"{split}_file"), self.config.row_flags

    def _audit(self) -> Step:
        config, text, commands, audit = self.config, self.inputs.text, [], self.folder / "audit"
        if config.train_file and not config.are_scores:
            given = {f"{split}_file": getattr(config, f"{split}_file") for split in self.inputs.rows}
            flags = {**given, **config.row_flags, **self.label_map}
            commands.append(words_of("audit", "pairs", **flags, output_dir=audit / "pairs"))
        left_out = ""
        if text is not None and text.size <= MAX_AUDITED:
            paths = paths_named(config.input_path)
            commands.append(words_of("audit", "text", *paths, output_dir=audit / "text", **self.of_text))
        elif text is not None:
            left_out = "; the text is large and was not audited"
        decided = f"what is odd stands in {audit}{left_out}"
        return Step("check the pairs and the text", commands, decided=lambda: decided)

    def _split(self) -> Step:
        config = self.config
        given = {f"{split}_file": getattr(config, f"{split}_file") for split in self.inputs.rows}
        shares = {f"{part}_share": config.dev_share for part in self.parts}
        flags = {**config.row_flags, **shares, **given, "seed": config.seed, **self.label_map}
        flags.update({"are_scores": "true"} if config.are_scores else {})
        flags.update({"keep": Path(config.keep) / "pairs"} if config.keep else {})
        words = words_of("prepare", "pairs", output_dir=self.folder / "pairs", **flags)
        decided = "rows that share a text are in one file, never in two"
        return Step("split the pairs", [words], decided=lambda: decided)

    def _prepare(self) -> Step:
        config, recipe = self.config, self.recipe
        commands, own = [], self._own_texts()
        if "pairs" in own:
            files = {f"{split}_file": self.file(split)[0] for split in ("train", "dev", "test")}
            rows = {name: flag for name, flag in self.file("train")[1].items() if name != "label"}
            commands.append(words_of("build", "text", **files, **rows, output_file=own["pairs"]))
        texts = [config.input_path] if config.input_path else []
        tokenizer: dict[str, object] = {"model_name": config.model_name_or_path}
        if self.is_new:
            all_texts = ",".join([*texts, *map(str, own.values())])
            commands.append(recipe.build_vocabulary(all_texts, **self.of_text))
            tokenizer = {"vocab_file": recipe.vocabulary}
        flags = {**tokenizer, **self.of_text, "workers": self.inputs.cores}
        if self.pretrains:
            commands += [recipe.prepare(text, "text", **flags) for text in texts]
            commands += [recipe.prepare(path, name, **flags, min_doc_length=0) for name, path in own.items()]
        if self.is_new:
            width, layers, heads = self.size.hidden_size, self.size.layers, self.size.heads
            shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
            shape.update(intermediate_size=4 * width, max_position_embeddings=MAX_POSITIONS)
            commands.append(recipe.new_model(**shape))

        def decided() -> str:
            if not self.pretrains:
                return "a new model that is not pretrained"
            each = self._corpora().items()
            return "; ".join(
                f"{n}: {one['documents']:,} documents, {one['tokens']:,} tokens" for n, one in each
            )

        return Step(PREPARE, commands, decided=decided)

    def _own_texts(self) -> dict[str, Path]:
        """Return the files of the texts of pairs and FAQ, made of these, by the names of their corpora."""
        of_pairs = {"pairs": self.folder / "text" / "pairs.txt"} if self.config.train_file else {}
        return {**of_pairs, **({"faq": self.search.text} if self.search else {})}

    def _corpora(self) -> dict[str, dict[str, Any]]:
        names = [*(["text"] if self.config.input_path else []), *self._own_texts()]
        paths = {name: self.folder / "corpus" / f"{name}.manifest.json" for name in names}
        return {name: read_json_object(path, "prepare it again") for name, path in paths.items()}

    def _pretrain(self) -> Step:
        config, corpora, is_new = self.config, self._corpora(), self.is_new
        fewest = min(one["documents"] for one in corpora.values())
        steps = self.count_steps(sum(one["tokens"] for one in corpora.values()))
        rate = self._choose_rate(self.size.pretraining_rate)
        folder = self.folder / "corpus"
        blend = " ".join(f"1 {shlex.quote(str(folder / name))}" for name in corpora)
        flags: dict[str, object] = {
            **({"from_scratch": "true"} if is_new else {}),
            "split": "95,5,0" if fewest >= 20 else f"{fewest - 1},1,0" if fewest > 2 else "1,0,0",
            "max_seq_len": self.length,
            "micro_batch_size": SAMPLES,
            **({} if config.device == "gpu" else {"global_batch_size": SAMPLES}),
            **({"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0} if is_new else {}),
            "max_steps": steps,
            "warmup_rate": 0.1,
            "max_lr": rate,
            "min_lr": rate / 20,
            "logging_freq": max(1, min(100, steps // 50)),
            "eval_freq": max(1, steps // 5),
            "checkpoint_steps": max(1, min(1000, steps // 5)),
            "save_steps": 10 * steps,
            "num_workers": int(self.inputs.cores > 2),
            "seed": config.seed,
        }
        words = self.recipe.pretrain(self.start, blend if len(corpora) > 1 else folder, **flags)
        halves = f", an equal share from each of {' and '.join(corpora)}" if len(corpora) > 1 else ""
        decided = f"{steps:,} steps of {SAMPLES} samples of {self.length} tokens, rate {rate:g}{halves}"
        return Step("pretrain in static graph", [words], decided=lambda: decided)

    def _convert(self) -> Step:
        decided = "the dynamic model gives what the static one gives, to the last digits"
        return Step("convert to a dynamic model", [self.recipe.convert()], decided=lambda: decided)

    def _train(self) -> Step:
        config, rate, start = self.config, self.rate_on_pairs(), self._pretrained()
        (train, row_flags), (dev, _), commands = self.file("train"), self.file("dev"), []
        flags: dict[str, object] = {
            "train_file": train,
            "dev_file": dev,
            **row_flags,
            **self.label_map,
            **({"from_scratch": "true"} if self.is_new and not self.pretrains else {}),
            **({"target": "regression"} if config.are_scores else {}),
            "max_seq_len": self.inputs.length,
            "batch_size": BATCH,
            "learning_rate": rate,
            "epochs": self.epochs,
            "seed": config.seed,
        }
        rates, more = f"{rate:g}", {"pooling": "cosine"} if self.reads_apart else {}
        if self.reads_apart and self._have_other_texts():
            # Few dev pairs say little of vectors: the last ones are taken. They may even have no match.
            searched = dev if match_class(self.inputs.labels) in self._read("dev").known_labels else train
            vectors = {**flags, "dev_file": searched}
            commands.append(self.recipe.train_embedding(start, VECTORS, **vectors))
            flags.pop("from_scratch", None)
            flags["learning_rate"], start = rate / 10, str(self.folder / VECTORS / "model_last")
            rates += f" for vectors, and {rate / 10:g} for what their cosine says of a match"
        commands.append(self.recipe.train(start, "pair", **flags, **more, evaluation_strategy="epoch"))
        decided = f"{counted(self.epochs, 'epoch')} of batches of {BATCH}, rate {rates}"
        return Step(TRAIN, commands, decided=lambda: decided)

    def _have_other_texts(self) -> bool:
        """Return whether the matches do not all share a text: otherwise none has others beside it."""
        pairs = self._read("train")
        matches = np.flatnonzero(pairs.known_labels == match_class(self.inputs.labels)).tolist()
        return all(len({side[row] for row in matches}) > 1 for side in (pairs.left, pairs.right))

    def _evaluate(self) -> Step:
        """Choose temperature and threshold on the dev pairs, save both, and measure with them."""
        (test, row_flags), (dev, _), folder = self.file("test"), self.file("dev"), self.folder
        made = {"output_file": folder / "evaluation.json", "report": folder / "evaluation"}
        fitted: dict[str, object] = {}
        labels = self.inputs.labels
        if has_choice := labels.has_classes and len(np.unique(self._read("dev").known_labels)) > 1:
            fitted.update(calibrate_on=dev, save_temperature="auto")
            if len(labels.names) == 2:
                fitted.update(save_threshold="true", tune_for="accuracy")
        flags = {**row_flags, **made, **fitted, "device": self.config.device}
        words = words_of("evaluate", model_path=folder / "pair", input_file=test, **flags)
        note = f"all pairs of {dev} have one label: no threshold could be chosen by them; "
        note = "" if has_choice or not labels.has_classes else note
        return Step("evaluate", [words], decided=lambda: note + self._verdict_of_pairs)

    def _read(self, split: str) -> Pairs:
        file, row_flags = self.file(split)
        columns = Columns(*(str(row_flags.get(name, "")) for name in ("text_a", "text_b", "label")))
        rules = RowRules() if self.parts else RowRules.of(self.config)
        return PairSource(f"{split}_file", file, split, self.inputs.labels, columns, rules).read()

    def _compare(self) -> Step:
        """Compare the model with the one of the version before, on the test pairs of this one."""
        (test, row_flags), before = self.file("test"), self.rival
        name = name_of(before) if self.is_version else before.name
        names = {name: before, self.folder.name: self.folder}
        models = " ".join(f"{name}={shlex.quote(str(one / 'pair'))}" for name, one in names.items())
        flags = {**row_flags, "input_file": test, "output_dir": self.folder / COMPARED, "int8": "none"}
        words = words_of("compare", "models", models=models, **flags)

        def decided() -> str:
            flips = write_flips(before, self.folder, self._read("test"), self.inputs.labels.names)
            return f"{self.change[0]}; {counted(flips, 'test pair')} decided otherwise: {COMPARED}/{FLIPS}"

        return Step("compare with the version before", [words], decided=decided)

    @property
    def is_version(self) -> bool:
        """Return whether its folder is beside that of a pipeline, which it is a version of."""
        return bool(self.config.keep) and Path(self.config.keep) in versions_in(self.folder.parent).values()

    @cached_property
    def rival(self) -> Path:
        """Return the version that is served, or else the one before."""
        served = served_in(self.folder.parent) if self.is_version else None
        return served if served and served != self.folder else Path(self.config.keep)

    @cached_property
    def change(self) -> tuple[str, bool]:
        """Return in words how the model does beside that of the version before, and whether it is better."""
        path = self.folder / COMPARED / "models.json"
        return describe_change(read_json_object(path, "run the same command again"))

    @property
    def is_compared(self) -> bool:
        """Return whether there is a version before, of classes as well."""
        return bool(self.config.keep and self.config.train_file and self.inputs.labels.has_classes)

    @property
    def is_better(self) -> bool:
        """Return whether the model is better than that of the version before."""
        return self.is_compared and self.change[1]

    def _measure_general(self) -> Step:
        """Measure what the model that was given, or the new one once it is pretrained, has lost."""
        start = self.config.model_name_or_path or self._pretrained()
        flags = {"output_file": self.folder / GENERAL, "swap": "false", "device": self.config.device}
        flags.update(self.config.row_flags, input_file=self.config.general_file, model_name_or_path=start)
        words = words_of("evaluate", model_path=self.folder / "pair", **flags)
        return Step("measure the general pairs", [words], decided=lambda: self.cost["line"])

    def _export(self) -> Step:
        words = words_of("export", model_path=self.folder / "pair", output_dir=self.folder / "exported")
        return Step("export", [words], decided=lambda: "the exported model answers as the trained one")

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the measures of the classifier, of an FAQ alone those of its search."""
        if not self.config.train_file:
            return self.search.measured if self.search else {}
        return {**self.evaluation, **({"general": self.cost} if self.config.general_file else {})}

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """Return what was measured."""
        return read_json_object(self.folder / "evaluation.json", "run the same command again")

    @cached_property
    def cost(self) -> dict[str, Any]:
        """Return what training has cost on the general pairs."""
        return read_json_object(self.folder / GENERAL, "run the same command again")["start"]

    @property
    def verdict(self) -> str:
        """Return what was reached, beside what needs no model, and what next."""
        of_pairs = [self._verdict_of_pairs] if self.config.train_file else []
        of_pairs += [f"general pairs: {self.cost['line']}"] if self.config.general_file else []
        of_pairs += [self.change[0]] if self.is_compared else []
        return "; ".join([*of_pairs, *([self.search.verdict] if self.search else [])])

    @cached_property
    def _verdict_of_pairs(self) -> str:
        best = find_best(self.folder / "pair")
        worth, is_better = describe_worth(self.evaluation, learned_nothing_in(best) if best else "")
        exported = shlex.quote(str(self.folder / "exported"))
        after = f"serve it: ernie-pair serve --model_path {exported}"
        if not is_better:
            longer = "minutes" if self.pretrains else "epochs"
            before = self.config.minutes if self.pretrains else self.epochs
            top = self.folder.parent if self.is_version else self.folder
            flags = {longer: f"{4 * before:g}", "output_dir": f"{top}.2"}
            flags.update({"keep": self.config.keep} if self.config.keep else {})
            after = f"label more, or learn longer: {again_with({}, **flags)}"
        return f"{worth}; {after}"

    def summary(self) -> list[str]:
        """Return the last lines: what was made, what it is worth and how it is served."""
        exported = shlex.quote(str(self.folder / "exported"))
        example = json.dumps({"pairs": [self.inputs.example]}, ensure_ascii=False)
        lines = {"model": exported} if self.config.train_file else {}
        serve, path = f"ernie-pair serve --model_path {exported}", "predict"
        lines["report"] = str(self.folder / REPORT)
        if self.search:
            lines["index"], serve = str(self.folder / INDEX), shlex.join(self.search.serve_words)
            example = json.dumps({"query": self.search.faq.entries[0].question}, ensure_ascii=False)
            path = "search"
        lines["serve"] = serve
        lines["ask"] = f"curl -s localhost:8000/{path} -d {shlex.quote(example)}"
        return [f"{name:<10}{line}" for name, line in {**lines, "result": self.verdict}.items()]

    def page(self, steps: list[dict[str, Any]]) -> str:
        """Return the page of the whole run: its ``steps``, what was measured, and all curves."""
        names = {"Pretraining": "pretrain", "Vectors": VECTORS, "Fine-tuning": "pair", "Encoder": "encoder"}
        folders = {title: self.folder / name for title, name in names.items()}
        runs = {title: open_runs([str(folder)]) for title, folder in folders.items() if folder.is_dir()}
        seconds = sum(step["seconds"] for step in steps)
        of_search = ["search by", "right answer first", "among the first ten", "mrr", "ms", ""]
        return render_page(
            Path(__file__).with_name("pipeline.html"),
            title=f"From {'text and pairs' if self.config.train_file else 'questions'} to {self.folder.name}",
            plan=self,
            search=Table("Search", of_search, self.search.table(), "") if self.search else None,
            steps=[{**step, "time": timedelta(seconds=round(step["seconds"]))} for step in steps],
            time=timedelta(seconds=round(seconds)),
            groups=[group_of(found, [], title) for title, found in runs.items()],
            made=Origin({n: value for n, value in flags_of(self.config).items() if value not in ("", None)}),
        )
