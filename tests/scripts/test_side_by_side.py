"""Benchmark lanes take turns, and their figures are shown; the peer is a small script."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import bench
import pytest
import readme_block
import side_by_side_table
from bench import CASES, BenchConfig, compare
from fake_peer import write_fake_peer
from other_libraries.client import PATH_OF_PEER
from places import ROOT
from side_by_side import cases, turns, waiting
from side_by_side.cases import Case, Shape
from side_by_side.lanes import Lane, Turn, TurnPlan, case_figures, measure_lanes, ratio_of
from small_bench import small_bench

from ernie_pair.core.errors import InputError
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.runtime import cpu as malloc
from ernie_pair.runtime.cpu import cpu_level, has_bf16

# A lane that records its turns in a file and exits at the given step.
LANE = """
import sys
from pathlib import Path
from side_by_side.turns import Turns
name, path, ending = sys.argv[1], sys.argv[2], int(sys.argv[3])
turns = Turns()
print("what a library says")
turns.begin()
for step in range(1, 100):
    if step == ending:
        sys.exit("no more")
    with open(path, "a") as file:
        file.write(name)
    turns.end_step()
"""
# What the benchmarks run with a peer's Python: a query of its versions, and lanes.
PEER = """
import sys
from pathlib import Path
if sys.argv[1] == "-c":
    print("2.0 4.0 False")
else:
    import json
    from side_by_side.turns import Turns
    spec = json.load(open(sys.argv[3]))
    assert sys.argv[2] == "side_by_side.peer.lane"
    if "batches" in spec:
        assert spec["model"]["num_hidden_layers"] == 1
        import numpy
        with numpy.load(spec["batches"]) as stored:
            assert {stored[name].dtype.kind for name in stored.files} == {"i"}
    turns = Turns()
    turns.begin()
    while True:
        sum(range(10**5))
        turns.end_step(loss=1.0)
"""


def lane(name, path, ending=0, **settings):
    command = [sys.executable, "-c", LANE, name, str(path), str(ending)]
    return Lane(name, "ours", "fp32", command, environment=PATH_OF_PEER, **settings)


def test_lanes_take_turns_in_alternating_order(tmp_path):
    told = tmp_path / "told"
    plan = TurnPlan(warmup=1, steps=2, rounds=3)
    lanes = [lane("a", told), lane("b", told)]
    measure_lanes(lanes, plan, threads=1)
    assert told.read_text() == "ab" + "aabb" + "bbaa" + "aabb"
    assert [len(each.turns) for each in lanes] == [3, 3]
    assert all(turn.seconds > 0 and turn.memory_gb > 0 for each in lanes for turn in each.turns)


@pytest.mark.parametrize("ending", [1, 3])
def test_a_lane_that_exits_is_reported_with_its_last_line(tmp_path, ending):
    with pytest.raises(InputError, match="the lane b ended with code 1: no more"):
        lanes = [lane("a", tmp_path / "told"), lane("b", tmp_path / "told", ending)]
        measure_lanes(lanes, TurnPlan(1, 1, 3), threads=1)


def test_a_ratio_is_of_medians_with_the_range_over_rounds():
    assert ratio_of([2.0, 4.0, 12.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 4.0)
    assert ratio_of([], [1.0]) == ()


def measured(name, side, precision, seconds):
    return Lane(name, side, precision, turns=[Turn(each, each / 2, 1.5) for each in seconds])


def test_figures_compare_like_with_like():
    case = case_figures(
        "case",
        "a batch",
        [
            measured("plain fp32", "ours", "fp32", [2.0, 2.0]),
            measured("fused bf16", "ours", "bf16", [1.0, 1.0]),
            measured("peer bf16", "peer", "bf16", [3.0, 5.0]),
            measured("peer defaults", "peer", "fp32", [8.0, 8.0]),
        ],
    )
    fused = case["lanes"][1]
    assert (fused["step_seconds"], fused["step_cpu_seconds"], fused["memory_gb"]) == (1.0, 0.5, 1.5)
    assert {(ratio["ours"], ratio["other"]): ratio["wall"] for ratio in case["ratios"]} == {
        ("plain fp32", "peer defaults"): 4.0,
        ("fused bf16", "plain fp32"): 2.0,
        ("fused bf16", "peer bf16"): 4.0,
        ("fused bf16", "peer defaults"): 8.0,
    }


def test_figures_are_written_and_not_overwritten(tmp_path, capsys, monkeypatch):
    case = Case(
        "a {num_hidden_layers}",
        "a batch",
        Shape(3),
        lambda *_: [measured("plain fp32", "ours", "fp32", [2.0])],
    )
    monkeypatch.setattr(bench, "CASES", {"one": case, "two": case})
    config = BenchConfig("p", "v", output=str(tmp_path / "out.json"), device="cpu")
    compare(config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json"]
    assert [each["name"] for each in json.loads((tmp_path / "out.json").read_text())["cases"]] == ["a 3"] * 2
    assert "| plain fp32 | 1,000.0 " in capsys.readouterr().out
    with pytest.raises(InputError, match="out.json exists; "):
        compare(config)


@pytest.fixture
def lanes_of(tmp_path, monkeypatch):
    """A function that measures a case beside a peer without torch, in small; returns its lanes by name."""
    peer, measure = write_fake_peer(tmp_path, PEER), small_bench(tmp_path, monkeypatch)

    def lanes(case, **flags):
        return {each["name"]: each for each in measure(case, peer, **flags)["lanes"]}

    return lanes


def test_pair_training_is_measured_beside_a_peer(lanes_of, capsys):
    lanes = lanes_of("pair-small", lanes="plain fp32, peer fp32")
    assert set(lanes) == {"plain fp32", "peer fp32"}
    assert all(lane["step_cpu_seconds"] > 0 and lane["memory_gb"] > 0 for lane in lanes.values())
    shown = capsys.readouterr().out
    assert "| plain fp32" in shown and "torch 2.0, transformers 4.0" in shown
    with pytest.raises(InputError, match="lanes fast is not a lane of this case; use some of plain fp32, "):
        lanes_of("pair-small", lanes="fast", overwrite=True)


def test_a_large_case_has_one_precision_after_the_other(lanes_of, monkeypatch):
    """All of them at once need more memory than most machines have."""
    measure, together = cases.measure_lanes, []

    def measured_together(lanes, *plan):
        together.append([lane.name for lane in lanes])
        measure(lanes, *plan)

    monkeypatch.setattr(cases, "measure_lanes", measured_together)
    lanes = lanes_of("pretrain-base")
    ways = cases.ways_of(PretrainConfig, "cpu")
    precisions = ("fp32", "bf16")
    best = {each: [name for name in ways if name.endswith(each)][-1:] for each in precisions}
    measured = ["fp32", "bf16"] if has_bf16(cpu_level()) else ["fp32"]  # the peer would emulate bfloat16
    assert together == [[*best[one], f"peer {one}"] for one in measured]
    assert set(lanes) == {name for names in together for name in names}


def test_mixed_rows_have_every_length():
    rows = cases.mixed_rows([("一二三四五", "六七"), ("八", "九十")] * 200, 40)
    lengths = {len(left) + len(right) + 3 for left, right in rows}
    assert lengths == set(range(8, 41)) and all(left and right for left, right in rows)


@pytest.mark.parametrize("flags, error", [
    ({"device": "gpu"}, "device gpu, but "),
    ({"peer_python": "/nowhere/python"}, "No such file or directory; give a Python"),
    ({"peer_python": "/bin/false"}, "install torch and transformers in its environment"),
    ({"cases": "ask-small,tea"}, "cases tea is not a case; use some of pair-small, "),
])  # fmt: skip
def test_an_unusable_device_or_peer_is_a_one_line_error(flags, error):
    with pytest.raises(InputError, match=error):
        compare(BenchConfig("p", "v", **{"device": "cpu", **flags}))


def test_every_case_has_a_name_of_its_own():
    names = {case.name.format(**vars(case.shape)) for case in CASES.values()}
    assert len(names) == len(CASES) == len(BenchConfig("p", "v").chosen_cases())


def test_too_few_responses_for_a_latency_are_an_error():
    """The service responds only after the measured time is over."""

    async def measure():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.2)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            writer.close()

        service = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with service:
            port = service.sockets[0].getsockname()[1]
            await waiting.milliseconds_of(port, [b"{}"], 1, 0.1)

    with pytest.raises(InputError, match=r"^[01] requests were answered in 0\.1 s; pass more seconds$"):
        asyncio.run(measure())


def test_lanes_use_the_allocator_settings_of_this_package():
    assert turns.MALLOC_SETTINGS == malloc.MALLOC_SETTINGS


def test_processor_time_includes_threads_that_ended():
    spin = "import threading, time, sys; n = [0]; f = lambda: [n.append(0) for _ in range(10**6)]; "
    spin += (
        "t = threading.Thread(target=f); t.start(); t.join(); print(time.process_time(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        spent = float(process.stdout.readline())
        assert spent <= waiting.processor_seconds(process.pid) < spent + 0.5
        process.communicate(b"\n")


@pytest.fixture
def pages(tmp_path, monkeypatch) -> Path:
    (tmp_path / "docs" / "zh").mkdir(parents=True)
    for page in (*readme_block.PAGES, "docs/zh/speed.md"):
        (tmp_path / page).write_text("a\n<!-- side by side -->\nold\n<!-- end of side by side -->\nb\n")
    monkeypatch.setattr(readme_block, "ROOT", tmp_path)
    monkeypatch.setattr(side_by_side_table, "PUBLISHED", tmp_path / "side_by_side.csv")
    monkeypatch.setattr(side_by_side_table, "MACHINES", tmp_path / "machines.csv")
    monkeypatch.setattr(side_by_side_table, "PICTURE", tmp_path / "picture.png")
    monkeypatch.setattr(side_by_side_table, "is_in_readme", side_by_side_table.is_main)
    return tmp_path


def write_figures(path: Path, name: str, processor: str = "fast", instructions: str = "all") -> Path:
    """Write the figures of one case, whose ratios are 2, and return their file."""
    ratio = {"cpu": 2.0, "cpu_low": 1.5, "cpu_high": 2.25}
    others = ("peer fp32", "peer defaults", "plain fp32")
    ratios = [{"ours": "fused fp32", "other": other, **ratio} for other in others]
    machine = {"processor": processor, "instructions": instructions, "cores": 2, "peer": ""}
    path.write_text(
        json.dumps({"machine": machine, "cases": [{"name": name, "lanes": [], "ratios": ratios}]})
    )
    return path


def test_the_lanes_of_a_case_may_be_in_several_files(pages):
    """Then the rows of the case stand together."""
    files = [write_figures(pages / f"{place}.json", name) for place, name in enumerate(("a", "b", "a"))]
    side_by_side_table.publish(files)
    shown = (pages / "README.md").read_text()
    assert re.findall(r"^\| ([ab]) ", shown, re.M) == ["a", "a", "b"]


def test_figures_of_two_machines_are_not_combined(pages):
    files = [write_figures(pages / f"{name}.json", name, processor=name) for name in ("old", "new")]
    with pytest.raises(InputError, match="another machine"):
        side_by_side_table.publish(files)
    assert "old" in (pages / "README.md").read_text()


def test_figures_of_another_processor_stay_and_old_ones_go(pages):
    """So do those that were measured with part of its instructions."""
    for of, name in (("b", "old"), ("a", "other"), ("b few", "slow"), ("b", "new")):
        processor, *few = of.split()
        side_by_side_table.publish([write_figures(pages / "one.json", name, processor, *few)])
    shown = (pages / "README.md").read_text()
    assert (
        shown.index("processor b, instructions all")
        < shown.index("| new")
        < shown.index("processor b, instructions few")
    )
    assert shown.index("| slow") < shown.index("processor a, instructions all") < shown.index("| other")
    assert "| old" not in shown and (pages / "picture.png").read_bytes().startswith(b"\x89PNG")


SHOWING = readme_block.pages_with(readme_block.SIDE_BY_SIDE)


@pytest.mark.parametrize("page", SHOWING)
def test_the_pages_show_the_published_figures(page):
    """The READMEs a few, docs all that are of interest, each in its language."""
    assert {*readme_block.PAGES, "docs/en/speed.md"} <= set(SHOWING)
    tables = (side_by_side_table.render_machine(*each, page) for each in side_by_side_table.read_figures())
    shown = readme_block.between(readme_block.SIDE_BY_SIDE).search((ROOT / page).read_text(encoding="utf-8"))
    assert shown[0] == "\n\n".join(tables)
