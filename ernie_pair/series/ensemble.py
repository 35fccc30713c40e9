"""Several trained classifiers measured, calibrated and exported as one: the mean of their logits.

The logits of each model are divided by its temperature. B batch, S sequence, C classes.
"""

import json
import logging
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import paddle
from paddle import nn

from data_tools.files.errors import InputError
from data_tools.files.progress import say
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.inference.scores import refuse_threshold
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.labels import refuse_no_classes
from ernie_pair.models.networks.classifier import PairClassifier, load_classifier
from ernie_pair.models.networks.kernel_path import choose_path, logits_of
from ernie_pair.models.source import model_folder_of
from ernie_pair.models.temperature import Calibration, read_calibration, score_pairs
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.data.encoded_pairs import encode_texts
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import Columns, RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.targets.metrics import METRICS, measure
from ernie_pair.report.page import Table
from ernie_pair.report.plot_runs import short_names
from ernie_pair.score.evaluation.calibration import fit_temperature, is_at_the_end
from ernie_pair.score.evaluation.evaluate_pair import refuse_one_class, with_threshold
from ernie_pair.score.evaluation.evaluation import Answers, Fitted, Scored, evaluation_of, thresholds_of
from ernie_pair.score.evaluation.evaluation_report import FILES, write_report
from ernie_pair.score.export.export_pair import Source, publish_export
from ernie_pair.series.config import EnsembleConfig
from ernie_pair.series.series import SHOWN, defined, metric_cells, points_of, report_series
from ernie_pair.train.process_group import ProcessGroup

REPORT = "report"

logger = logging.getLogger(__name__)


class Member(NamedTuple):
    """A model of the ensemble, from the folder ``path``, and how its own logits were calibrated."""

    path: Path
    model: PairClassifier
    vocab_file: Path
    calibration: Calibration

    def tokenizer(self, max_seq_len: int) -> AnyTokenizer:
        """Return its tokenizer. Raises InputError when it reads no ``max_seq_len`` tokens at once."""
        return open_tokenizer(self.vocab_file, self.model.spec, max_seq_len)


class EnsembleClassifier(nn.Layer):
    """A classifier of several; it can be exported as each of them can."""

    def __init__(self, members: Sequence[Member]):
        super().__init__()
        self.models = nn.LayerList([member.model for member in members])
        shares = [1 / (member.calibration.temperature * len(members)) for member in members]
        # Of a scale by a number behind a sum Paddle Inference 2.6.2 makes another answer, in its pass
        # operator_scale_onednn_fuse_pass; a product with a tensor it leaves alone.
        self.register_buffer("shares", paddle.to_tensor(shares, dtype="float32"))
        first = members[0].model
        self.spec, self.num_classes = first.spec, first.num_classes
        self.family = ", ".join(dict.fromkeys(member.model.family for member in members))
        ways = [member.model.way for member in members]
        self.way = next((way for way in ways if way.takes_types), ways[0])

    def forward(self, input_ids, token_type_ids):
        """Return the logits [B, C] of ids and token types int64 [B, S]."""
        logits_BC = self.models[0](input_ids, token_type_ids) * self.shares[0]
        for number in range(1, len(self.models)):
            logits_BC = logits_BC + self.models[number](input_ids, token_type_ids) * self.shares[number]
        return logits_BC


def open_members(paths: Sequence[str], model_class: str) -> List[Member]:
    """Open the models. Raises InputError if they are not of the same classes and the same vocabulary."""
    members: List[Member] = []
    for folder in [model_folder_of(Path(path)) for path in paths]:
        model, vocab_file = load_classifier(str(folder), model_class)
        refuse_no_classes(model.spec.labels, str(folder), "ensemble")
        members.append(Member(folder, model, vocab_file, read_calibration(folder, model.num_classes)))
    for number, member in enumerate(members):
        if any(member.path.samefile(other.path) for other in members[:number]):
            raise InputError(f"{member.path} is named twice; name each model once")
        first, spec, other = members[0], member.model.spec, members[0].model.spec
        if spec.labels.names != other.labels.names:  # the logits mean different things
            raise InputError(
                f"{member.path} has the classes {', '.join(spec.labels.names)}, and {first.path} "
                f"{', '.join(other.labels.names)}; give models of the same classes in the same order"
            )
        same_ids = member.tokenizer(0).sha256 == first.tokenizer(0).sha256
        if not same_ids or spec.lower_case != other.lower_case:
            raise InputError(
                f"{member.vocab_file} gives a text other ids than {first.vocab_file}: one exported model has "
                "one vocabulary; give models of the same one, or export each by itself"
            )
    return members


def symmetry_of(members: Sequence[Member], requested: str) -> str:
    """Return how pairs are scored: as ``requested``, auto as all were tuned, else raises InputError."""
    chosen = [member.calibration.chosen_symmetry(requested, str(member.path)) for member in members]
    for member, one in zip(members, chosen):
        if one != chosen[0]:
            raise InputError(
                f"{member.path} is scored with --symmetric {one}, and {members[0].path} with {chosen[0]}; "
                "pass --symmetric average or none, a model tuned the other way first: ernie-pair evaluate "
                "--symmetric average --calibrate_on FILE --save_temperature true"
            )
    return chosen[0]


class Measured(NamedTuple):
    """What the members, by their names, and the ensemble are on --dev_file, and what a report says."""

    members: Dict[str, Dict[str, float]]
    evaluation: Dict[str, Any]
    answers: Answers

    @property
    def rows(self) -> List[List[Any]]:
        """Return the rows of a table: a name and METRICS of each member and of the ensemble."""
        metrics = {name: defined(values) for name, values in self.members.items()}
        metrics["the ensemble"] = self.evaluation
        return [[name, *(values[metric] for metric in METRICS)] for name, values in metrics.items()]


def ensemble(config: EnsembleConfig) -> None:
    """Write an exported model to ``output_dir``, and print the metrics of each model and of the ensemble.

    Raises InputError for models that cannot be combined or for existing files that would be overwritten,
    CheckpointError if the predictions of the exported model differ from the mean of the models; then nothing
    is written.
    """
    folders = [model_folder_of(Path(path)) for path in config.models]
    work = _Ensemble(config)
    if not publish_export(config, "ensemble", {"models": folders}, work.open):
        return
    logger.info("exported the ensemble of %d models to %s", len(folders), config.output_dir)
    if work.measured is not None:
        output_dir = Path(f"{config.output_dir}-log")
        evaluation, members = work.measured.evaluation, list(work.measured.members.values())
        points = points_of("member", members, "ensemble", evaluation)
        report_series(config.reporters, output_dir, asdict(config), points)
        width = max(len(row[0]) for row in work.measured.rows)
        say("  ".join(["model".ljust(width), *(name.rjust(8) for name in SHOWN)]))
        for name, *values in work.measured.rows:
            say(f"{name:<{width}}  {metric_cells(dict(zip(METRICS, values)), '-')}")
        say(json.dumps({name: evaluation[name] for name in (*METRICS, "rows")}))


class _Ensemble:
    """The models of an ensemble, from their folders to what is exported."""

    def __init__(self, config: EnsembleConfig):
        self.config = config
        self.measured: Optional[Measured] = None
        self.tuning: Optional[Scored] = None  # what the threshold was chosen on
        self.names: List[str] = []

    def open(self) -> Source:
        config = self.config
        self.members = open_members(config.models, config.model_class)
        self.names = short_names([member.path for member in self.members])
        # Without --max_seq_len the least that a model was trained with.
        lengths = [member.model.spec.inference_length for member in self.members]
        self.max_seq_len = config.max_seq_len or min(lengths)
        for member in self.members:
            member.tokenizer(self.max_seq_len)  # refuses more than the model reads at once
        self.symmetric = symmetry_of(self.members, config.symmetric)
        spec = self.members[0].model.spec
        refuse_threshold(config.threshold, spec.num_labels, "the ensemble")
        tokenizer = self.members[0].tokenizer(self.max_seq_len)
        judged, fitted = self._read("dev_file"), self._fitted()
        of_fitted = {} if fitted is None else fitted._asdict()
        calibration = Calibration(**of_fitted, threshold=config.threshold, symmetric=self.symmetric)
        calibration = self._tuned(calibration)
        if judged is not None:
            self.measured = self._measure(judged, fitted, calibration)
        return Source(
            EnsembleClassifier(self.members),
            self.members[0].vocab_file,
            tokenizer,
            self.max_seq_len,
            calibration,
            f"an ensemble of {', '.join(self.names)}",
            {"ensemble": self._facts(fitted, calibration)},
            None if self.measured is None else partial(_write_report, config, self.measured),
        )

    def _read(self, flag: str) -> Optional[Pairs]:
        config, name = self.config, getattr(self.config, flag)
        if not name:
            return None
        labels = self.members[0].model.spec.labels
        columns = Columns(config.text_a, config.text_b, config.label)
        return PairSource(flag, name, "dev", labels, columns, RowRules(config.encoding)).read()

    def _logits(self, pairs: Pairs) -> List[np.ndarray]:
        """Return the logits of each model at its temperature, float32 [N, C]."""

        def logits_by(member: Member, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
            rows = encode_texts(left, right, None, member.tokenizer(self.max_seq_len), self.max_seq_len)
            choose_path(member.model, KernelFlags(), "cpu")
            logits = logits_of(member.model, rows, self.config.batch_size, ProcessGroup())
            choose_path(member.model, KernelFlags(kernels="plain"), "cpu")  # which alone can be exported
            return logits / np.float32(member.calibration.temperature)

        scored = []
        for member in self.members:
            scored.append(score_pairs(partial(logits_by, member), pairs.left, pairs.right, self.symmetric))
            logger.info("%s has scored %d pairs", member.path, len(pairs))
        return scored

    def _fitted(self) -> Optional[Fitted]:
        pairs = self._read("calibrate_on")
        if pairs is None:
            return None
        temperature = fit_temperature(mean_of(self._logits(pairs)), pairs.known_labels)
        if is_at_the_end(temperature):
            raise InputError(
                f"--calibrate_on {pairs.path}: the temperature {temperature:.3g} fitted on its {len(pairs)} "
                "rows is at the end of its range and therefore meaningless; give more rows, which no model "
                "has learned, or leave it out"
            )
        return Fitted(temperature, pairs.path, len(pairs), pairs.sha256)

    def _tuned(self, calibration: Calibration) -> Calibration:
        """Return ``calibration`` with the threshold chosen on --tune_on, if given. Raises InputError."""
        pairs, names = self._read("tune_on"), self.members[0].model.spec.labels.names
        if pairs is None:
            return calibration
        if len(names) != 2:
            raise InputError(
                f"--tune_on chooses a threshold of two classes, the ensemble has {len(names)}; leave it out"
            )
        refuse_one_class("tune_on", pairs, len(names))
        self.tuning = Scored(pairs, mean_of(self._logits(pairs)))
        in_use = calibration.temperature
        answers = Answers(pairs, names, self.tuning.logits, None, in_use, Fitted(in_use, "", None))
        thresholds = thresholds_of(answers, self.config.at_precision)
        assert thresholds is not None  # of two classes that both occur
        return with_threshold(calibration, thresholds, f"--tune_on {pairs.path}")

    def _measure(self, pairs: Pairs, fitted: Optional[Fitted], calibration: Calibration) -> Measured:
        if fitted is not None and fitted.fitted_on_sha256 == pairs.sha256:
            raise InputError(
                f"--calibrate_on {fitted.fitted_on} holds the pairs of --dev_file itself; give other "
                "labelled pairs"
            )
        logits = self._logits(pairs)
        mean, labels = mean_of(logits), pairs.known_labels
        judged = fitted or Fitted(fit_temperature(mean, labels), pairs.path, len(pairs), pairs.sha256)
        names, in_use = self.members[0].model.spec.labels.names, calibration.temperature
        answers = Answers(pairs, names, mean, None, in_use, judged, self.symmetric, self.tuning, calibration)
        config, model = self.config, f"an ensemble of {', '.join(self.names)}"
        flags: Dict[str, Any] = {"bootstrap": config.bootstrap, "at_precision": config.at_precision}
        report = str(Path(config.output_dir) / REPORT)
        settings = EvaluateConfig(model, config.dev_file, report, **flags)
        members = {name: measure(one, labels) for name, one in zip(self.names, logits)}
        return Measured(members, evaluation_of(answers, settings), answers)

    def _facts(self, fitted: Optional[Fitted], calibration: Calibration) -> Dict[str, Any]:
        """Return what export.json says of the members, and of what was fitted, chosen and measured."""
        measured = self.measured
        members: List[Dict[str, Any]] = [
            {"model": name, "family": member.model.family, "temperature": member.calibration.temperature}
            for name, member in zip(self.names, self.members)
        ]
        facts: Dict[str, Any] = {"members": members}
        if fitted is not None:
            facts["calibration"] = {"rows": fitted.rows, "sha256": fitted.fitted_on_sha256}
        if self.tuning is not None:
            requested, rows = calibration.tuned_for, calibration.tuned_rows
            facts["tuning"] = {"tuned_for": requested, "rows": rows, "sha256": calibration.tuned_on_sha256}
        if measured is not None:
            for member in members:
                member["metrics"] = defined(measured.members[member["model"]])
            facts["metrics"] = {name: measured.evaluation[name] for name in METRICS}
            rows, sha256 = measured.evaluation["rows"], measured.answers.pairs.sha256
            facts["evaluated_on"] = {"rows": rows, "sha256": sha256}
        return facts


def mean_of(logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of logits float32 [N, C], those of each model, as float32 [N, C]."""
    return np.mean(np.stack(logits).astype(np.float64), axis=0).astype(np.float32)


def _write_report(config: EnsembleConfig, measured: Measured, draft: Path) -> None:
    note = "Each model at its own temperature; the ensemble answers with the mean of their logits."
    table = Table("Models", ["", *METRICS], measured.rows, note)
    (draft / REPORT).mkdir()
    files = [draft / REPORT / name for name in FILES]
    write_report(files, measured.evaluation, measured.answers, config.worst_rows, [table])
