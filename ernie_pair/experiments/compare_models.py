"""Compare trained classifiers as exported: accuracy, speed, size, latency of a single pair."""

import logging
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import numpy as np

from ernie_pair.checkpoint.run_config import replace_config
from ernie_pair.core.cli.standard_streams import original_value, with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.core.progress import CountProgress
from ernie_pair.deployment.export_config import ExportConfig
from ernie_pair.deployment.export_pair import export_pair
from ernie_pair.deployment.judge_precision import FLOAT, INT8, answer_in_turn
from ernie_pair.experiments.config import CompareModelsConfig
from ernie_pair.experiments.series import refuse_other_classes
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.models.labels import check_has_classes
from ernie_pair.models.model_card import in_markdown, markdown_table
from ernie_pair.models.model_folder import no_model_folder
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.source import open_model
from ernie_pair.models.temperature import CALIBRATION, read_calibration
from ernie_pair.pairs.audit.trained_pairs import describe_trained_on, was_trained_on
from ernie_pair.pairs.config.ask_config import parse_named_models
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.targets.metrics import percentile_interval, resamples
from ernie_pair.report.page import Table, page_of_tables
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

MODELS_EXAMPLE = 'write it as in --models "teacher=output/best student=small/best"'
FILES = ("models.json", "models.md", "models.html")
EXPORTED = "exported"
ALONE = 200  # pairs that are asked one at a time, to measure the latency of one
WARM_UP = 8  # pairs that are asked alone before the clock runs
# What a reader sees of a model; a point is a hundredth of the accuracy.
CELLS: Dict[str, Callable[[Dict[str, Any]], str]] = {
    "model": lambda model: model["name"],
    "layers": lambda model: model["size"],
    "precision": lambda model: model["precision"],
    "threshold": lambda model: "" if model["threshold"] is None else f"{model['threshold']:.4f}",
    "accuracy": lambda model: f"{model['accuracy']:.4f}",
    "95 %": lambda model: "{:.4f} to {:.4f}".format(*model["accuracy_interval"]),
    "difference (points)": lambda model: f"{100 * model['difference']:+.2f}",
    "95 % of it": lambda model: "{:+.2f} to {:+.2f}".format(*(100 * v for v in model["difference_interval"])),
    "same class": lambda model: f"{model['agreement']:.4f}",
    "pairs/s": lambda model: f"{model['pairs_per_second']:,.0f}",
    "speedup": lambda model: f"{model['times_as_fast']:.2f}",
    "one pair p50": lambda model: f"{model['latency_ms']['p50']:.2f} ms",
    "p95": lambda model: f"{model['latency_ms']['p95']:.2f} ms",
    "size": lambda model: f"{model['bytes'] / 1e6:.1f} MB",
}
NOTE = "Difference, same class and speedup: against the first model. Intervals: bootstrap over the pairs."

logger = logging.getLogger(__name__)


@with_standard_streams
def compare_models(config: CompareModelsConfig) -> None:
    """Export every model, measure them in turn on the same pairs, write and print the table.

    What was exported stays, and is not made again. Raises InputError for models that do not answer the same
    question, and for pairs without labels.
    """
    start_console(World())
    models = parse_named_models("models", config.models, MODELS_EXAMPLE)
    if not models:
        raise InputError(f"--models names no model; {MODELS_EXAMPLE}")
    for name, path in models.items():
        if not Path(path).is_dir():
            raise no_model_folder("models", f"{name}={path}", "give the OUT of a training run, or OUT/best")
    sources = {name: open_model(path) for name, path in models.items()}
    folders = {name: source.folder or Path(source.name) for name, source in sources.items()}
    for name, source in sources.items():
        check_has_classes(source.spec.labels, f"--models {name}", "compare models")
    all_labels = {name: source.spec.labels for name, source in sources.items()}
    labels = refuse_other_classes("models", all_labels, "compare models of the same classes")
    inputs: Dict[str, Sequence[Path]] = {"input_file": files_of(config.input_file)}
    for name, folder in folders.items():
        beside = (folder / CALIBRATION, folder / "config.json")
        inputs[f"models ({name})"] = [*sources[name].weight_files, *filter(Path.is_file, beside)]
    outputs = [Path(config.output_dir, name) for name in FILES]
    settings = settings_of(config, "output_dir", "models", *(["input_file"] if inputs["input_file"] else []))
    results = Results("compare models", outputs, inputs, settings, config.overwrite)
    if results.are_done():
        print(outputs[1].read_text(encoding="utf-8"), end="")
        return
    pairs = PairSource.of(config, "input_file", labels).read()
    for folder in folders.values():  # all of them, before the first is exported
        read_calibration(folder, load_classifier(str(folder))[0].num_classes)
    predictors: Dict[str, PairPredictor] = {}
    sizes: Dict[str, str] = {}
    for number, (name, folder) in enumerate(folders.items(), start=1):
        has_int8 = config.int8 == "all" or (config.int8 == "last" and number == len(folders))
        exported, spec = _export(config, name, folder, has_int8), sources[name].spec
        for shown, backend in ((name, FLOAT), (f"{name} int8", INT8))[: 1 + has_int8]:
            predictors[shown] = PairPredictor(exported, backend, config.threads, device=config.device)
            sizes[shown] = f"{spec.num_layers} x {spec.hidden_size}"
    seen = {name: was_trained_on(str(folder), pairs) for name, folder in folders.items()}
    unseen = ~np.any([*seen.values()], axis=0)
    table = compare(predictors, sizes, pairs, config, unseen)
    for name, rows in seen.items():
        if rows.any():
            told = {f"{one['name']} accuracy": one.get("accuracy_unseen") for one in table}
            logger.warning("%s", describe_trained_on(rows, name, told))
    content = {"input_file": original_value(config.input_file), "sha256": pairs.sha256, "rows": len(pairs)}
    device = next(iter(predictors.values())).device
    content.update(threads=config.threads or cpu_threads(), device=device, models=table)
    with results.published() as drafts:
        text = write_table(drafts, content)
    replace_config(Path(config.output_dir), "compare models", config)
    print(text, end="")


def _export(config: CompareModelsConfig, name: str, folder: Path, has_int8: bool) -> Path:
    """Export a model, also in int8 where that is measured, and return the folder."""
    exported = Path(config.output_dir) / EXPORTED / name
    flags: Dict[str, Any] = {}
    if has_int8:
        flags = {flag: getattr(config, flag) for flag in ("text_a", "text_b", "label", "encoding")}
        flags.update(quantize="int8", quantize_file=config.input_file)
    flags.update(max_accuracy_drop=1.0, overwrite=config.overwrite)  # what is lost is what the table shows
    export_pair(ExportConfig(model_path=str(folder), output_dir=str(exported), format="onnx", **flags))
    return exported


def compare(
    predictors: Dict[str, PairPredictor],
    sizes: Dict[str, str],
    pairs: Pairs,
    config: CompareModelsConfig,
    unseen: np.ndarray,
) -> List[Dict[str, Any]]:
    """Return what models.json says of every model, the first of which is the measure of the others.

    ``sizes``: the layers of each and their width, in words; ``unseen`` bool [rows]: that no model was
    trained on, whose accuracy is told as well if they are not all. The accuracy is that of the model's own
    threshold, or of the likeliest class, as it predicts; the intervals are a bootstrap over the same rows for
    all.
    """
    texts = list(zip(pairs.left, pairs.right))
    with CountProgress(len(texts) * len(predictors), "pair") as progress:
        logits, seconds = answer_in_turn(predictors, texts, progress.advance)
    latencies = _latencies(predictors, texts[:ALONE])
    classes = {name: each.prediction_of(logits[name]).classes for name, each in predictors.items()}
    hits = {name: (each == pairs.known_labels).astype(np.float64) for name, each in classes.items()}
    drawn = list(resamples(len(pairs), config.bootstrap, config.seed))
    is_partly_unseen = 0 < unseen.sum() < len(unseen)

    def with_interval(name: str, values: np.ndarray) -> Dict[str, Any]:
        means = np.array([values @ counts / len(values) for counts in drawn])
        return {name: float(values.mean()), f"{name}_interval": percentile_interval(means)}

    first = next(iter(predictors))
    return [
        {
            "name": name,
            "size": sizes[name],
            "precision": predictor.precision,
            "threshold": 0.5
            if predictor.threshold is None and predictor.num_classes == 2
            else predictor.threshold,
            **with_interval("accuracy", hits[name]),
            **with_interval("difference", hits[name] - hits[first]),
            **({"accuracy_unseen": float(hits[name][unseen].mean())} if is_partly_unseen else {}),
            "agreement": float(np.mean(classes[name] == classes[first])),
            "pairs_per_second": round(len(texts) / seconds[name], 1),
            "times_as_fast": round(seconds[first] / seconds[name], 2),
            "latency_ms": latencies[name],
            "bytes": sum(
                (predictor.exported.folder / file).stat().st_size
                for file in predictor.exported.files_of(predictor.backend)
            ),
        }
        for name, predictor in predictors.items()
    ]


def _latencies(
    predictors: Dict[str, PairPredictor], pairs: Sequence[TextPair]
) -> Dict[str, Dict[str, float]]:
    """Return {model: {p50, p95}}, the milliseconds of one pair from texts to logits; they take turns."""
    taken: Dict[str, List[float]] = {name: [] for name in predictors}
    for predictor in predictors.values():
        for pair in pairs[:WARM_UP]:
            predictor.logits([pair])
    for pair in pairs:
        for name, predictor in predictors.items():
            started = time.perf_counter()
            predictor.logits([pair])
            taken[name].append(1000 * (time.perf_counter() - started))
    return {
        name: {f"p{share}": round(float(np.percentile(each, share)), 3) for share in (50, 95)}
        for name, each in taken.items()
    }


def write_table(files: Sequence[Path], content: Dict[str, Any]) -> str:
    """Write ``content`` to ``files``, which become FILES, and return the Markdown. Raises OSError."""
    numbers, text, page = files
    write_json(numbers, content)
    heads = list(CELLS)
    rows = [[cell(model) for cell in CELLS.values()] for model in content["models"]]
    heads[7] = heads[5]  # the two intervals have the same head
    device = content.get("device", "cpu")
    threads = counted(content["threads"], "thread") if device == "cpu" else device
    title = f"{content['rows']} pairs of {content['input_file']}, ONNX Runtime, {threads}"
    markdown = f"{in_markdown(title)}\n\n{markdown_table(heads, rows)}\n"
    text.write_text(markdown, encoding="utf-8")
    table = Table(title, heads, rows, NOTE)
    page.write_text(page_of_tables("Models compared", [table]), encoding="utf-8")
    return markdown
