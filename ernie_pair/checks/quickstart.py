"""The whole recipe on the built-in sample, as a first run and, tiny, as a check of the installation.

Text -> ids -> pretraining -> conversion -> pairs -> predictions. Run it again: what is done has nothing to
do, what was cut short goes on, and what was made of other inputs or flags stops it with the difference.
"""

import json
import re
import shlex
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Literal, Optional

from data_tools.text.sample import SMALLEST_DATA_SET
from ernie_pair.checkpoint.run_folder import EVENTS
from ernie_pair.checks.recipe import NEEDS, RecipeCommands, Step, run_steps
from ernie_pair.core.cli.options import (
    Options,
    data_option,
    devices_option,
    optimisation_option,
    speed_option,
)
from ernie_pair.core.errors import CheckpointError, ErniePairError, message_of
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import write_json
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.child_command import Words, run_child, words_of
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.training.run_log import read_all_events

CHINESE = {"chinese": "true", "split_sentences": "true", "cn_whole_word_segment": "true"}
# fmt: off
# A model of two narrow layers: it learns on a CPU within minutes.
SMALL_MODEL = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512,
    "max_position_embeddings": 130,
}
PRETRAINING = {
    "model_type": "ernie", "from_scratch": "true", "split": "900,50,50",
    "max_seq_len": 48, "short_seq_prob": 0, "micro_batch_size": 16, "global_batch_size": 16,
    "warmup_rate": 0.1, "max_lr": 0.002, "min_lr": 0.0001, "adam_beta2": 0.98,
    "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
    "logging_freq": 100, "eval_freq": 400, "checkpoint_steps": 400, "save_steps": 1000000,
    "num_workers": 0,
}
TRAINING = {
    "model_type": "ernie", "max_seq_len": 48, "batch_size": 32, "learning_rate": 0.0005, "dropout": 0,
    "eval_freq": 10000, "logging_freq": 100, "checkpoint_steps": 200,
}
# fmt: on


@dataclass(frozen=True)
class SampleRecipe(RecipeCommands):
    """The recipe on ``documents`` and ``pairs`` of the built-in sample."""

    documents: int = 1000
    pairs: int = 18000
    steps: int = 2400
    epochs: int = 2
    seed: int = 1234

    def sample(self) -> Words:
        """Return the command that writes the text and the pairs."""
        flags = {"documents": self.documents, "pairs": self.pairs}
        return words_of("make-sample", output_dir=self.folder / "sample", **flags)

    def corpus(self) -> List[Words]:
        """Return the two commands that prepare the corpus: vocabulary, token ids."""
        text = self.folder / "sample" / "corpus.txt"
        prepare = self.prepare(text, "text", vocab_file=self.vocabulary, **CHINESE, workers=2)
        return [self.build_vocabulary(text), prepare]

    def small(self) -> Words:
        """Return the command that makes the small model, with which pretraining begins."""
        return self.new_model(**SMALL_MODEL)

    def pretrained(self) -> Words:
        """Return the command that pretrains it."""
        steps = {"max_steps": self.steps, "decay_steps": self.steps}
        flags = {**PRETRAINING, **steps, "seed": self.seed}
        return self.pretrain(self.folder / "small", self.folder / "corpus", **flags)

    def trained(self, start: str, output: str) -> Words:
        """Return the command that trains on the pairs, from ``start``: dynamic, or small with new weights."""
        scratch = {"from_scratch": "true"} if start == "small" else {}
        pairs = self.folder / "sample" / "pairs"
        files = {"train_file": pairs / "train.tsv", "dev_file": pairs / "dev.tsv"}
        flags = {**files, **TRAINING, **scratch, "epochs": self.epochs, "seed": self.seed}
        return self.train(self.folder / start, output, **flags)

    def evaluate(self, run: str) -> Words:
        """Return the command that measures the best model of ``run`` on the test pairs."""
        return self._ask("evaluate", run, self.folder / run / "test.json")

    def predict(self, run: str) -> Words:
        """Return the command that predicts the classes of the test pairs by the best model of ``run``."""
        return self._ask("predict", run, self.folder / "predictions.tsv")

    def _ask(self, command: str, run: str, output: Path) -> Words:
        models = sorted((self.folder / run).glob("best-accuracy-*"))
        if not models:
            raise CheckpointError(
                f"{self.folder / run} holds no best-accuracy-* model; remove the folder and start again"
            )
        paths = {"model_path": models[-1], "input_file": self.folder / "sample" / "pairs" / "test.tsv"}
        return words_of(command, **paths, output_file=output, device=self.device)


BASELINE = "shared characters"
STARTS = {"pair": "pretrained", "pair_scratch": "from scratch"}

Results = Dict[str, Any]


def collect_results(folder: Path) -> Results:
    """Return the figures of a finished quickstart: the losses and the metrics on the test pairs."""
    corpus, run = (
        json.loads((folder / path).read_text(encoding="utf-8"))
        for path in ("corpus/text.manifest.json", "pretrain/model_last/MANIFEST.json")
    )
    events = read_all_events(folder / "pretrain" / EVENTS)
    valid = [event["lm_loss"] for event in events if event["split"] == "valid"]
    return {
        "seed": run["fingerprint"]["seed"],
        "tokens": corpus["tokens"],
        "valid_lm_loss": [round(valid[place], 4) for place in (0, -1)],
        **{start: _collect_metrics(folder / name) for name, start in STARTS.items()},
        BASELINE: round(_measured(folder / "pair")["shared_characters"]["accuracy"], 4),
    }


def _measured(run: Path) -> Results:
    return json.loads((run / "test.json").read_text(encoding="utf-8"))


def _collect_metrics(run: Path) -> Results:
    """Return accuracy, its 95 % interval, and what changes when the two texts change places."""
    measured = _measured(run)
    return {
        "model": "/".join(next(run.glob("best-accuracy-*")).parts[-2:]),
        "accuracy": round(measured["accuracy"], 4),
        "interval": [round(end, 4) for end in measured["intervals"]["accuracy"]],
        "flip_rate": round(measured["swap"]["flip_rate"], 4),
        "accuracy_both_orders": round(measured["swap"]["accuracy_both_orders"], 4),
    }


def render_table(results: Results, folder: str) -> str:
    """Return the table that ends a quickstart: what was made, where below ``folder``, and its figures."""
    first, last = results["valid_lm_loss"]
    rows = [
        ("output", f"path in {folder}", "result"),
        ("sample text and pairs", "sample/", ""),
        ("corpus of token ids", "corpus/text_ids.npy", f"{results['tokens']} tokens"),
        ("static ERNIE", "pretrain/model_last", f"validation lm_loss {first:.3f} -> {last:.3f}"),
        ("dynamic ERNIE", "dynamic/", ""),
    ]
    for start in STARTS.values():
        measured = results[start]
        rows.append((f"classifier, {start}", measured["model"], f"test accuracy {measured['accuracy']:.3f}"))
    rows.append((f"no model: {BASELINE}", "", f"test accuracy {results[BASELINE]:.3f}"))
    rows.append(("predictions", "predictions.tsv", ""))
    width = max(len(where) for _, where, _ in rows) + 2
    return "\n".join(f"{made:<26}{where:<{width}}{result}".rstrip() for made, where, result in rows)


RESULTS = "quickstart.json"


@dataclass(frozen=True)
class QuickstartConfig(Options):
    """Run the whole pipeline on the built-in sample, in seven steps. Start it again to continue."""

    EXAMPLE = "--output_dir quickstart"
    NEEDS = NEEDS

    output_dir: str = data_option("output/quickstart", help="everything goes here", writes="FOLDER")
    documents: int = data_option(
        1000, help="documents in the sample to pretrain on", unit="documents", at_least=1
    )
    pairs: int = data_option(
        18000, help="pairs in the sample; fewer are faster", unit="pairs", at_least=SMALLEST_DATA_SET
    )
    max_steps: int = optimisation_option(2400, help="pretraining steps", unit="steps", at_least=1)
    epochs: int = optimisation_option(2, help="epochs of fine-tuning on the pairs", unit="epochs", at_least=1)
    seed: int = optimisation_option(1234, help="seed of weights, data order and masks", at_least=0)
    gpus: str = devices_option("0", help="GPUs for pretraining, on a machine with GPUs")
    device: Literal["cpu", "gpu"] = speed_option(default_device(), help="where to run")


def quickstart(config: QuickstartConfig) -> None:
    """Run the seven steps and print what they reached. Raises the error that a step ends with."""
    folder = Path(config.output_dir)
    sizes = {"documents": config.documents, "pairs": config.pairs}
    lengths = {"steps": config.max_steps, "epochs": config.epochs, "seed": config.seed}
    recipe = SampleRecipe(folder, config.device, config.gpus, **sizes, **lengths)
    for _ in run_steps("quickstart", config, _steps(recipe), 7, folder / "pair_scratch.log"):
        pass
    results = collect_results(folder)
    with published(folder / RESULTS) as (draft,):
        write_json(draft, results)
    print(f"\n{render_table(results, str(folder))}")
    runs = shlex.quote(str(folder))
    print(f"\nsee the runs: ernie-pair board {runs}, or ernie-pair plot {runs} --output_file runs.html")


def _steps(recipe: SampleRecipe) -> Iterator[Step]:
    """Yield the steps in their order: what an evaluation is asked follows from what was trained."""
    yield Step("write the built-in sample", [recipe.sample()])
    yield Step(
        "prepare the corpus: sentences, vocabulary, token ids; and a small model to start from",
        [*recipe.corpus(), recipe.small()],
    )
    yield Step("pretrain it in static graph", [recipe.pretrained()])
    yield Step("convert it to a dynamic model, with the proof that both agree", [recipe.convert()])
    title = "fine-tune on pairs: from the converted weights, and beside it from scratch (pair_scratch.log)"
    one, beside = recipe.trained("dynamic", "pair"), recipe.trained("small", "pair_scratch")
    yield Step(title, [one], beside, threads=max(1, cpu_threads() // 2))  # two trainings share the cores
    yield Step("evaluate both on the test split", [recipe.evaluate("pair")], recipe.evaluate("pair_scratch"))
    yield Step("predict", [recipe.predict("pair")])


TINY: Dict[str, Any] = {"documents": 60, "pairs": 90, "steps": 4, "epochs": 1, "seed": 1}
_LOG_PATH = re.compile(r" \([^()]*; see [^()]*\)$")  # which is gone when the check ends


@dataclass(frozen=True)
class CheckConfig(Options):
    """Check the installation: doctor, then text, corpus, pretraining, conversion, pairs and predictions."""

    EXAMPLE = "--device cpu"
    NEEDS = NEEDS

    device: Literal["cpu", "gpu"] = speed_option(default_device(), help="where to run")


def check(config: CheckConfig) -> None:
    """Print a line for each part: OK or its error. Raises the first of these errors at the end.

    What follows a part that failed needs it, and is not run; doctor's findings hold nothing up.
    """
    with tempfile.TemporaryDirectory(prefix="ernie-pair-check-") as folder, StopSignals():
        recipe = SampleRecipe(Path(folder), config.device, **TINY)
        doctor = ["doctor", f"--output_dir={folder}"]
        commands = [doctor, recipe.sample(), *recipe.corpus(), recipe.small(), recipe.pretrained()]
        commands += [recipe.convert(), recipe.trained("dynamic", "pair")]
        parts: Dict[str, Callable[[], Words]] = {
            words[words[0] == "launch"]: partial(list, words) for words in commands
        }
        parts["predict"] = lambda: recipe.predict("pair")  # which best model there is, training decides
        failed = None
        for number, (name, words) in enumerate(parts.items(), start=1):
            error = _check_part(name, words, Path(folder) / "log")
            failed = failed or error
            if error is not None and number > 1:
                _print_part("not run", ", ".join([*parts][number:]) or "nothing else")
                break
    if failed is not None:
        raise failed
    _print_part("PASSED", f"all {len(parts)} steps")


def _check_part(name: str, words: Callable[[], Words], log: Path) -> Optional[ErniePairError]:
    """Run a command, print its line, and return its error; the lines on defects are doctor's to show."""
    started, before = time.monotonic(), log.stat().st_size if log.is_file() else 0
    try:
        run_child(words(), name, log)
    except ErniePairError as error:
        message = _LOG_PATH.sub("", message_of(error))
        _print_part("FAILED", f"{name}: {message}")
        lines = log.read_bytes()[before:].decode("utf-8", errors="replace").splitlines()
        shown = [line for line in lines if line.startswith("DEFECT")]
        if "Traceback (most recent call last):" in lines:
            shown += lines[-3:]
        for line in shown:
            _print_part("", line)
        return type(error)(f"{name}: {message}")
    _print_part("OK", f"{name} ({time.monotonic() - started:.1f} s)")
    return None


def _print_part(verdict: str, what: str) -> None:
    print(f"{verdict:<8} {what}", flush=True)
