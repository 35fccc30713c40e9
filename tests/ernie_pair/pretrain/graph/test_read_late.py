"""A pretraining step reads nothing back from the device until its metrics are needed."""

from pathlib import Path

import pytest
from children import json_of
from tiny_pretrain import write_corpus, write_model


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    write_corpus(folder / "data", write_model(folder / "model"))
    return json_of(Path(__file__).with_name("read_late.py"), folder, timeout=600)


@pytest.mark.parametrize("way", ["plain", "merge", "skip", "no clipping", "recompute", "many passes"])
def test_a_step_fetches_nothing_and_its_metrics_are_the_same(seen, way):
    assert seen[way]["fetches"] == 0 and seen[way]["looks at all ops"] == 0
    # With "skip" the next learning rate depends on skipped steps; 132 passes fill the records every step.
    assert seen[way]["reads"] == {"skip": 6, "many passes": 2}.get(way, 0)
    assert seen[way]["same metrics"] and seen[way]["same evaluation"] and seen[way]["same weights"]


def test_a_held_program_gives_the_same_losses_as_the_executor(seen):
    assert seen["held as run"] and seen["merge"]["passes"] == 3
