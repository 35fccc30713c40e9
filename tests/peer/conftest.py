"""The processes of the other libraries, started once a session, and the published model, if they exist."""

import pytest
from other_libraries.client import MODEL, PYTHON, Peer, minilm_folder, newest_python


@pytest.fixture(scope="session")
def newest():
    """The newest transformers and sentence-transformers, in a process of their own."""
    pytest.importorskip("torch", reason="tests/peer runs by scripts/test_peer.sh")
    python = newest_python()
    if python is None:
        pytest.skip(f"no newest libraries; run scripts/test_peer.sh, or set {PYTHON}")
    with Peer(python) as peer:
        yield peer


@pytest.fixture(scope="session")
def pinned():
    """The transformers of constraints.txt, also in a process of its own."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with Peer() as peer:
        yield peer


@pytest.fixture(scope="session", params=["newest", "pinned"])
def peer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def minilm():
    """The folder of all-MiniLM-L6-v2, which tests only read."""
    folder = minilm_folder()
    if folder is None:
        pytest.skip(f"no published model; run scripts/test_peer.sh, or set {MODEL}")
    return folder
