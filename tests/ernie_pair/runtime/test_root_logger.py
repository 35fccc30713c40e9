"""What other libraries log once Paddle is imported."""

import pytest
from children import python

PROGRAM = """
import logging, ernie_pair, paddle
root = logging.getLogger()
{own}
from ernie_pair.runtime.device import quiet_libraries
quiet_libraries()
logging.getLogger("a.library").info("an INFO line")
logging.getLogger("a.library").warning("a warning")
"""


@pytest.mark.parametrize(
    "own, is_shown", [("", 0), ("root.addHandler(logging.NullHandler()); root.setLevel('INFO')", 1)]
)
def test_info_lines_of_libraries_are_shown_only_if_asked_for(own, is_shown):
    said = python("-c", PROGRAM.format(own=own)).stderr
    assert said.count("an INFO line") == is_shown and said.count("a warning") == 1
