"""Compare trained classifiers as exported: accuracy, speed, size, latency of a single pair."""

from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from data_tools.base.errors import InputError
from data_tools.base.optional_import import import_optional
from data_tools.files.results import Results, files_of, settings_of
from data_tools.files.standard_streams import as_asked, with_standard_streams
from ernie_pair.device.cpu_env import cpu_threads
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.model_files.labels import Labels, refuse_no_classes
from ernie_pair.model_files.source import ModelSource, model_folder_of, open_model
from ernie_pair.model_files.temperature import CALIBRATION, read_calibration
from ernie_pair.pair.config.named_models import parse_named_models
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.distill.compare_config import MODELS_EXAMPLE, CompareModelsConfig
from ernie_pair.pair.distill.model_table import FILES, Column, compare, write_table
from ernie_pair.pair.export.export_config import ExportConfig
from ernie_pair.pair.export.export_pair import export_pair
from ernie_pair.pair.export.judge_precision import FLOAT, INT8
from ernie_pair.pair.model.classifier_weights import load_classifier
from ernie_pair.processes.console import start_console
from ernie_pair.processes.world import World
from ernie_pair.run_config.kept_config import replace_config

EXPORTED = "exported"


class Compared(NamedTuple):
    """A trained model of the comparison: its name, its folder, and what it is."""

    name: str
    folder: Path
    source: ModelSource


@with_standard_streams
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
    about = {"input_file": as_asked(config.input_file), "sha256": pairs.sha256, "rows": len(pairs)}
    with results.published() as drafts:
        text = write_table(drafts, {**about, "threads": threads, "models": table})
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
    """Return the labels of the models. Raises InputError if they have others."""
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
