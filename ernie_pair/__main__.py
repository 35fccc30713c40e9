"""ernie-pair COMMAND: every run of the package by name; an installed package needs no other file.

Stands above the layers, like scripts/: it is the one module here that knows both of them.
"""

import os
import sys
from functools import partial
from importlib import import_module
from typing import Any, Callable, Dict, List, Optional

from ernie_pair.commands import (
    Entry,
    asked_help,
    config_class_of,
    form_of,
    form_of_model,
    forms_of,
    function_of,
    overview,
    unknown_command,
    versions,
)
from ernie_pair.core.cli.cli import exit_code_of, parse_config
from ernie_pair.core.cli.flag_words import split_words
from ernie_pair.core.user_home import give_home
from ernie_pair.runtime.processes.stop_signals import signals_wait

# Where each command is. A command may have several forms: a word or a flag behind its name chooses one, each
# with flags of its own. A config of another module, module:Config, is there because that module loads Paddle,
# which no flag and no help needs.
COMMANDS = {
    "doctor": Entry("ernie_pair.checks.doctor", "DoctorConfig"),
    "check": Entry("ernie_pair.checks.quickstart", "CheckConfig", "check"),
    "check --gpu": Entry("ernie_pair.checks.check_gpu", "CheckGpuConfig"),
    "quickstart": Entry("ernie_pair.checks.quickstart", "QuickstartConfig"),
    "pipeline": Entry("ernie_pair.checks.pipeline", "PipelineConfig"),
    "make-sample": Entry("data_tools.make_sample", "SampleConfig"),
    "new-model": Entry("ernie_pair.models.commands", "NewModelConfig", "new_model"),
    "build vocab": Entry("data_tools.build_vocab", "VocabConfig"),
    "build ngrams": Entry("data_tools.build_ngrams", "NgramsConfig"),
    "build text": Entry("ernie_pair.pairs.audit.pairs_to_text", "PairsToTextConfig"),
    "prepare": Entry("data_tools.prepare", "PrepareConfig"),
    "prepare pairs": Entry("ernie_pair.experiments.split_pairs", "SplitPairsConfig"),
    "inspect-data": Entry("ernie_pair.checks.inspect_data", "InspectConfig"),
    "audit text": Entry("data_tools.audit_text", "AuditConfig"),
    "pretrain": Entry(
        "ernie_pair.pretraining.pretrain", "ernie_pair.pretraining.config.pretrain_config:PretrainConfig"
    ),
    "convert": Entry("ernie_pair.pretraining.convert.convert", "ConvertConfig"),
    "convert --to hf": Entry("ernie_pair.models.commands", "ToHuggingFaceConfig", "convert_to_hugging_face"),
    "convert --from hf": Entry(
        "ernie_pair.models.commands", "FromHuggingFaceConfig", "convert_from_hugging_face"
    ),
    "board": Entry("ernie_pair.report.board", "BoardConfig"),
    "plot": Entry("ernie_pair.report.plot_runs", "PlotConfig", "plot"),
    "checkpoint show": Entry("ernie_pair.checkpoint.commands", "ShowConfig", "show_checkpoint"),
    "checkpoint diff": Entry("ernie_pair.checkpoint.commands", "DiffConfig", "diff_checkpoints"),
    "checkpoint average": Entry("ernie_pair.models.commands", "AverageConfig", "average_checkpoints"),
    "audit pairs": Entry("ernie_pair.pairs.audit.audit_pairs", "AuditPairsConfig"),
    "train": Entry("ernie_pair.pairs.train.train_pair", "ernie_pair.pairs.config.pair_config:TrainConfig"),
    "distill": Entry(
        "ernie_pair.pairs.distill.distill",
        "ernie_pair.pairs.config.distill_config:DistillConfig",
        "distill_pair",
    ),
    "config": Entry("ernie_pair.launch.wizard", "QuestionsConfig", "write_launch_file"),
    "evaluate": Entry(
        "ernie_pair.evaluation.evaluate_pair", "ernie_pair.pairs.config.ask_config:EvaluateConfig"
    ),
    "evaluate embedding": Entry(
        "ernie_pair.evaluation.embeddings.evaluate_embedding",
        "ernie_pair.embeddings.embed_config:EvaluateEmbeddingConfig",
    ),
    "evaluate mlm": Entry("ernie_pair.pretraining.mlm.evaluate_mlm", "EvaluateMlmConfig"),
    "predict": Entry(
        "ernie_pair.evaluation.predict_pair", "ernie_pair.pairs.config.ask_config:PredictConfig"
    ),
    "predict mlm": Entry("ernie_pair.pretraining.mlm.fill_mask", "FillMaskConfig"),
    "mine": Entry("ernie_pair.mining.mine_pairs", "ernie_pair.mining.mine_pairs:MineConfig"),
    "train-embedding": Entry(
        "ernie_pair.embeddings.train.train_embedding",
        "ernie_pair.embeddings.train.embedding_config:TrainEmbeddingConfig",
    ),
    "embed": Entry(
        "ernie_pair.evaluation.embeddings.embed", "ernie_pair.embeddings.embed_config:EmbedConfig"
    ),
    "compare starts": Entry(
        "ernie_pair.experiments.compare_starts", "ernie_pair.experiments.config:CompareConfig"
    ),
    "cross-validate": Entry(
        "ernie_pair.experiments.cross_validate", "ernie_pair.experiments.config:CrossValidateConfig"
    ),
    "search-params": Entry(
        "ernie_pair.experiments.search_params", "ernie_pair.experiments.config:SearchParamsConfig"
    ),
    "compare models": Entry(
        "ernie_pair.experiments.compare_models", "ernie_pair.experiments.config:CompareModelsConfig"
    ),
    "export": Entry("ernie_pair.deployment.export_pair", "ernie_pair.deployment.export_config:ExportConfig"),
    "export embedding": Entry(
        "ernie_pair.evaluation.embeddings.export_embedding",
        "ernie_pair.embeddings.embed_config:ExportEmbeddingConfig",
    ),
    "index": Entry("ernie_pair.retrieval.build_index", "IndexConfig", "make_index"),
    "search": Entry("ernie_pair.retrieval.search_texts", "SearchConfig"),
    "serve": Entry("ernie_pair.service.serve", "ServeConfig"),
}
# What each does.
PURPOSES = {
    "doctor": "Check the environment: versions, GPU, libraries",
    "check": "Run the main steps on a tiny sample",
    "check --gpu": "Test a GPU for correctness and speed, and write a report",
    "quickstart": "Run the whole recipe on a built-in sample",
    "pipeline": "Turn your texts and labelled pairs into a model that serves",
    "make-sample": "Write the sample texts and labelled pairs of the quickstart",
    "new-model": "Create a model folder with a configuration of your own",
    "build vocab": "Build a vocabulary (vocab.txt) from text",
    "build ngrams": "Build an n-gram lexicon from a corpus",
    "build text": "Write the texts of pairs as raw text for pretraining",
    "prepare": "Convert raw text or JSON lines to a corpus of token ids",
    "prepare pairs": "Split labelled pairs into training, dev and test files",
    "inspect-data": "Show samples of a corpus with their masks",
    "audit text": "Report duplicates and odd characters in raw text",
    "pretrain": "Pretrain an ERNIE model on a corpus",
    "convert": "Convert pretrained static weights to a model folder",
    "convert --to hf": "Convert a model folder for Hugging Face transformers",
    "convert --from hf": "Convert a model folder of transformers for PaddleNLP",
    "board": "Show the curves of several runs in VisualDL",
    "plot": "Draw the curves of runs as a picture, or as a page that compares them",
    "checkpoint show": "Show what a checkpoint or a run holds",
    "checkpoint diff": "Compare two checkpoints; the exit code is 0 if they are equal, else 1",
    "checkpoint average": "Average the weights of several checkpoints",
    "audit pairs": "Report duplicates, leaks and contradictions in labelled pairs",
    "train": "Train a sentence-pair classifier",
    "distill": "Train a smaller classifier from a trained one",
    "config": "Write a file for launch by answering a few questions",
    "evaluate": "Evaluate a model of pairs on labelled pairs",
    "evaluate embedding": "Evaluate an embedding model on labelled pairs",
    "evaluate mlm": "Measure the masked-language-model loss on held-out text",
    "predict": "Predict the labels of pairs",
    "predict mlm": "Predict the words behind [MASK] with a pretrained model",
    "mine": "Derive new training pairs from labelled ones",
    "train-embedding": "Train a sentence-embedding model",
    "embed": "Compute the embeddings of texts",
    "compare starts": "Fine-tune from several pretrained models and compare the results",
    "cross-validate": "Cross-validate a classifier: every pair is predicted once",
    "search-params": "Search for the best training flags",
    "compare models": "Compare accuracy, speed and size of trained classifiers",
    "export": "Export a classifier for use without training code",
    "export embedding": "Export an embedding model for use without training code",
    "index": "Build a search index of texts",
    "search": "Search an index for texts that match a query",
    "serve": "Serve an exported classifier over HTTP, with a page to try it",
}

# Words behind a command that the folder of --model_path says as well.
KINDS_OF_MODEL = ("embedding", "mlm")
LAUNCH = ("launch", "Start a command in several processes or on several machines")  # flags: of the command
HELP = ("help", "Show the help of a command: ernie-pair help train")
COMPLETION = ("completion", "Print a completion script for bash or zsh")

# What a person wants to do, and the commands for it, in the order in which they are needed.
GROUPS = {
    "first steps": "pipeline quickstart make-sample",
    "data": "audit build prepare inspect-data mine",
    "pretraining": "new-model pretrain convert",
    "sentence pairs": "train distill cross-validate search-params",
    "embeddings and search": "train-embedding embed index search",
    "evaluation": "evaluate predict compare",
    "runs and checkpoints": "board plot checkpoint",
    "deployment": "export serve",
    "several processes": "launch config",
    "environment": "doctor check completion help",
}


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit with its code."""
    sys.exit(exit_code_of(lambda: _run(sys.argv[1:])))


def run_named(name: str) -> None:
    """Run a command in a file that a launcher starts, with the flags in ``sys.argv``; exit with its code.

    Its module, which may load Paddle, is imported after the flags are read.
    """
    entry = COMMANDS[name]

    def run() -> Any:
        with signals_wait():
            config: Any = parse_config(config_class_of(entry))
            give_home()
            function = function_of(entry)
        return function(config)

    sys.exit(exit_code_of(run))


def _run(words) -> Optional[int]:
    """Run the command; what it returns, if it is a number, is its exit code."""
    with signals_wait():  # before any thread is there, which could take them
        action = _loaded(words)
    return action()


def _loaded(words) -> Callable[[], Any]:
    """Return what a command does, with the modules that it needs imported."""
    words = asked_help(words)
    if not words or words[0] in ("-h", "--help"):
        return partial(print, overview(GROUPS, _purposes()))
    if words[0] in ("-V", "--version"):
        return partial(print, versions())
    if words[0] == LAUNCH[0]:
        return partial(import_module("ernie_pair.launch.launch").launch, words[1:])
    if words[0] == COMPLETION[0]:
        complete = import_module("ernie_pair.completion").complete
        launched = list(import_module("ernie_pair.launch.launch").CONFIGS)
        return partial(complete, words[1:], _purposes(), _configs_of, launched)
    forms = forms_of(words[0], COMMANDS)
    if not forms:
        raise unknown_command(words[0], dict.fromkeys(name.split()[0] for name in _purposes()))
    form, flags = form_of(words, forms)
    if not form:
        return partial(print, overview({words[0]: words[0]}, _purposes()))
    form = _form_of_flags(form, flags) if form == words[0] and flags else form
    entry = COMMANDS[form]
    config: Any = parse_config(config_class_of(entry), flags, f"ernie-pair {form}")
    give_home()
    return partial(function_of(entry), config)


def _form_of_flags(command: str, flags: List[str]) -> str:
    """Return the form of a command that fits its flags and the folder of --model_path among them."""
    of_models = [
        form for form in forms_of(command, COMMANDS) if form.split()[-1] in (command, *KINDS_OF_MODEL)
    ]
    if len(of_models) < 2:
        return command
    classes = {form: config_class_of(COMMANDS[form]) for form in of_models}
    given = split_words(flags, *classes.values(), refuse_unknown=False).flags
    folder = given.get("model_path", [[]])[-1]
    return form_of_model(given, "".join(folder), classes, _kind_of_folder)


def _kind_of_folder(folder: str) -> str:
    """Return what a folder is for; no help and no flag alone needs the module that knows it."""
    return import_module("ernie_pair.models.model_folder").kind_of_folder(os.path.expanduser(folder))


def _purposes() -> Dict[str, str]:
    return {**PURPOSES, **dict((LAUNCH, HELP, COMPLETION))}


def _configs_of(command: str) -> List[type]:
    """Return the classes of the flags of a command, of all its forms, or of what it starts."""
    if command == LAUNCH[0]:
        launching = import_module("ernie_pair.launch.launch")
        return [launching.LaunchConfig, *launching.CONFIGS.values()]
    return [config_class_of(COMMANDS[form]) for form in forms_of(command, COMMANDS)]


if __name__ == "__main__":
    main()
