"""Trained classifiers side by side as they are shipped: accuracy, speed, size, the time of one pair."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Literal, NamedTuple, Sequence

from data_tools.base.errors import InputError
from data_tools.base.optional_import import import_optional
from data_tools.base.options import Options, option, refuse_empty
from data_tools.files.results import Results, files_of, settings_of
from data_tools.text.lines import ENCODINGS
from ernie_pair.device.cpu_env import cpu_threads
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.model_files.labels import Labels, refuse_no_classes
from ernie_pair.model_files.source import ModelSource, model_folder_of, open_model
from ernie_pair.model_files.temperature import CALIBRATION, read_calibration
from ernie_pair.pair.config.named_models import parse_named_models
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import ENCODING_HELP, RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.distill.model_table import FILES, Column, compare, write_table
from ernie_pair.pair.export.export_config import ExportConfig
from ernie_pair.pair.export.export_pair import export_pair
from ernie_pair.pair.export.judge_precision import FLOAT, INT8
from ernie_pair.pair.model.classifier_weights import load_classifier
from ernie_pair.processes.console import start_console
from ernie_pair.processes.world import World
from ernie_pair.run_config.kept_config import replace_config

MODELS_EXAMPLE = 'write it as in --models "teacher=output/best student=small/best"'
EXPORTED = "exported"


@dataclass(frozen=True)
class CompareModelsConfig(Options):
    """Compare trained classifiers as they are shipped, in ONNX Runtime on this machine's CPU."""

    EXAMPLE = "--models 'teacher=output/best student=small/best' --input_file test.tsv --output_dir compared"

    models: str = option(
        help='names and trained models: "teacher=output/best student=small/best"; the first is the measure '
        "of the others; one with blanks stands in quotes of its own",
        group="model",
    )
    input_file: str = option(
        help="labelled pairs to measure on: a file, or a set such as lcqmc (its dev part)", group="data"
    )
    output_dir: str = option(
        help="models.json, models.md and models.html go here, and the exported models", group="data"
    )
    int8: Literal["last", "all", "none"] = option(
        "last", help="which of the models is measured in int8 as well", group="precision"
    )
    alone: int = option(
        200,
        help="pairs that are asked one by one, for the time of one",
        group="evaluation",
        unit="pairs",
        at_least=2,
    )
    bootstrap: int = option(
        1000, help="resamples for the intervals", group="evaluation", unit="resamples", at_least=1
    )
    seed: int = option(1234, help="of the resamples", group="evaluation", at_least=0)
    threads: int = option(
        0,
        help="of one forward pass; 0: the cores of this process",
        group="devices",
        unit="threads",
        at_least=0,
    )
    text_a: str = option(
        "", help="the column of the first text; empty: a known name, or the first column", group="data"
    )
    text_b: str = option("", help="the column of the second text", group="data")
    label: str = option("", help="the column of the label", group="data")
    encoding: str = option("utf-8", help=ENCODING_HELP, group="data", choices=ENCODINGS)
    overwrite: bool = option(False, help="replace other results that are there", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")


class Compared(NamedTuple):
    """A trained model of the comparison: its name, its folder, and what it is."""

    name: str
    folder: Path
    source: ModelSource


def compare_models(config: CompareModelsConfig) -> None:
    """Export every model, measure them in turn on the same pairs, write and print the table.

    What was exported stays, and is not made again. Raises InputError for models that do not answer the same
    question, and for pairs without labels.
    """
    start_console(World())
    import_optional("onnxruntime", "onnx")
    models = [_open(name, path) for name, path in models_in(config.models).items()]
    labels = _labels_of_all(models)
    results = _results(config, models)
    if results.are_done():
        print((Path(config.output_dir) / FILES[1]).read_text(encoding="utf-8"), end="")
        return
    pairs = _pairs_of(config, labels)
    for model in models:  # all of them, before the first is exported
        read_calibration(model.folder, load_classifier(str(model.folder))[0].num_classes)
    columns = [column for model in models for column in _columns_of(config, model, model is models[-1])]
    threads = config.threads or cpu_threads()
    table = compare(columns, pairs, config.alone, config.bootstrap, config.seed)
    about = {"input_file": config.input_file, "sha256": pairs.sha256, "rows": len(pairs), "threads": threads}
    with results.published() as drafts:
        text = write_table(drafts, {**about, "models": table})
    replace_config(Path(config.output_dir), "compare-models", config)
    print(text, end="")


def models_in(text: str) -> Dict[str, str]:
    """Return {name: path} of --models. Raises InputError naming the word that is wrong."""
    found = parse_named_models("models", text, MODELS_EXAMPLE)
    if not found:
        raise InputError(f"--models names no model; {MODELS_EXAMPLE}")
    return found


def _open(name: str, path: str) -> Compared:
    if not Path(path).is_dir():
        raise InputError(
            f"--models {name}={path} is not a folder; give the OUT of a training run, or OUT/best"
        )
    folder = model_folder_of(Path(path))
    return Compared(name, folder, open_model(str(folder), model_type=""))


def _labels_of_all(models: Sequence[Compared]) -> Labels:
    """Return the labels of the models. Raises InputError where they have others."""
    first, labels = models[0], models[0].source.spec.labels
    for model in models:
        refuse_no_classes(model.source.spec.labels, f"--models {model.name}", "compare-models")
    for other in models[1:]:
        theirs = other.source.spec.labels.names
        if theirs != labels.names:
            raise InputError(
                f"--models: {first.name} tells {', '.join(labels.names)} apart and {other.name} "
                f"{', '.join(theirs)}; compare models of the same classes"
            )
    return labels


def _results(config: CompareModelsConfig, models: Sequence[Compared]) -> Results:
    inputs: Dict[str, Sequence[Path]] = {"input_file": files_of(config.input_file)}
    for model in models:
        beside = (model.folder / CALIBRATION, model.folder / "config.json")
        inputs[f"models ({model.name})"] = [*model.source.weight_files, *filter(Path.is_file, beside)]
    outputs = [Path(config.output_dir, name) for name in FILES]
    settings = settings_of(config, "output_dir", "models", *(["input_file"] if inputs["input_file"] else []))
    return Results("compare-models", outputs, inputs, settings, config.overwrite)


def _pairs_of(config: CompareModelsConfig, labels: Labels) -> Pairs:
    columns = Columns(config.text_a, config.text_b, config.label)
    rules = RowRules(config.encoding)
    return PairSource("input_file", config.input_file, "dev", labels, columns, rules).read()


def _columns_of(config: CompareModelsConfig, model: Compared, is_last: bool) -> List[Column]:
    """Export a model, and return what is to be asked of it."""
    has_int8 = config.int8 == "all" or (config.int8 == "last" and is_last)
    folder = Path(config.output_dir) / EXPORTED / model.name
    columns = {name: getattr(config, name) for name in ("text_a", "text_b", "label", "encoding")}
    judged = {"quantize": "int8", "quantize_file": config.input_file, **columns} if has_int8 else {}
    export_pair(
        ExportConfig(
            model_path=str(model.folder),
            output_dir=str(folder),
            format="onnx",
            max_accuracy_drop=1.0,  # how much is lost is what the table tells
            overwrite=config.overwrite,
            **judged,
        )
    )
    spec, named = model.source.spec, {FLOAT: model.name, INT8: f"{model.name} int8"}
    size = f"{spec.num_layers} x {spec.hidden_size}"
    return [
        Column(named[backend], size, PairPredictor(folder, backend, config.threads))
        for backend in ((FLOAT, INT8) if has_int8 else (FLOAT,))
    ]
