"""The table of lines beside their limits."""

import count_lines
import pytest

MODULE = """
LISTED = ("seed", "device")
SPLIT = "seed device".split()
BY_NAME = {"seed": FACT, "device": (1, 2)}
OF_A_RUN = {"seed": 1, "device": "cpu"}
FROZEN = frozenset({"seed", "device"})
MADE = [name for name in ("seed", "device")]
ONE, OTHER = ("seed",), ("seed", "words")
class Config:
    inside = ("seed", "device")
"""


def test_lists_of_flags_are_counted_where_they_stand_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(count_lines, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    found = [int(place.rpartition(":")[2]) for place in count_lines.flag_lists_in(path, {"seed", "device"})]
    assert found == [2, 3, 4, 6]


def test_a_passed_limit_ends_with_1(monkeypatch, capsys):
    now = {name: most for name, (most, _) in count_lines.LIMITS.items()}
    monkeypatch.setattr(count_lines, "counts", lambda: now)
    for more, code in ((0, 0), (1, 1)):
        now["lines of tests"] += more
        with pytest.raises(SystemExit) as ended:
            count_lines.main()
        assert ended.value.code == code and ("too many" in capsys.readouterr().out) == code


def test_lines_are_counted_as_git_has_them():
    package = count_lines.lines_in("data_tools/*.py", "ernie_pair/*.py")
    assert package > count_lines.lines_in("data_tools/*.py") > 0
