"""What a search finds, and how a classifier orders it."""

from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from ernie_pair.inference.ranking import best_places


class Hit(NamedTuple):
    """A text of the index that may answer a query."""

    id: str
    text: str
    score: float  # of the classifier, a probability where it has classes; without one the similarity
    similarity: float  # the cosine of the embeddings, from -1 to 1

    def content(self, digits: int) -> Dict[str, object]:
        """Return the hit as JSON holds it, numbers rounded to ``digits``."""
        return {
            "id": self.id,
            "text": self.text,
            "score": round(self.score, digits),
            "similarity": round(self.similarity, digits),
        }


def rerank(
    hits: Sequence[Hit], scores: np.ndarray, top_k: int, threshold: Optional[float] = None
) -> List[Hit]:
    """Return the ``top_k`` hits by their ``scores`` [N], the best first; of equals the one recalled first.

    Those whose score is below ``threshold`` are left out.
    """
    ordered = [hits[place]._replace(score=float(scores[place])) for place in best_places(scores, top_k)]
    return [hit for hit in ordered if threshold is None or hit.score >= threshold]
