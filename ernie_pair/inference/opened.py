"""What `load` returns: a folder that answers what it can, and says of anything else which folder does."""

from typing import Any, Dict

from ernie_pair.commands import python_function
from ernie_pair.core.errors import InputError

PAIRS = "a model of pairs, made by ernie_pair.train or export"
ABLE = {
    **dict.fromkeys(("predict", "explain"), PAIRS),
    "rank": "a model of pairs or an embedding model",
    "embed": "an embedding model, made by ernie_pair.train_embedding or export",
    "search": "an index, made by ernie_pair.index",
}


class OpenedFolder:
    """A folder that was opened. ``kind``: what it is; ``measured``: the options by which it is evaluated."""

    kind = ""
    measured: Dict[str, Any] = {}

    def evaluate(self, input_file: Any, **options: Any) -> Dict[str, Any]:
        """Return what `ernie-pair evaluate` measures of the folder on ``input_file``, with its ``options``.

        The file has labelled pairs, of an index questions. The folder is opened anew. Raises InputError.
        """
        return python_function("evaluate")(input_file=input_file, **{**self.measured, **options})

    def predict(self, *given: Any, **named: Any) -> Any:
        """Raise InputError: only a model of pairs can."""
        raise self._cannot("predict")

    def explain(self, *given: Any, **named: Any) -> Any:
        """Raise InputError: only a model of pairs can."""
        raise self._cannot("explain")

    def rank(self, *given: Any, **named: Any) -> Any:
        """Raise InputError: only a model can."""
        raise self._cannot("rank")

    def embed(self, *given: Any, **named: Any) -> Any:
        """Raise InputError: only an embedding model can."""
        raise self._cannot("embed")

    def search(self, *given: Any, **named: Any) -> Any:
        """Raise InputError: only an index can."""
        raise self._cannot("search")

    def _cannot(self, name: str) -> InputError:
        return InputError(f"{self.kind} cannot {name}; load the folder of {ABLE[name]}")
