"""ernie-pair COMMAND: every run of the package by name; an installed package needs no other file.

Stands above the layers, like scripts/: it is the one module here that knows both of them.
"""

import sys
from importlib import import_module
from typing import Optional

from data_tools.base.cli import exit_code_of, parse_config
from data_tools.base.errors import InputError

# command: (module, its function, its config, what it is for)
COMMANDS = {
    "doctor": ("ernie_pair.device.doctor", "doctor", "DoctorConfig", "is this environment sound?"),
    "link-cuda": (
        "ernie_pair.device.gpu.cuda_links",
        "link_cuda",
        "LinkCudaConfig",
        "the CUDA of pip packages, where Paddle looks for it",
    ),
    "check": ("ernie_pair.quickstart.self_check", "check", "CheckConfig", "does every part of it work?"),
    "check-gpu": (
        "ernie_pair.gpu_check.check_gpu",
        "check_gpu",
        "CheckGpuConfig",
        "does a GPU compute right, and how fast? a report to attach",
    ),
    "quickstart": (
        "ernie_pair.quickstart.quickstart",
        "quickstart",
        "QuickstartConfig",
        "the whole line on an embedded sample",
    ),
    "make-sample": (
        "data_tools.make_sample",
        "make_sample",
        "SampleConfig",
        "that sample: a text and labelled pairs",
    ),
    "new-model": (
        "ernie_pair.model_files.new_model",
        "new_model",
        "NewModelConfig",
        "a model folder to start from scratch",
    ),
    "text-to-json": ("data_tools.trans_to_json", "trans_to_json", "TransConfig", "raw text to JSON lines"),
    "build-vocab": ("data_tools.build_vocab", "build_vocab", "VocabConfig", "a vocab.txt from text"),
    "create-corpus": (
        "data_tools.create_pretraining_data",
        "create_pretraining_data",
        "CreateConfig",
        "JSON lines to a corpus for pretraining",
    ),
    "build-ngrams": (
        "data_tools.build_ngrams",
        "build_ngrams",
        "NgramsConfig",
        "the n-grams of a corpus that are one unit",
    ),
    "prepare": ("data_tools.prepare", "prepare", "PrepareConfig", "the same, on a Ray cluster too"),
    "inspect-data": (
        "ernie_pair.pretrain.inspect_data",
        "inspect_data",
        "InspectConfig",
        "samples of a corpus with their masks, and a report of them",
    ),
    "audit-text": (
        "data_tools.audit_text",
        "audit_text",
        "AuditConfig",
        "repeats, odd characters, scripts and languages of raw text",
    ),
    "pretrain": (
        "ernie_pair.pretrain.pretrain",
        "pretrain",
        "PretrainConfig",
        "pretrain ERNIE, in static or dynamic graph",
    ),
    "convert": (
        "ernie_pair.pretrain.convert.convert",
        "convert",
        "ConvertConfig",
        "static weights to a dynamic model",
    ),
    "fill-mask": (
        "ernie_pair.pretrain.filling.fill_mask",
        "fill_mask",
        "FillMaskConfig",
        "what a pretrained model puts behind [MASK]",
    ),
    "evaluate-mlm": (
        "ernie_pair.pretrain.filling.evaluate_mlm",
        "evaluate_mlm_command",
        "EvaluateMlmConfig",
        "its masked loss on held-out text, of a corpus",
    ),
    "board": (
        "ernie_pair.dashboard.board",
        "board",
        "BoardConfig",
        "open VisualDL on the curves of several runs",
    ),
    "plot": (
        "ernie_pair.dashboard.plot_runs",
        "plot",
        "PlotConfig",
        "draw curves of runs as a picture, or a page that compares them",
    ),
    "show-checkpoint": (
        "ernie_pair.checkpoint.show_checkpoint",
        "show_checkpoint",
        "ShowConfig",
        "what a checkpoint holds, or a run",
    ),
    "diff-checkpoints": (
        "ernie_pair.checkpoint.diff_checkpoints",
        "diff_checkpoints",
        "DiffConfig",
        "how two checkpoints differ; exit 0 or 1",
    ),
    "average-checkpoints": (
        "ernie_pair.model_files.average_checkpoints",
        "average_checkpoints",
        "AverageConfig",
        "the mean of several models, as a model",
    ),
    "audit-pairs": (
        "ernie_pair.pair.audit.audit_pairs",
        "audit_pairs",
        "AuditPairsConfig",
        "repeats, leaks, contradictions of labelled pairs",
    ),
    "train": (
        "ernie_pair.pair.train.train_pair",
        "train_pair",
        "TrainConfig",
        "train a sentence-pair classifier",
    ),
    "distill": (
        "ernie_pair.pair.distill.distill",
        "distill_pair",
        "DistillConfig",
        "a smaller pair classifier that learns from a trained one",
    ),
    "config": (
        "ernie_pair.launch.wizard",
        "write_launch_file",
        "QuestionsConfig",
        "questions that make the file of launch",
    ),
    "evaluate": (
        "ernie_pair.pair.evaluation.evaluate_pair",
        "evaluate_pair",
        "EvaluateConfig",
        "its metrics on labelled pairs",
    ),
    "predict": (
        "ernie_pair.pair.evaluation.predict_pair",
        "predict_pair",
        "PredictConfig",
        "its labels for pairs",
    ),
    "mine": (
        "ernie_pair.pair.mining.mine_pairs",
        "mine_pairs",
        "MineConfig",
        "new training pairs of labelled ones",
    ),
    "pseudo-label": (
        "ernie_pair.pair.mining.pseudo_label",
        "pseudo_label",
        "PseudoLabelConfig",
        "labels for pairs, where a classifier is sure",
    ),
    "train-embedding": (
        "ernie_pair.embedding.train.train_embedding",
        "train_embedding",
        "TrainEmbeddingConfig",
        "teach an encoder to make vectors of texts",
    ),
    "embed": ("ernie_pair.embedding.embed", "embed", "EmbedConfig", "the vectors of a file of texts"),
    "evaluate-embedding": (
        "ernie_pair.embedding.evaluate_embedding",
        "evaluate_embedding",
        "EvaluateEmbeddingConfig",
        "how well texts find their matches by vectors",
    ),
    "export-embedding": (
        "ernie_pair.embedding.export_embedding",
        "export_embedding",
        "ExportEmbeddingConfig",
        "a folder that makes vectors without training",
    ),
    "compare-starts": (
        "ernie_pair.pair.compare.compare_starts",
        "compare_starts",
        "CompareConfig",
        "do several starts make classifiers that differ?",
    ),
    "cross-validate": (
        "ernie_pair.pair.cross_validation.cross_validate",
        "cross_validate_command",
        "CrossValidateConfig",
        "how good on rows unseen? every row predicted once",
    ),
    "search-params": (
        "ernie_pair.pair.param_search.search_params",
        "search_params_command",
        "SearchParamsConfig",
        "which flags of training are best? trials, pruned",
    ),
    "compare-models": (
        "ernie_pair.pair.distill.compare_models",
        "compare_models",
        "CompareModelsConfig",
        "accuracy, speed and size of trained models, as they are shipped",
    ),
    "export": (
        "ernie_pair.pair.export.export_pair",
        "export_pair",
        "ExportConfig",
        "a folder that runs without training",
    ),
    "ensemble": (
        "ernie_pair.pair.ensemble.ensemble",
        "ensemble",
        "EnsembleConfig",
        "several models as one exported folder",
    ),
    "run": (
        "ernie_pair.pair.export.predict_exported",
        "predict_exported",
        "RunConfig",
        "labels for pairs by an exported model",
    ),
    "index": (
        "ernie_pair.search.build_index",
        "make_index",
        "IndexConfig",
        "texts as a folder to be searched",
    ),
    "search": (
        "ernie_pair.search.search_texts",
        "search_texts",
        "SearchConfig",
        "the texts of it that match a query",
    ),
    "robustness": (
        "ernie_pair.pair.export.robustness_exported",
        "measure_exported",
        "RobustnessConfig",
        "how an exported model bears changed pairs",
    ),
    "serve": (
        "ernie_pair.server.serve",
        "serve",
        "ServeConfig",
        "an exported model over HTTP, with a page to try",
    ),
}


# The flags that choose another form of a command, which has flags of its own.
FORMS = {
    ("convert", "to", "hf"): (
        "ernie_pair.model_files.interchange",
        "convert_to_hugging_face",
        "ToHuggingFaceConfig",
        "a model folder for Hugging Face's transformers",
    ),
    ("convert", "from", "hf"): (
        "ernie_pair.model_files.interchange",
        "convert_from_hugging_face",
        "FromHuggingFaceConfig",
        "a model folder of transformers, for PaddleNLP",
    ),
}
LAUNCH = ("launch", "FILE or command: run it in several processes")  # its flags follow from the first word


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit with its code."""
    sys.exit(exit_code_of(lambda: _run(sys.argv[1:])))


def _run(words) -> Optional[int]:
    """Run the command; what it returns, if anything, is its exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return None
    if words[0] == LAUNCH[0]:
        import_module("ernie_pair.launch.launch").launch(words[1:])
        return None
    if words[0] not in COMMANDS:
        known = ", ".join([*COMMANDS, LAUNCH[0]])
        raise InputError(f"{words[0]} is no command of ernie-pair; use one of {known}")
    (module_name, function, config_class, _), program, flags = _form_of(words)
    module = import_module(module_name)
    config = parse_config(getattr(module, config_class), flags, f"ernie-pair {program}")
    return getattr(module, function)(config)


def _form_of(words) -> tuple:
    """Return (what is run, its name, its flags) for the words of a command.

    Raises InputError for a flag that chooses a form, with a value that names none.
    """
    joined = [part for word in words[1:] for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    for command, flag, value in FORMS:
        if command == words[0] and f"--{flag}" in joined:
            place = joined.index(f"--{flag}")
            if joined[place + 1 : place + 2] != [value]:
                raise InputError(f"--{flag} takes {value} alone; write {command} --{flag} {value}")
            form = FORMS[command, flag, value]
            return form, f"{command} --{flag} {value}", joined[:place] + joined[place + 2 :]
    return COMMANDS[words[0]], words[0], words[1:]


def _usage() -> str:
    purposes = [(name, purpose) for name, (_, _, _, purpose) in COMMANDS.items()]
    for (command, flag, value), (_, _, _, purpose) in FORMS.items():
        place = [name for name, _ in purposes].index(command) + 1
        purposes.insert(place, (f"{command} --{flag} {value}", purpose))
    lines = [f"  {name:<19} {purpose}" for name, purpose in [*purposes, LAUNCH]]
    return "\n".join(["usage: ernie-pair COMMAND [--help] [flags]", "", *lines])


if __name__ == "__main__":
    main()
