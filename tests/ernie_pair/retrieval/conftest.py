"""An embedding model that counts what it is asked, and chunks so small that an index has several."""

import pytest
from tiny_search import HashEmbedder, use_embedder

from ernie_pair.retrieval import build_index as building


@pytest.fixture
def embedder(monkeypatch):
    made = HashEmbedder()
    use_embedder(monkeypatch, made)
    monkeypatch.setattr(building, "CHUNK", 50)
    return made
