"""Step 6: converter, training of pairs, export, and the predictions of each backend."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List, Tuple

from data_tools.files.errors import NumbersError
from ernie_pair.checks.gpu.run_steps import SmallData
from ernie_pair.checks.gpu.runs import Figures, Lab, Planned, losses_of
from ernie_pair.checks.quickstart import words_of
from ernie_pair.kernels.choice import DTYPES

STEPS, QUICK_STEPS = 60, 10
EXACT, NEARLY = 1e-4, 0.05  # largest difference of a probability
ONNX = ("paddle2onnx", "onnxruntime")  # required to export to ONNX, and to run it
Asked = List[Tuple[int, List[float]]]  # the class and the probabilities of each pair


def plan_models(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of the step."""
    models = _Models(lab, data)
    halves = [(precision, {"precision": precision}, DTYPES[precision]) for precision in ("fp16", "bf16")]
    onnx = "" if all(map(find_spec, ONNX)) else "the extra [onnx]"
    ask, run = models.ask_trained, models.ask_exported
    return [
        Planned("the converter's proof", models.convert),
        Planned("training of pairs from converted weights", models.train),
        Planned("predict, GPU", partial(ask, "gpu", {}, EXACT), lab.lacks()),
        *(
            Planned(f"predict, GPU in {name}", partial(ask, "gpu", flags, NEARLY), lab.lacks(1, dtype))
            for name, flags, dtype in halves
        ),
        Planned("run by Paddle Inference, CPU", partial(run, "cpu", {"backend": "paddle"}, EXACT)),
        Planned("run by ONNX Runtime, CPU", partial(run, "cpu", {"backend": "onnx"}, EXACT), onnx),
        Planned(
            "run by Paddle Inference, GPU",
            partial(run, "gpu", {"backend": "paddle"}, EXACT),
            lab.lacks(),
        ),
        *(
            Planned(
                f"run by Paddle Inference, GPU in {name}",
                partial(run, "gpu", {"backend": "paddle", **flags}, NEARLY),
                lab.lacks(1, dtype),
            )
            for name, flags, dtype in halves
        ),
    ]


class _Models:
    """The models of the step, each made once, and their predictions for the test pairs."""

    def __init__(self, lab: Lab, data: SmallData):
        self._lab, self._data = lab, data
        self._folder = lab.folder / "models"
        self._steps = QUICK_STEPS if lab.quick else STEPS

    def convert(self) -> Figures:
        """Convert static weights, and return the largest difference of each output."""
        record = json.loads((self._converted() / "conversion.json").read_text(encoding="utf-8"))
        found = {name: max(batches.values()) for name, batches in record["largest_difference"].items()}
        return {f"largest difference, {name}": value for name, value in found.items()}

    def train(self) -> Figures:
        """Train on pairs from the converted weights, and return the losses of the first and the last step."""
        losses = losses_of(self._trained())
        return {"first loss": losses[0], "last loss": losses[-1]}

    def ask_trained(self, device: str, flags: Dict[str, Any], most: float) -> Figures:
        """Compare the probabilities of the trained model with those that it gives on the CPU."""
        return _compare(self._predict(device, flags), self._on_cpu(), most)

    def ask_exported(self, device: str, flags: Dict[str, Any], most: float) -> Figures:
        """Compare the probabilities of the exported model with those of the trained one on the CPU."""
        model, asked = self._exported(), self._answers(f"run {device} {flags}")
        words = words_of("run", model=model, input_file=self._test(), output_file=asked, scores="true")
        self._lab.run([*words, *words_of(device=device, **flags)])
        return _compare(_read(asked), self._on_cpu(), most)

    def _on_cpu(self) -> Asked:
        return self._lab.once("answers on the CPU", partial(self._predict, "cpu", {"kernels": "plain"}))

    def _predict(self, device: str, flags: Dict[str, Any]) -> Asked:
        model, asked = self._trained() / "best", self._answers(f"predict {device} {flags}")
        paths = {"model_path": model, "input_file": self._test(), "output_file": asked}
        self._lab.run(words_of("predict", **paths, scores="true", device=device, **flags))
        return _read(asked)

    def _answers(self, name: str) -> Path:
        return self._folder / ("".join(c if c.isalnum() else "_" for c in name) + ".tsv")

    def _test(self) -> Path:
        return self._data.pairs / "test.tsv"

    def _converted(self) -> Path:
        def make() -> Path:
            pretrained = self._folder / "pretrained"
            self._lab.run(self._data.pretrain_words(pretrained, max_steps=self._steps))
            static, folder = pretrained / "model_last" / "static_vars", self._folder / "dynamic"
            self._lab.run(words_of("convert", static_model_path=static, output_dir=folder))
            return folder

        return self._lab.once("converted model", make)

    def _trained(self) -> Path:
        def make() -> Path:
            output = self._folder / "pairs"
            start = {"model_name_or_path": self._converted()}
            self._lab.run(self._data.train_words(output, max_steps=self._steps, **start))
            return output

        return self._lab.once("trained model", make)

    def _exported(self) -> Path:
        def make() -> Path:
            folder = self._folder / "ship"
            kind = "both" if all(map(find_spec, ONNX)) else "paddle"
            model = self._trained() / "best"
            self._lab.run(words_of("export", model_path=model, output_dir=folder, format=kind))
            return folder

        return self._lab.once("exported model", make)


def _read(predictions: Path) -> Asked:
    header, *rows = (line.split("\t") for line in predictions.read_text(encoding="utf-8").splitlines())
    scores = [place for place, name in enumerate(header) if name.startswith("probability_")]
    chosen = header.index("prediction")
    return [(int(row[chosen]), [float(row[place]) for place in scores]) for row in rows]


def _compare(found: Asked, wanted: Asked, most: float) -> Figures:
    """Return the difference between two files of predictions. Raises NumbersError above ``most``."""
    if len(found) != len(wanted) or not wanted:
        raise NumbersError(f"{len(found)} pairs were predicted, but {len(wanted)} on the CPU")
    differences = [
        abs(one - other) for (_, mine), (_, theirs) in zip(found, wanted) for one, other in zip(mine, theirs)
    ]
    largest = float("nan") if any(each != each for each in differences) else max(differences)
    agreement = sum(mine == theirs for (mine, _), (theirs, _) in zip(found, wanted)) / len(wanted)
    if not largest <= most:
        raise NumbersError(
            f"a probability differs by {largest:.3g} from that of the CPU, above {most:g}; the class is the "
            f"same for {agreement:.4f} of {len(wanted)} pairs"
        )
    return {"largest difference of a probability": largest, "same class": agreement, "pairs": len(wanted)}
