"""Pair models of any folder as one `PairScorer`: the pairs of files that they score, and result files.

A trained folder is computed by Paddle, an exported or a combined one by its backend, without Paddle.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Union

import numpy as np

from ernie_pair.core.cli.options import paths_in
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_folder import list_content
from ernie_pair.core.files.hub import local_model
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.inference.exported_model import EXPORT_MANIFEST, not_of_pairs
from ernie_pair.inference.predictor import PairPredictor, PairScorer
from ernie_pair.inference.scores import PROBABILITY
from ernie_pair.models.labels import Labels, match_class, spelled_too
from ernie_pair.pairs.config.ask_config import ModelFlags, refuse_flags_of_others
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import CheckedPairs, PairSource
from ernie_pair.pairs.data.rejected import log_rejected, rejected_beside
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World, launched_world


def load(
    folder: Union[str, Path],
    device: str = "cpu",
    threads: int = 0,
    *,
    threshold: Optional[float] = None,
    symmetric: str = "auto",
    batch_tokens: int = 0,
    window_overlap: int = 0,
) -> PairScorer:
    """Open the pair model in ``folder``, trained (of a run, its best) or exported; see `ernie_pair.load`."""
    folder = local_model(str(Path(folder).expanduser()))
    if (Path(folder) / EXPORT_MANIFEST).is_file():
        scorer: PairScorer = PairPredictor(folder, threads=threads, device=device, batch_tokens=batch_tokens)
    else:
        refuse_embedder(folder)
        from ernie_pair.evaluation.inference_model import TrainedScorer  # which loads Paddle

        scorer = TrainedScorer(folder, device, threads=threads, batch_tokens=batch_tokens)
    PROBABILITY.check_inside(threshold)
    scorer.decide_by(threshold, symmetric)
    scorer.use_windows(window_overlap)
    return scorer


def start_logits(start: str, pairs: Pairs, labels: Labels, device: str, family: str = "") -> np.ndarray:
    """Return what the model that a training began from says of ``pairs``, logits float64 [N, 2].

    A classifier of two classes says how sure it is of a match; of any other model it is the cosine of two
    vectors. ``labels``: two classes, in whose order they are; ``family``: that of the trained model, where it
    is known. Raises InputError for a model without weights.
    """
    from ernie_pair.embeddings.open_embedder import settings_of_model
    from ernie_pair.inference.embedder import TextEmbedder
    from ernie_pair.kernels.choice import KernelFlags
    from ernie_pair.models.model_folder import kind_of_folder
    from ernie_pair.models.networks.text_encoder import open_trained  # which loads Paddle
    from ernie_pair.models.source import WRITE_FAMILY, open_model

    source = open_model(start, model_type=family, no_family=WRITE_FAMILY)
    if source.spec.num_labels == 2 and source.folder and not kind_of_folder(str(source.folder)):
        of_match = load(str(source.folder), device).score([*zip(pairs.left, pairs.right)])
    else:
        embedder = TextEmbedder(open_trained(source, settings_of_model(source), device, KernelFlags(), 0))
        left, right = (
            embedder.unit_vectors(pairs.left, "query"),
            embedder.unit_vectors(pairs.right, "passage"),
        )
        of_match = np.einsum("nd,nd->n", left, right, dtype=np.float64)
    both = np.stack([-of_match, of_match], axis=1)
    return both if match_class(labels) else both[:, ::-1]


def refuse_embedder(folder: str) -> None:
    """Raise InputError for an embedding model, trained or exported, or of sentence-transformers."""
    from ernie_pair.models.model_folder import kind_of_folder

    if kind_of_folder(folder) == "embedding":
        raise not_of_pairs(folder)


def open_scorer(config: ModelFlags) -> PairScorer:
    """Open the model that the flags name, in every process. Raises an ErniePairError if they do not fit."""
    is_exported = (Path(config.model_path) / EXPORT_MANIFEST).is_file()
    refuse_flags_of_others(config, is_exported)
    if not is_exported:
        refuse_embedder(config.model_path)
        from ernie_pair.evaluation.inference_model import InferenceModel  # which loads Paddle

        return InferenceModel(config)
    if launched_world().size > 1:
        raise InputError(
            f"{config.model_path} is an exported model, which one process computes; start the command "
            "without a launcher, or with --engine ray"
        )
    start_console(World())
    return PairPredictor.of(config)


def results_of(command: str, config, more: Sequence[Path] = (), but: str = "") -> Results:
    """Return the output_file of ``config``, if any, and ``more``, as results of its model and its pairs.

    ``but``: a file in the model's folder that is no input; what only tells of the model is none either.
    Raises InputError when no file can be written there.
    """
    outputs = [Path(config.output_file)] if config.output_file else []
    for path in outputs:
        if path.is_dir():
            raise InputError(f"--output_file {path} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise InputError(f"--output_file {path}: its folder {path.parent} does not exist; make it first")
    inputs: Dict[str, Sequence[Path]] = {
        name: [path for path in list_content(getattr(config, name)) if path.name != but]
        for name in paths_in(config, "reads")
    }
    named = {name: getattr(config, name) for name, files in inputs.items() if not files}  # sets, models
    settings = {**settings_of(config, *paths_in(config), "batch_size"), **named}
    return Results(command, [*outputs, *more], inputs, settings, config.overwrite, requested=more)


def measured_once(
    command: str, config, measure: Callable[[Any], Dict[str, Any]], but: str = ""
) -> Dict[str, Any]:
    """Return what ``measure`` finds with ``config``, kept in its output_file, if any; once it is, read it.

    ``but``: see `results_of`.
    """
    if not config.output_file:
        return measure(config)
    results = results_of(command, config, but=but)
    if results.are_done():
        return read_json_object(Path(config.output_file), "remove it")
    found = measure(config)
    with results.published() as (draft,):
        write_json(draft, found)
    return found


def read_pairs(
    config, flag: str, labels: Optional[Labels], split: str = "dev", is_first: bool = True
) -> Pairs:
    """Read the pairs of ``flag``; the first process logs which rows are left out. Raises InputError.

    They are written beside the output; two files may have one name, so that of ``flag`` is in theirs.
    """
    source = PairSource.of(config, flag, labels, split)
    label_map = getattr(config, "label_map", None)
    if labels is not None and labels.has_classes and label_map is not None:
        rules = replace(source.rules, most_classes=len(labels.names), match=match_class(labels))
        source = replace(source, labels=spelled_too(labels, label_map), rules=rules)
    pairs = source.read()
    if is_first:
        where = rejected_beside(config.output_file, "" if flag == "input_file" else f".{flag}")
        log_rejected(source.name, pairs.bad, len(pairs), where)
    return pairs


def check_pairs(config, is_first: bool = True) -> CheckedPairs:
    """Check the pairs of input_file, labelled or not, or of the part `test` of a set. Raises InputError."""
    source = PairSource.of(config, "input_file", None, "test")
    return CheckedPairs(source, rejected_beside(config.output_file) if is_first else None)
