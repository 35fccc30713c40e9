"""An embedding model that counts what it is asked, and chunks so small that an index has several."""

import pytest
from tiny_search import HashEmbedder, use_embedder

from ernie_pair.search import build_index as building
from ernie_pair.search import stored_vectors


@pytest.fixture
def embedder(monkeypatch):
    made = HashEmbedder()
    use_embedder(monkeypatch, made)
    for module in (building, stored_vectors):
        monkeypatch.setattr(module, "CHUNK", 50)
    return made
