"""An embedding model as `mteb` evaluates models (Muennighoff et al. 2023, arXiv:2210.07316).

The package mteb is imported only by who evaluates.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np

from data_tools.text.text_files import LineRules, Place
from data_tools.text.texts import READ_AS, TextColumns, read_texts
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.inference.embedder import TextEmbedder
from ernie_pair.inference.vector_files import HINT, VECTORS_JSON, VectorFile, open_vectors

ROLES = {"query": "query", "document": "passage"}  # of mteb: ours


class MtebEncoder:
    """An encoder for ``mteb.evaluate``. ``embedder``: of any folder that `open_embedder` opens.

    ``vectors``: {a folder of `embed`: the file of its texts}, which are not computed again where they are
    read with the same prompt. Raises InputError if the vectors are of another model or file, or the model
    compares otherwise than by cosines or products.
    """

    def __init__(self, embedder: TextEmbedder, vectors: Optional[Mapping[str, str]] = None):
        embedder.settings.check_search(embedder.model.name)
        self.embedder = embedder
        self._stored: Dict[str, Tuple[VectorFile, int]] = {}  # what was read: its row
        for folder, text_file in (vectors or {}).items():
            found, about = open_vectors(folder), read_json_object(Path(folder) / VECTORS_JSON, HINT)
            if found.fingerprint != embedder.fingerprint:
                raise InputError(f"{folder}: its vectors are not of {embedder.model.name}; {HINT}")
            if about.get("texts", {}).get("sha256") != sha256_of_file(Path(text_file)):
                raise InputError(f"{text_file} is not the file that {folder} was made of; {HINT}")
            column, sheet, header_row = (about["texts"].get(name) for name in READ_AS)
            rules = LineRules(place=Place(sheet or "", header_row))
            texts = read_texts(Path(text_file), rules=rules, columns=TextColumns(column or ""))
            for row, named in enumerate(texts):
                self._stored[about.get("prompt", "") + named.text] = found, row

    def encode(
        self, inputs: Iterable[Mapping[str, List[str]]], *, task_metadata, prompt_type=None, **others: Any
    ) -> np.ndarray:
        """Return the vectors of ``inputs``, batches with a list "text", float32 [N, D].

        A text is read behind the prompt that is named like the task or its type, else like ``prompt_type``.
        """
        settings, kind = self.embedder.settings, getattr(prompt_type, "value", None)
        prompt = settings.prompt_of(ROLES[kind]) if kind in ROLES else self.embedder.prompt
        for name in (task_metadata.type, task_metadata.name):  # the last one counts
            prompt = settings.prompts.get(f"{name}-{kind}", settings.prompts.get(name, prompt))
        texts = [text for batch in inputs for text in batch["text"]]
        rows = [self._stored.get(prompt + text) for text in texts]
        made = iter(self.embedder.embed([text for text, row in zip(texts, rows) if row is None], prompt))
        vectors = [next(made) if row is None else row[0].rows(row[1], row[1] + 1)[0] for row in rows]
        return np.stack(vectors) if vectors else np.zeros((0, self.embedder.dim), np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Return the cosines or products, whichever the model says, of all pairs of rows: float32 [N, M]."""
        return self._comparable(embeddings1) @ self._comparable(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Return `similarity` of each row with the row of the same number: float32 [N]."""
        return np.sum(self._comparable(embeddings1) * self._comparable(embeddings2), axis=1)

    def _comparable(self, vectors: Any) -> np.ndarray:
        return self.embedder.comparable(np.atleast_2d(np.asarray(vectors, np.float32)))

    @cached_property
    def mteb_model_meta(self) -> Any:
        """Return mteb's ModelMeta; its revision is the model's fingerprint, by which mteb keeps results."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        name, of = Path(self.embedder.model.name).resolve().name, self.embedder
        about = {"name": f"ernie-pair/{name}", "revision": of.fingerprint, "embed_dim": of.dim}
        about.update(max_tokens=of.max_seq_len, similarity_fn_name=ScoringFunction(of.settings.similarity))
        return ModelMeta.create_empty(about)
