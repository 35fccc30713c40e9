"""Every command, declared once: the list of ``--help``, completion, Python and the pages are read from it.

Nothing is imported for the table itself: the class of a command's flags is, once its help or its flags are
wanted, and its function, which may load Paddle, once it is to run.
"""

from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from ernie_pair.core.errors import InputError


class Command(NamedTuple):
    """A row of `COMMANDS`.

    ``group``: under which --help lists it, with ``purpose``, a line. ``function``: module:function, or the
    module alone if both have one name; it takes a configuration, and its result, if it is a whole number, is
    the exit code. ``config``: the class of its flags, of the same module; or module:Class where the
    function's module loads Paddle.

    ``python``: the names of its functions in `ernie_pair`; forms of a command that share one are chosen there
    as on the command line, by the options and the folder. They return what ``function`` does, the path of
    the option that ``returns`` names, or what the function does that it names as module:function, made
    by `takes_options`. ``also``: what else people call the command, for suggestions.
    """

    group: str
    purpose: str
    function: str = ""
    config: str = ""
    python: str = ""
    returns: str = ""
    also: str = ""


# In the order of --help, in which a user needs them. A word or a flag behind a name chooses one of several
# forms, each with flags of its own.
COMMANDS = {
    "pipeline": Command(
        "first steps", "Turn your texts and labelled pairs into a model that serves",
        "ernie_pair.checks.pipeline", "PipelineConfig", python="pipeline"
    ),
    "quickstart": Command(
        "first steps", "Run the whole recipe on a built-in sample",
        "ernie_pair.checks.quickstart", "QuickstartConfig"
    ),
    "make-sample": Command(
        "first steps", "Write the sample texts and labelled pairs of the quickstart",
        "data_tools.make_sample", "SampleConfig", python="make_sample", returns="output_dir"
    ),
    "audit text": Command(
        "data", "Report duplicates and odd characters in raw text",
        "data_tools.audit_text", "AuditConfig", python="audit_text"
    ),
    "audit pairs": Command(
        "data", "Report duplicates, leaks and contradictions in labelled pairs",
        "ernie_pair.pairs.audit.audit_pairs", "AuditPairsConfig", python="audit_pairs"
    ),
    "audit duplicates": Command(
        "data", "Find the texts of an index that ask the same, as a table to decide in",
        "ernie_pair.retrieval.duplicates:audit_duplicates", "AuditDuplicatesConfig",
        python="audit_duplicates", returns="output_file"
    ),
    "audit labels": Command(
        "data", "Measure how far annotators agree, and write the labels to train on",
        "ernie_pair.labelling.asked_labels:audit_labels", "AuditLabelsConfig", python="audit_labels"
    ),
    "build vocab": Command(
        "data", "Build a vocabulary (vocab.txt) from text",
        "data_tools.build_vocab", "VocabConfig", python="build_vocab", returns="output_file", also="vocab"
    ),
    "build ngrams": Command(
        "data", "Build an n-gram lexicon from a corpus",
        "data_tools.build_ngrams", "NgramsConfig"
    ),
    "build text": Command(
        "data", "Write the texts of pairs as raw text for pretraining",
        "ernie_pair.pairs.audit.new_pairs:pairs_to_text", "PairsToTextConfig"
    ),
    "prepare": Command(
        "data", "Convert raw text or JSON lines to a corpus of token ids",
        "data_tools.prepare", "PrepareConfig", python="prepare",
        also="tokenize preprocess create-pretraining-data trans-to-json"
    ),
    "prepare pairs": Command(
        "data", "Split labelled pairs into training, dev and test files",
        "ernie_pair.experiments.split_pairs", "SplitPairsConfig", python="split_pairs", returns="output_dir"
    ),
    "inspect-data": Command(
        "data", "Show samples of a corpus with their masks",
        "ernie_pair.checks.inspect_data", "InspectConfig"
    ),
    "select": Command(
        "data", "Choose the pairs to label next, as a table or as tasks",
        "ernie_pair.labelling.asked_labels:select", "SelectConfig", python="select", returns="output_file"
    ),
    "mine": Command(
        "data", "Derive new training pairs from labelled ones",
        "ernie_pair.mining.mine_pairs", "MineConfig", also="augment"
    ),
    "new-model": Command(
        "pretraining", "Create a model folder with a configuration of your own",
        "ernie_pair.models.commands:new_model", "NewModelConfig", python="new_model", returns="output_dir"
    ),
    "pretrain": Command(
        "pretraining", "Pretrain an ERNIE model on a corpus",
        "ernie_pair.pretraining.pretrain", "ernie_pair.pretraining.config.pretrain_config:PretrainConfig",
        python="pretrain", returns="ernie_pair.api:pretrain", also="run-pretrain run-pretrain-static"
    ),
    "convert": Command(
        "pretraining", "Convert pretrained static weights to a model folder",
        "ernie_pair.pretraining.convert.convert", "ConvertConfig", python="convert",
        also="static-to-dynamic ernie-static-to-dynamic"
    ),
    "convert --to hf": Command(
        "pretraining", "Convert a model folder for Hugging Face transformers",
        "ernie_pair.models.commands:convert_to_hugging_face", "ToHuggingFaceConfig"
    ),
    "convert --from hf": Command(
        "pretraining", "Convert a model folder of transformers for PaddleNLP",
        "ernie_pair.models.commands:convert_from_hugging_face", "FromHuggingFaceConfig"
    ),
    "train": Command(
        "sentence pairs", "Train a sentence-pair classifier",
        "ernie_pair.pairs.train.train_pair", "ernie_pair.pairs.config.pair_config:TrainConfig",
        python="train", also="finetune fine-tune fit sft train-pair"
    ),
    "distill": Command(
        "sentence pairs", "Train a smaller classifier from a trained one",
        "ernie_pair.pairs.distill.distill:distill_pair",
        "ernie_pair.pairs.config.distill_config:DistillConfig", python="distill",
        returns="ernie_pair.api:distill", also="compress"
    ),
    "cross-validate": Command(
        "sentence pairs", "Cross-validate a classifier: every pair is predicted once",
        "ernie_pair.experiments.cross_validate", "ernie_pair.experiments.config:CrossValidateConfig",
        python="cross_validate", also="kfold"
    ),
    "learning-curve": Command(
        "sentence pairs", "Predict what more labels would give, from runs on shares of them",
        "ernie_pair.experiments.learning_curve", "ernie_pair.experiments.config:LearningCurveConfig",
        python="learning_curve"
    ),
    "search-params": Command(
        "sentence pairs", "Search for the best training flags",
        "ernie_pair.experiments.search_params", "ernie_pair.experiments.config:SearchParamsConfig",
        python="search_params", also="hyperparameter-search hpo tune"
    ),
    "train-embedding": Command(
        "embeddings and search", "Train a sentence-embedding model",
        "ernie_pair.embeddings.train.train_embedding",
        "ernie_pair.embeddings.train.embedding_config:TrainEmbeddingConfig", python="train_embedding"
    ),
    "embed": Command(
        "embeddings and search", "Compute the embeddings of texts",
        "ernie_pair.evaluation.embeddings.embed", "ernie_pair.embeddings.embed_config:EmbedConfig",
        python="embed", returns="ernie_pair.api:embed", also="encode"
    ),
    "index": Command(
        "embeddings and search", "Build a search index of texts",
        "ernie_pair.retrieval.build_index:make_index", "IndexConfig", python="index"
    ),
    "search": Command(
        "embeddings and search", "Search an index for texts that match a query",
        "ernie_pair.retrieval.search_texts", "SearchConfig", python="search", returns="ernie_pair.api:search"
    ),
    "evaluate": Command(
        "evaluation", "Evaluate a model of pairs on labelled pairs",
        "ernie_pair.evaluation.evaluate_pair", "ernie_pair.pairs.config.ask_config:EvaluateConfig",
        python="evaluate", also="evaluate-pair eval test benchmark"
    ),
    "evaluate embedding": Command(
        "evaluation", "Evaluate an embedding model on labelled pairs",
        "ernie_pair.evaluation.embeddings.evaluate_embedding",
        "ernie_pair.embeddings.embed_config:EvaluateEmbeddingConfig", python="evaluate"
    ),
    "evaluate mlm": Command(
        "evaluation", "Measure the masked-language-model loss on held-out text",
        "ernie_pair.pretraining.mlm.evaluate_mlm", "EvaluateMlmConfig", python="evaluate_mlm evaluate"
    ),
    "evaluate search": Command(
        "evaluation", "Measure what an index finds of questions whose answers are known",
        "ernie_pair.retrieval.evaluate_search", "EvaluateSearchConfig", python="evaluate"
    ),
    "predict": Command(
        "evaluation", "Predict the labels of pairs",
        "ernie_pair.evaluation.predict_pair", "ernie_pair.pairs.config.ask_config:PredictConfig",
        python="predict", returns="ernie_pair.api:predict", also="predict-pair infer inference"
    ),
    "explain": Command(
        "evaluation", "Explain the score of a pair: words, tokens, near training pairs",
        "ernie_pair.evaluation.explain_pair", "ernie_pair.pairs.config.ask_config:ExplainConfig",
        python="explain", also="why interpret attribute"
    ),
    "predict mlm": Command(
        "evaluation", "Predict the words behind [MASK] with a pretrained model",
        "ernie_pair.pretraining.mlm.fill_mask", "FillMaskConfig"
    ),
    "compare starts": Command(
        "evaluation", "Fine-tune from several pretrained models and compare the results",
        "ernie_pair.experiments.compare_starts", "ernie_pair.experiments.config:CompareConfig"
    ),
    "compare models": Command(
        "evaluation", "Compare accuracy, speed and size of trained classifiers",
        "ernie_pair.experiments.compare_models", "ernie_pair.experiments.config:CompareModelsConfig",
        also="benchmark"
    ),
    "board": Command(
        "runs and checkpoints", "Show the curves of several runs in VisualDL",
        "ernie_pair.report.board", "BoardConfig"
    ),
    "plot": Command(
        "runs and checkpoints", "Draw the curves of runs as a picture, or as a page that compares them",
        "ernie_pair.report.plot_runs:plot", "PlotConfig"
    ),
    "checkpoint show": Command(
        "runs and checkpoints", "Show what a checkpoint or a run holds",
        "ernie_pair.checkpoint.commands:show_checkpoint", "ShowConfig", also="info"
    ),
    "checkpoint diff": Command(
        "runs and checkpoints", "Compare two checkpoints; the exit code is 0 if they are equal, else 1",
        "ernie_pair.checkpoint.commands:diff_checkpoints", "DiffConfig"
    ),
    "checkpoint average": Command(
        "runs and checkpoints", "Average the weights of several checkpoints",
        "ernie_pair.models.commands:average_checkpoints", "AverageConfig", also="soup merge"
    ),
    "export": Command(
        "deployment", "Export a classifier for use without training code",
        "ernie_pair.deployment.export_pair", "ernie_pair.deployment.export_config:ExportConfig",
        python="export", returns="output_dir", also="onnx deploy compress quantize"
    ),
    "export embedding": Command(
        "deployment", "Export an embedding model for use without training code",
        "ernie_pair.evaluation.embeddings.export_embedding",
        "ernie_pair.embeddings.embed_config:ExportEmbeddingConfig", python="export", returns="output_dir"
    ),
    "serve": Command(
        "deployment", "Serve an exported classifier over HTTP, with a page to try it",
        "ernie_pair.service.serve", "ServeConfig", python="serve", also="deploy server simple-serving api"
    ),
    "drift": Command(
        "deployment", "Compare the log of a service with what its model was tested on",
        "ernie_pair.service.drift", "DriftConfig", python="drift", also="monitor"
    ),
    "config": Command(
        "several processes", "Write a file for launch by answering a few questions",
        "ernie_pair.launch.wizard:write_launch_file", "QuestionsConfig"
    ),
    "doctor": Command(
        "environment", "Check the environment: versions, GPU, libraries",
        "ernie_pair.checks.doctor", "DoctorConfig", also="env info"
    ),
    "check": Command(
        "environment", "Run the main steps on a tiny sample",
        "ernie_pair.checks.quickstart:check", "CheckConfig"
    ),
    "check --gpu": Command(
        "environment", "Test a GPU for correctness and speed, and write a report",
        "ernie_pair.checks.check_gpu", "CheckGpuConfig"
    ),
}  # fmt: skip
# These read their words themselves.
WORDS = {
    "launch": Command(
        "several processes", "Start a command in several processes or on several machines",
        "ernie_pair.launch.launch", also="distributed torchrun accelerate"
    ),
    "completion": Command(
        "environment", "Print a completion script for bash or zsh",
        "ernie_pair.completion:complete"
    ),
    "help": Command(
        "environment", "Show the help of a command: ernie-pair help train"
    ),
}  # fmt: skip
# Words behind a command that its flags, or the folder of --model_path, say as well.
KINDS_OF_MODEL = ("embedding", "mlm", "search")


def config_class_of(command: Command) -> Any:
    """Return the class of a command's flags; a class with a module of its own loads no other module."""
    module, _, name = command.config.rpartition(":")
    return _load(f"{module or command.function.partition(':')[0]}:{name}")


def function_of(command: Command) -> Callable[..., Any]:
    """Return the function of a command, which takes a config; its module may load Paddle."""
    return _load(command.function)


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name or module.rpartition(".")[2])


def python_names() -> List[str]:
    """Return the names of the commands in `ernie_pair`, as functions."""
    return list(dict.fromkeys(name for row in COMMANDS.values() for name in row.python.split()))


@cache
def python_function(name: str) -> Callable[..., Any]:
    """Return a command as a function of Python, which takes a configuration, or its options by name."""
    from ernie_pair.core.cli.python_call import takes_options

    forms = {form: row for form, row in COMMANDS.items() if name in row.python.split()}
    first = next(iter(forms.values()))
    if ":" in first.returns:
        return _load(first.returns)
    classes = {form: config_class_of(row) for form, row in forms.items()}
    rows = dict(zip(classes.values(), forms.values()))

    def choose(options: Dict[str, Any]) -> type:
        return classes[form_of_model(options, str(options.get("model_path") or ""), classes)]

    def run(config: Any) -> Any:
        row = rows.get(type(config), first)
        found = function_of(row)(config)
        return Path(getattr(config, row.returns)) if row.returns else found

    run.__name__ = run.__qualname__ = name
    run.__module__ = __package__  # where it is found again, by pickle for example
    path = f"\n\nReturns the path of ``{first.returns}``." if first.returns else ""
    run.__doc__ = cleandoc(function_of(first).__doc__ or "") + path
    return takes_options(*rows, choose=choose if len(rows) > 1 else None)(run)


def forms_of(command: str, names: Iterable[str]) -> List[str]:
    """Return the forms of a command among ``names``: `audit text` and `audit pairs` of audit."""
    return [name for name in names if name.split()[0] == command]


def form_of(words: Sequence[str], forms: Sequence[str]) -> Tuple[str, List[str]]:
    """Return (the form that the words of a command choose, its flags); '' if they only ask for help.

    ``forms``: `convert`, `convert --to hf` or `audit text`. Raises InputError if the words choose none.
    """
    command, *flags = words
    flags = [part for word in flags for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    for form in forms:
        chosen = form.split()[1:]
        flag = chosen[0] if chosen and chosen[0][:2] == "--" else ""
        if flag and flag in flags:
            place = flags.index(flag)
            if flags[place : place + len(chosen)] == chosen:
                return form, flags[:place] + flags[place + len(chosen) :]
            raise InputError(f"{flag} takes {chosen[1]} alone; write {form}")
        if chosen and not flag and flags[:1] == chosen:
            return form, list(words[2:])
    if command in forms:
        return command, list(words[1:])
    if flags[:1] in (["-h"], ["--help"]):
        return "", []
    raise InputError(f"{command} has several forms; write {either(forms)}; {command} --help explains them")


def form_of_model(given: Iterable[str], folder: str, forms: Mapping[str, Any]) -> str:
    """Return the form of a command for ``folder``, its --model_path, of which no word has chosen one.

    ``given``: the names of the flags; ``forms``: {form: its class of options}, the one for models of pairs
    first. A form that lacks one of the flags is not meant. Raises InputError for a flag of another form, if
    the folder is a model of pairs.
    """
    flags = {form: {"help", "config", *one.__dataclass_fields__} for form, one in forms.items()}
    fitting = [form for form in forms if flags[form] >= {*given}]
    if "/" in folder:
        folder = import_module("ernie_pair.core.files.hub").local_model(folder, "model_path")
    path, kind = Path(folder).expanduser(), ""
    if folder:  # no help and no flag alone needs the module that knows it
        kind = import_module("ernie_pair.models.model_folder").kind_of_folder(str(path))
    is_for_pairs = not kind and bool(folder) and path.is_dir()
    first = next(iter(forms))
    for name in given if is_for_pairs else ():
        other = next((form for form in forms if name in flags[form]), first)
        if other != first:
            raise InputError(
                f"--{name} is a flag of {other}, and {folder} is a model of pairs (a classifier or "
                "reranker); leave it out"
            )
    wanted = f"{first} {kind}" if kind else first
    is_meant = wanted in fitting or is_for_pairs or (kind == "embedding" and wanted in forms)
    return wanted if is_meant else next(iter(fitting), first)


def either(names: Sequence[str]) -> str:
    """Return names as a sentence lists a choice among them."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
