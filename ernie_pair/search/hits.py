"""The hits of a search, and their ranking by a classifier."""

from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from ernie_pair.inference.ranking import best_places


class Hit(NamedTuple):
    """A text of the index that may answer a query."""

    id: str
    text: str
    score: float  # of the classifier, a probability if it has classes; without a classifier the similarity
    similarity: float  # the cosine of the embeddings, from -1 to 1; of some models their product

    def content(self, digits: int) -> Dict[str, object]:
        """Return the hit as JSON content, numbers rounded to ``digits``."""
        return {
            "id": self.id,
            "text": self.text,
            "score": round(self.score, digits),
            "similarity": round(self.similarity, digits),
        }


def rerank(
    hits: Sequence[Hit], scores: np.ndarray, top_k: int, threshold: Optional[float] = None
) -> List[Hit]:
    """Return the ``top_k`` hits by their ``scores`` [N], the best first; ties in the order of retrieval.

    Hits with a score below ``threshold`` are dropped.
    """
    ordered = [hits[place]._replace(score=float(scores[place])) for place in best_places(scores, top_k)]
    return [hit for hit in ordered if threshold is None or hit.score >= threshold]
