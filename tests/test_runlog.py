import json

from visualdl import LogReader

from ernie_pair.loop import TrainState
from ernie_pair.runlog import NullLog, RunLog, open_log
from ernie_pair.world import World


def events(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def log_steps(folder, steps, resumed_at=0):
    log = RunLog(folder, resumed_at=resumed_at, max_steps=9, tokens_per_sample=16)
    for step in steps:
        log.tick(0.5, 8)
        log.scalars("train", {"loss": 1 / 3 + step}, TrainState(step, 8 * step))
    log.close()


def test_an_event_is_a_line_with_full_precision_and_rates(tmp_path):
    log_steps(tmp_path, [1])
    assert events(tmp_path) == [
        {
            "split": "train",
            "step": 1,
            "loss": 1 / 3 + 1,
            "consumed_samples": 8,
            "samples_per_second": 16.0,
            "tokens_per_second": 256.0,
        }
    ]


def test_after_a_resume_no_step_stands_twice(tmp_path):
    log_steps(tmp_path, [1, 2, 3])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"split": "train", "st')  # killed in the middle of a line
    log_steps(tmp_path, [3, 4], resumed_at=2)
    assert [event["step"] for event in events(tmp_path)] == [1, 2, 3, 4]


def test_the_curves_of_visualdl_hold_each_step_once(tmp_path):
    log_steps(tmp_path, [1, 2, 3])
    log_steps(tmp_path, [3, 4], resumed_at=2)
    (file,) = (tmp_path / "vdl").iterdir()
    assert [record.id for record in LogReader(file_path=str(file)).get_data("scalar", "train/loss")] == [
        1,
        2,
        3,
        4,
    ]


def test_only_the_first_rank_writes(tmp_path):
    log = open_log(tmp_path, World(1, 2), resumed_at=0, max_steps=1)
    assert isinstance(log, NullLog)
    log.scalars("train", {"loss": 1.0}, TrainState())
    log.close()
    assert not list(tmp_path.iterdir())
