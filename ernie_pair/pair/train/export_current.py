"""Export the model that a trainer has in memory."""

from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Dict, Optional, Union

import paddle

from ernie_pair.pair.export.export_config import ExportConfig
from ernie_pair.pair.export.export_pair import export_pair
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.plain_model import PlainModel
from ernie_pair.pair.model.saved_model import save_classifier


def export_current(
    folder: Path,
    model: Union[PairClassifier, PlainModel],
    vocab_file: Path,
    max_seq_len: int,
    from_folder: Optional[Path],
    flags: Dict[str, Any],
) -> None:
    """Export ``model`` to ``folder``; ``flags`` are those of `ExportConfig`.

    ``max_seq_len`` and ``from_folder`` are those of `save_classifier`. ``model`` stays as it is. Raises as
    `export_pair`.
    """
    device = paddle.get_device()  # an export is made on the CPU
    with TemporaryDirectory(prefix="ernie-pair-") as draft:
        trained = Path(draft) / "trained"
        config = ExportConfig(str(trained), str(folder), **{"model_class": model.spec.model_class, **flags})
        save_classifier(trained, model, vocab_file, max_seq_len, from_folder)
        try:
            export_pair(config, deepcopy(model) if isinstance(model, PlainModel) else None)
        finally:
            paddle.set_device(device)
