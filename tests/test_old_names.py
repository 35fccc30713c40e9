"""Standard terms have replaced the project's earlier names, so that readers find the words they grep for."""

import re
import subprocess

import pytest
from places import ROOT

# Earlier names, each with the name that is used now.
OLD = {
    "pieces_of_batch": "tokenize_batch",
    "twin_of": "continuation_ids",
    "plain_of": "base_ids",
    "UpdateConfig": "PairConfig",
    "EncoderConfig": "PairConfig",
    "MaskingConfig": "MaskingFlags",
    "AmpConfig": "AmpFlags",
    "samples_per_update": "samples_per_step",
    "pairs_per_update": "pairs_per_step",
    "passes_per_update": "count_accumulation_steps",
    "peers": "process_group",
    "Peers": "ProcessGroup",
    "PeerError": "LostProcessError",
    "guesses": "predictions",
    "said_and_true": "confidences_and_hits",
    "share_correct": "accuracy",
    "open_start": "open_initial_model",
    "load_start": "load_initial_weights",
    "load_trained": "load_classifier",
    "ShippedModel": "ExportedModel",
    "read_shipped": "read_exported",
    "run_shipped": "predict_pair",
    "lent_array": "view_array",
    "Replicas": "DataParallel",
    "Perturbation": "Fgm",
    "Objective": "PairLoss",
    "Rhythm": "Schedule",
    "wait_for_the_update": "finish_the_step",
    "optional_library": "import_optional",
    "family_of": "ModelSpec.family",
    "limits_of": "ModelSpec",
    "labels_of": "ModelSpec.labels",
    "mend": "fix",
}


@pytest.fixture(scope="module")
def pages():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    chosen = [name for name in names.split() if name.endswith((".py", ".md", ".sh", ".html"))]
    return {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in chosen
        if name != "tests/test_old_names.py"
    }


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_is_no_longer_used(pages, old):
    found = [name for name, text in pages.items() if re.search(rf"\b{old}\b", text)]
    assert not found, f"write {OLD[old]}"
