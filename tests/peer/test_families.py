"""Every family that the convert page lists gives what transformers gives: ids, states, vectors and logits."""

import pytest
from other_libraries.families import MOST, ROWS, measure

from ernie_pair.models.families import with_counterpart


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_family_gives_what_transformers_gives(request, tmp_path, row):
    ours = next(one for key, one in with_counterpart().items() if row.family in (key, one.model_type))
    name = f"{ours.class_start}Model"
    if row.library == "pinned" and not hasattr(pytest.importorskip("transformers"), name):
        pytest.skip(f"this transformers has no {name}, as the newest has none")
    found = measure(request.getfixturevalue(row.library), row, tmp_path)
    assert found["load"] == "yes"
    assert found["ids"] == 0 and found["of"] > 100
    differences = [found[name] for name in ("hidden states", "pooled", "head")]
    assert all(isinstance(each, float) and each < MOST for each in differences), found
