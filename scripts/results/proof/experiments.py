"""The runs of experiments.yaml, at the sizes of the flags of run.py: their commands and their figures."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import yaml

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from proof import figures
from proof.runner import PEER_PYTHON, Run, Words

TABLE = yaml.safe_load(Path(__file__).with_name("experiments.yaml").read_text(encoding="utf-8"))
TITLES: Dict[str, str] = {group: found["title"] for group, found in TABLE["groups"].items()}
FIRST_SEED = 1234
CORPUS, WEIGHTS, DOMAINS = "$WORK/corpus", "$WORK/weights", "$WORK/domains"
PRETRAINED, BEST_START = f"{WEIGHTS}/pretrained", f"{WEIGHTS}/continued_lcqmc"
PUBLISHED = "$WORK/published/minilm"  # both sides read it as it was published
FETCH = ("scripts/other_libraries/fetch_minilm.py", PUBLISHED)
MRPC = {f"{part}_file": f"$DATA/pairs/mrpc/{part}.tsv" for part in ("train", "dev", "test")}
OURS, THEIRS, PLAIN = "ours", "transformers", "plain"
METRICS = "$RUN/out/metrics.jsonl"
Flags = Dict[str, Any]


@dataclass(frozen=True)
class Scale(Options):
    """The shape of the model, the lengths of the trainings and the sizes of the data.

    The defaults take two cores of AVX2 about half a day for all groups.
    """

    layers: int = option(4, help="encoder layers", group="model", unit="layers", at_least=1)
    hidden: int = option(192, help="width of the hidden states", group="model", at_least=1)
    heads: int = option(3, help="heads of each layer", group="model", at_least=1)
    length: int = option(64, help="tokens per sample and per pair", group="data", unit="tokens", at_least=8)
    batch: int = option(128, help="samples per step of pretraining", group="optimisation", at_least=1)
    steps: int = option(2000, help="pretraining steps", group="optimisation", unit="steps", at_least=2)
    ablation_steps: int = option(300, help="steps of a row of the ablation", group="optimisation", at_least=1)
    further_steps: int = option(300, help="steps on one domain", group="optimisation", at_least=1)
    task_steps: int = option(
        1000,
        help="steps of continued pretraining on the texts of pairs, at half the length and twice the batch",
        group="optimisation",
        at_least=1,
    )
    rate: float = option(1e-3, help="highest learning rate of pretraining", group="optimisation", above=0)
    processes: int = option(2, help="processes of pretraining", group="devices", at_least=1)
    precision: str = option(
        "fp32", help="precision of pretraining", group="precision", choices=("bf16", "fp32")
    )
    samples: int = option(4000, help="held-out samples with masked words", group="evaluation", at_least=1)
    domain: str = option(
        "laws", help="the domain to continue on: the name of a file in DATA/text, without .txt", group="data"
    )
    other: str = option("stories", help="another domain, to measure what a model has forgotten", group="data")
    small_rows: int = option(5000, help="training pairs of the small cut of LCQMC", group="data", at_least=1)
    large_rows: int = option(20000, help="training pairs of the large cut of LCQMC", group="data", at_least=1)
    choose: int = option(
        2000, help="held-out training pairs that select the best checkpoint", group="data", at_least=2
    )
    rest: int = option(
        40000, help="pairs whose labels are not used, for distillation", group="data", at_least=1
    )
    epochs: int = option(3, help="epochs of training on pairs", group="optimisation", at_least=1)
    learning_rate: float = option(3e-4, help="highest rate on pairs", group="optimisation", above=0)
    trials: int = option(8, help="trials of each search of flags", group="optimisation", at_least=1)
    seeds: int = option(3, help="runs of each row of pairs", group="optimisation", unit="runs", at_least=1)
    bootstrap: int = option(1000, help="bootstrap resamples of each interval", group="evaluation", at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.batch % (2 * self.processes):
            raise InputError(
                f"--batch {self.batch} is not a multiple of twice --processes {self.processes}, and some "
                "rows have half the batch; change one of them"
            )


def words_of(program: str, *words: str, **flags: object) -> Words:
    """Return the words of a script, or of a command of ernie-pair; a flag whose value is None is left out."""
    first = (program,) if program.startswith("scripts/") else ("ernie-pair", program)
    named = {name: value for name, value in flags.items() if value is not None}
    return (*first, *words, *(f"--{name}={_shown(value)}" for name, value in named.items()))


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def runs_of(group: str, scale: Scale) -> List[Run]:
    """Return the runs of a group of TITLES, in the order of the page."""
    return Experiments(group, scale).runs()


class Experiments:
    """The runs of a ``group``; a method for each kind takes the name of a run and its row of the table."""

    def __init__(self, group: str, scale: Scale):
        self.group, self.scale = group, scale
        self.seeds = tuple(range(FIRST_SEED, FIRST_SEED + scale.seeds))
        half = scale.batch // 2
        plain_steps = -(-scale.large_rows * scale.epochs // TABLE["flags"]["training"]["batch_size"])
        self.sizes = {
            **asdict(scale),
            "micro_batch": scale.batch // scale.processes,
            "half_batch": half,
            "half_micro": half // scale.processes,
            "double_length": 2 * scale.length,
            "join_tokens": 4 * scale.length,
            "four_hidden": 4 * scale.hidden,
            "half_rate": scale.rate / 2,
            "double_rate": scale.rate * 2,
            "half_steps": scale.steps // 2,
            "double_ablation": 2 * scale.ablation_steps,
            "quarter_rate": scale.learning_rate / 4,
            "four_rate": scale.learning_rate * 4,
            "two_epochs": 2 * scale.epochs,
            "four_epochs": 4 * scale.epochs,
            "plain_steps": plain_steps,  # of the training of `plain`, for those with a larger file
            "plain_evaluations": -(-plain_steps // scale.epochs),
        }
        self.sizes["lcqmc"] = self.cut_of("lcqmc")

    def runs(self) -> List[Run]:
        """Return the runs in the order of the table."""
        found = TABLE["groups"][self.group]
        kind = found.get("kind", "pretraining")
        return [
            getattr(self, row.get("kind", kind))(name, {**row, "title": self.fill(row["title"])})
            for name, row in found["runs"].items()
        ]

    def fill(self, value: Any, **more: object) -> Any:
        """Return ``value`` of the table with sizes in place of their names; a name alone stays a number."""
        if isinstance(value, dict):
            return {key: self.fill(each, **more) for key, each in value.items()}
        if not isinstance(value, str):
            return value
        sizes = {**self.sizes, **more}
        alone = value[1:-1] if value.startswith("{") else ""
        return sizes[alone] if alone in sizes else value.format_map(sizes)

    def flags(self, name: str, **more: object) -> Flags:
        """Return the flags that the table calls ``name``."""
        return self.fill(TABLE["flags"][name], **more)

    # Pretraining.

    def pretraining_flags(self, steps: int) -> Flags:
        tenth, hundredth, half = (max(1, steps // part) for part in (10, 100, 2))
        parts = {"tenth": tenth, "hundredth": hundredth, "half_of_steps": half}
        return self.flags("pretraining", run_steps=steps, **parts)

    def create_corpus(self, documents: str, folder: str, flags: Mapping[str, object] = {}) -> Words:
        places = {"input_path": documents, "output_prefix": f"{folder}/text"}
        return words_of("create-corpus", **places, **self.flags("corpus"), **flags)

    def corpus(self, text: str, folder: str, flags: Mapping[str, object] = {}) -> Tuple[Words, Words]:
        """Return the commands from ``text``, a file or folder, to a corpus in ``folder``."""
        documents = f"{folder}/documents"
        convert = words_of("text-to-json", input_path=text, output_path=documents)
        return convert, self.create_corpus(f"{documents}.jsonl", folder, flags)

    def evaluated(
        self, model: str, own: Mapping[str, str], held_out: Sequence[str] = (), folder: str = "$RUN"
    ) -> Tuple[List[Words], List[str]]:
        """Return the commands that ask ``model`` for masked words, and the names of what they write.

        Samples have two segments, and of the first corpus one as well: the model may have learnt from either.
        ``own``: corpora beside the general one, whose test parts are asked about. ``held_out``: domains that
        are asked about as a whole.
        """
        corpora = {**own, "corpus": CORPUS, **{name: f"{DOMAINS}/{name}/held_out" for name in held_out}}
        alone = f"{next(iter(corpora))}_one_segment"
        commands = []
        for name in (*corpora, alone):
            commands.append(
                words_of(
                    "evaluate-mlm",
                    model_path=model,
                    input_dir=corpora.get(name) or next(iter(corpora.values())),
                    output_file=f"{folder}/{name}.json",
                    split=None if name in held_out else TABLE["flags"]["pretraining"]["split"],
                    part="all" if name in held_out else "test",
                    num_samples=self.scale.samples,
                    max_seq_len=self.scale.length,
                    binary_head=name != alone,
                    bootstrap=self.scale.bootstrap,
                )
            )
        return commands, [*corpora, alone]

    def pretraining(self, name: str, row: Flags, steps: int = 0, after: Sequence[Words] = ()) -> Run:
        """Return a pretraining from random weights, and its evaluation; `corpus`: makes its own corpus."""
        scale = self.scale
        flags = {**self.pretraining_flags(steps or scale.ablation_steps), **self.fill(row.get("flags", {}))}
        family = flags.get("model_type", "ernie")
        new = f"$WORK/new/{family}-{scale.layers}x{scale.hidden}x{scale.heads}"
        of_model = {"output_dir": new, "model_type": family, **self.flags("new_model")}
        start = {"model_name_or_path": new, "from_scratch": True}
        own = (
            self.corpus("$DATA/text", flags["input_dir"], self.fill(row["corpus"])) if "corpus" in row else ()
        )
        ask, measured = self.evaluated("$RUN/out", {})
        commands = (
            *self.corpus("$DATA/text", CORPUS),
            *own,
            words_of("new-model", vocab_file=self.flags("corpus")["vocab_file"], **of_model),
            words_of("launch", "pretrain", **start, **flags),
            *ask,
            *after,
        )
        read = partial(figures.mlm_figures, metrics=METRICS, measured=measured)
        links = self.fill(row.get("links", {}))
        return Run(name, row["title"], commands, read, curve=METRICS, links=links)

    def long_pretraining(self, name: str, row: Flags) -> Run:
        """Return a long pretraining, converted into the weights that others start from."""
        return self.pretraining(name, row, self.scale.steps, [self.converted()])

    def converted(self) -> Words:
        places = {"static_model_path": "$RUN/out/model_last/static_vars", "output_dir": "$RUN/weights"}
        return words_of("convert", **places)

    def continued(self, name: str, row: Flags) -> Run:
        """Return a pretraining that continues with the texts of the training pairs, each pair a document."""
        folder, scale = f"{self.cut_of(name)}/corpus", self.scale
        flags = {
            **self.pretraining_flags(scale.task_steps),
            "micro_batch_size": 2 * scale.batch // scale.processes,
            "global_batch_size": 2 * scale.batch,
            "input_dir": folder,
            "model_name_or_path": PRETRAINED,
            "max_seq_len": scale.length // 2,
        }
        before, measured = self.evaluated(PRETRAINED, {"own": folder}, folder="$RUN/before")
        commands = (
            self.cut(name),
            *self.corpus("$DATA/text", CORPUS),
            *self.corpus(f"{self.cut_of(name)}/text.txt", folder),
            *before,
            words_of("launch", "pretrain", **flags),
            *self.evaluated("$RUN/out", {"own": folder})[0],
            self.converted(),
        )
        read = partial(figures.mlm_figures, metrics=METRICS, measured=measured, before="$RUN/before")
        links = {f"{WEIGHTS}/continued_{name}": "$RUN/weights"}
        title = row["title"]
        return Run(name, title, commands, read, needs=(PRETRAINED,), curve=METRICS, links=links)

    def domains(self) -> List[Words]:
        """Return the commands for the general corpus, whose split decides which documents are held out."""
        names, commands = (self.scale.domain, self.scale.other), [*self.corpus("$DATA/text", CORPUS)]
        for name in names:
            folder = f"{DOMAINS}/{name}"
            text = {"input_path": f"$DATA/text/{name}.txt", "output_path": f"{folder}/documents"}
            cut = {"corpus_dir": CORPUS, "input_file": f"{folder}/documents.jsonl", "output_dir": folder}
            split = TABLE["flags"]["pretraining"]["split"]
            commands.append(words_of("text-to-json", **text))
            commands.append(words_of("scripts/results/cut_documents.py", **cut, split=split))
        parts = [f"{DOMAINS}/{names[0]}/train", *(f"{DOMAINS}/{name}/held_out" for name in names)]
        return [*commands, *(self.create_corpus(f"{part}.jsonl", part) for part in parts)]

    def before(self, name: str, row: Flags) -> Run:
        """Return the measurement of the pretrained weights."""
        ask, measured = self.evaluated(PRETRAINED, {}, (self.scale.domain, self.scale.other))
        read = partial(figures.mlm_figures, measured=measured)
        return Run(name, row["title"], (*self.domains(), *ask), read, needs=(PRETRAINED,))

    def going_on(self, name: str, row: Flags) -> Run:
        """Return a pretraining that starts from the pretrained weights, at half the rate."""
        flags = {
            **self.pretraining_flags(self.scale.further_steps),
            "input_dir": self.fill(row["input_dir"]),
            "model_name_or_path": PRETRAINED,
            "max_lr": self.scale.rate / 2,
        }
        ask, measured = self.evaluated("$RUN/out", {}, (self.scale.domain, self.scale.other))
        commands = (*self.domains(), words_of("launch", "pretrain", **flags), *ask)
        read = partial(figures.mlm_figures, metrics=METRICS, measured=measured)
        return Run(name, row["title"], commands, read, needs=(PRETRAINED,), curve=METRICS)

    # Training on pairs.

    def cut_of(self, data_set: str) -> str:
        """Return the folder of a data set that is cut, at these sizes, into parts without a common pair."""
        sizes = self.fill(TABLE["data_sets"][data_set]["sizes"]).split()
        ending = "-".join([*sizes, f"choose{self.scale.choose}", f"rest{self.scale.rest}"])
        return f"$WORK/pairs/{data_set}-{ending}"

    def cut(self, data_set: str) -> Words:
        """Return the command that cuts a data set; done once, it has nothing to do."""
        row, folder = TABLE["data_sets"][data_set], f"$DATA/pairs/{data_set}"
        return words_of(
            "scripts/results/cut_pairs.py",
            train_file=f"{folder}/{row['train']}",
            test_file=f"{folder}/{row['test']}",
            output_dir=self.cut_of(data_set),
            rows=self.fill(row["sizes"]),
            choose=self.scale.choose,
            rest=self.scale.rest,
        )

    def test_of(self, data_set: str) -> str:
        """Return the test file: what the data set calls dev, because its test has no labels."""
        return f"$DATA/pairs/{data_set}/{TABLE['data_sets'][data_set]['test']}"

    def training_flags(self, data_set: str = "lcqmc", rows: object = None) -> Flags:
        """Return the flags of a training on the part ``rows`` of a data set, a number or all."""
        metric, folder = TABLE["data_sets"][data_set]["metric"], self.cut_of(data_set)
        files = {
            "train_file": f"{folder}/train_{rows or self.scale.large_rows}.jsonl",
            "dev_file": f"{folder}/choose.jsonl",
        }
        return {
            **files,
            **({} if metric == "accuracy" else {"best_metric": metric}),
            **self.flags("training"),
        }

    def trained(self, name: str, seed: int) -> str:
        """Return the output_dir of a training."""
        return f"$WORK/{self.group}/{name}/seed-{seed}"

    def predictions(self, name: str, seed: int) -> str:
        """Return the file of the probabilities that the model of a seed gives the test pairs."""
        return f"$WORK/{self.group}/{name}/predictions-{seed}.tsv"

    def compared(self, names: Sequence[str], test: str = "") -> Flags:
        """Return the arguments of `classifier_figures` for the runs ``names``."""
        files = {name: [self.predictions(name, seed) for seed in self.seeds] for name in dict.fromkeys(names)}
        return {
            "predictions": files,
            "test": test or self.test_of("lcqmc"),
            "bootstrap": self.scale.bootstrap,
        }

    def ask(self, model: str, output: str, test: str = "", **flags: object) -> Words:
        """Return the command that writes the probabilities of the test pairs."""
        files = {"input_file": test or self.test_of("lcqmc"), "output_file": output, "scores": True}
        return words_of("predict", model_path=model, **files, **flags)

    def train_and_ask(
        self, name: str, seed: int, flags: Flags, command: str = "train"
    ) -> Tuple[Words, Words]:
        folder = self.trained(name, seed)
        start = {"model_name_or_path": BEST_START, "output_dir": folder, "seed": seed}
        return words_of(command, **start, **flags), self.ask(folder, self.predictions(name, seed))

    def comparison(self, name: str, row: Flags) -> Run:
        """Return a comparison of the same training from several starts."""
        data_set, starts = row["data_set"], self.fill(row["starts"], data_set=row["data_set"])
        seeds = row.get("seeds", self.scale.seeds)
        changes = {"seed": FIRST_SEED, **row.get("flags", {})}
        flags = {**self.training_flags(data_set, self.fill(row["rows"])), **changes}
        test, metric = self.test_of(data_set), TABLE["data_sets"][data_set]["metric"]
        settings = json.dumps([flags, test, seeds, self.scale.bootstrap], sort_keys=True)
        # All that is not of the starts.
        output = f"$WORK/compared/{name}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
        command = words_of(
            "compare-starts",
            starts=" ".join(f"{start}={place}" for start, place in starts.items()),
            train_config="$RUN/train.yaml",
            test_file=test,
            output_dir=output,
            seeds=seeds,
            bootstrap=self.scale.bootstrap,
        )
        of_pairs = {"train": flags["train_file"], "test": test, "metric": metric}
        return Run(
            name,
            row["title"],
            (self.cut(data_set), command),
            partial(figures.compared_figures, folder=output, **of_pairs),
            tuple(range(FIRST_SEED, FIRST_SEED + seeds)),
            {"$RUN/train.yaml": _yaml_of(flags)},
            tuple(place for place in starts.values() if not place.startswith("random:")),
            f"{output}/{next(iter(starts))}-seed-{FIRST_SEED}/metrics.jsonl",
        )

    def search(self, name: str, row: Flags) -> Run:
        """Return a search of flags for each start, and all seeds with its best flags on the test pairs."""
        space = self.fill(row["space"])
        left_out = [*(each.partition("=")[0] for each in space.split()), "eval_freq"]
        kept = {key: value for key, value in self.training_flags().items() if key not in left_out}
        folders = {start: f"$RUN/{start}" for start in ("continued", "scratch")}
        files = {
            start: [f"{at}-predictions-{seed}.tsv" for seed in self.seeds] for start, at in folders.items()
        }
        commands = [self.cut("lcqmc")]
        for start, folder in folders.items():
            where = {"from_scratch": start == "scratch", "output_dir": folder, "search": space}
            where.update(trials=self.scale.trials, evaluations=3, **kept)
            commands.append(words_of("search-params", model_name_or_path=BEST_START, **where))
            for seed, file in zip(self.seeds, files[start]):
                best = {"config": f"{folder}/best.yaml", "output_dir": f"{folder}-seed-{seed}", "seed": seed}
                commands += [words_of("train", **best), self.ask(f"{folder}-seed-{seed}", file)]
        compared = {**self.compared(()), "predictions": files}
        read = partial(figures.search_figures, searched=folders, **compared)
        return Run(name, row["title"], tuple(commands), read, self.seeds, needs=(BEST_START,))

    def option(self, name: str, row: Flags) -> Run:
        """Return trainings of all seeds with an option; `mine`: on mined pairs, in as many steps."""
        flags, commands, teachers = {**self.training_flags(), **self.fill(row.get("flags", {}))}, [], []
        if "mine" in row:
            flags["train_file"] = f"$WORK/{self.group}/{name}/train.jsonl"
            commands.append(self.mine(flags["train_file"], **row["mine"]))
        for seed in self.seeds:
            if row.get("is_distilled"):  # from the plain model of the same seed
                teachers.append(self.trained(PLAIN, seed))
                more = {
                    **self.training_flags(),
                    "teacher": teachers[-1],
                    **flags,
                    "layers": self.scale.layers,
                }
                commands += self.train_and_ask(name, seed, more, "distill")
            else:
                commands += self.train_and_ask(name, seed, flags)
        return self.of_option(
            name, row, commands, teachers, f"{self.trained(name, FIRST_SEED)}/metrics.jsonl"
        )

    def mine(self, output: str, **flags: object) -> Words:
        cut = self.cut_of("lcqmc")
        files = {"output_file": output, "dev_file": f"{cut}/choose.jsonl", "test_file": self.test_of("lcqmc")}
        train = f"{cut}/train_{self.scale.large_rows}.jsonl"
        return words_of("mine", train, **files, include_labelled=True, **flags)

    def symmetric_scoring(self, name: str, row: Flags) -> Run:
        """Score pairs in both orders with the plain models: nothing is trained."""
        places = [(self.trained(PLAIN, seed), self.predictions(name, seed)) for seed in self.seeds]
        commands = [self.ask(model, output, symmetric="average") for model, output in places]
        plain = {"$RUN/plain.yaml": _yaml_of(self.training_flags())}  # as it changes with these models
        return self.of_option(name, row, commands, (), "", plain)

    def of_option(
        self,
        name: str,
        row: Flags,
        commands: Sequence[Words],
        teachers: Sequence[str],
        curve: str,
        files: Optional[Dict[str, str]] = None,
    ) -> Run:
        needs = (BEST_START, *self.needed(name, PLAIN), *teachers)
        read = partial(figures.classifier_figures, **self.compared((name, PLAIN)))
        words = (self.cut("lcqmc"), *commands)
        return Run(name, row["title"], words, read, self.seeds, files or {}, needs, curve)

    def needed(self, name: str, first: str) -> List[str]:
        """Return the predictions of the run ``first``, with which the others are compared."""
        return [] if name == first else [self.predictions(first, seed) for seed in self.seeds]

    def side(self, name: str, row: Flags) -> Run:
        """Return trainings of all seeds by one side, in one precision."""
        flags = {**self.training_flags(), **self.flags("sides"), "precision": row["precision"]}
        commands = [self.cut("lcqmc")]
        if name.startswith(THEIRS):
            model = "$RUN/model"  # as transformers loads it
            same = {key: value for key, value in flags.items() if key not in TABLE["flags"]["only_ours"]}
            commands.append(words_of("convert", to="hf", model_path=BEST_START, output_dir=model))
            for seed in self.seeds:
                places = {"model_path": model, "test_file": self.test_of("lcqmc")}
                commands.append(_train_peer({**places, **self.outputs(name, seed), "seed": seed, **same}))
        else:
            commands += [words for seed in self.seeds for words in self.train_and_ask(name, seed, flags)]
        folders = [self.trained(name, seed) for seed in self.seeds]
        of_side = {"folders": folders, "precision": row["precision"]}
        read = partial(figures.sided_figures, **of_side, **self.compared((name, OURS)))
        needs, curve = (BEST_START, *self.needed(name, OURS)), f"{folders[0]}/metrics.jsonl"
        return Run(name, row["title"], tuple(commands), read, self.seeds, {}, needs, curve)

    def outputs(self, name: str, seed: int) -> Flags:
        return {"output_dir": self.trained(name, seed), "output_file": self.predictions(name, seed)}

    def published_side(self, name: str, row: Flags) -> Run:
        """Return the training of all seeds by a side on MRPC.

        The other needs the answers of `ours` only at its end, so that both can run at the same time.
        """
        commands: List[Words] = [FETCH]
        test = MRPC["test_file"]
        same = {**self.flags("published"), "epochs": self.scale.epochs, "dropout": 0.1, "bucket": True}
        for seed in self.seeds:
            places, flags = self.outputs(name, seed), {**same, "logging_freq": 20, "seed": seed}
            if name == THEIRS:
                commands.append(_train_peer({"model_path": PUBLISHED, **places, **MRPC, **flags}))
            else:
                folder = places["output_dir"]
                commands.append(self.train_published(PUBLISHED, folder, flags))
                commands.append(self.ask(folder, places["output_file"], test))
        of_side = {
            "folders": [self.trained(name, seed) for seed in self.seeds],
            "precision": same["precision"],
        }
        read = partial(figures.sided_figures, **of_side, **self.compared((name, OURS), test))
        needs = () if name == OURS else (f"$WORK/{self.group}/{OURS}",)
        return Run(name, row["title"], tuple(commands), read, self.seeds, needs=needs)

    def train_published(self, start: str, output: str, flags: Flags) -> Words:
        files = {name: MRPC[name] for name in ("train_file", "dev_file")}
        places = {"model_name_or_path": start, "output_dir": output, **files}
        return words_of("train", **places, **flags, **self.flags("only_ours"))

    def first_losses(self, name: str, row: Flags) -> Run:
        """Return the first steps of both from one classifier, without dropout, in the order of the file."""
        start, folders = "$RUN/start", {side: f"$RUN/{side}" for side in (OURS, THEIRS)}
        same = {
            **self.flags("published"),
            "max_steps": 10,
            "dropout": 0,
            "logging_freq": 1,
            "seed": FIRST_SEED,
        }
        order = {"streaming": True, "shuffle_buffer": 1, "bucket": False}
        places = {"model_path": start, "output_dir": folders[THEIRS], "output_file": "$RUN/predictions.tsv"}
        head = {"peer_python": PEER_PYTHON, "model_path": PUBLISHED, "output_dir": start}
        commands = (
            FETCH,
            words_of("scripts/add_head.py", **head),
            self.train_published(start, folders[OURS], {**same, **order}),
            _train_peer({**places, **MRPC, **same, "in_order": True}),
        )
        return Run(name, row["title"], commands, partial(figures.loss_figures, folders=folders))

    def vectors(self, name: str, row: Flags) -> Run:
        """Return the comparison of the vectors of real texts with symbols in them."""
        file = "$RUN/vectors.json"
        places = {"peer_python": PEER_PYTHON, "model_path": PUBLISHED, "data": "$DATA", "output_file": file}
        compare = words_of("scripts/compare_vectors.py", **places, count=1000)
        return Run(name, row["title"], (FETCH, compare), lambda each: figures.read_json(each.path(file)))


def _train_peer(flags: Flags) -> Words:
    return words_of("scripts/train_peer.py", peer_python=PEER_PYTHON, **flags)


def _yaml_of(flags: Flags) -> str:
    return "".join(f"{name}: {_shown(value)}\n" for name, value in flags.items())
