"""What a GPU check would run on fake machines: the flags of every command, and the verdicts."""

import os
from collections import Counter
from pathlib import Path

import pytest
from fake_commands import FakeLab, machine

from ernie_pair.checks.gpu import cases
from ernie_pair.checks.gpu.cases import BASE_VOCABULARY, STEPS, SmallData
from ernie_pair.checks.gpu.check_gpu import (
    FAILED,
    NEEDS,
    NOT_RUN,
    PASSED,
    chosen_steps,
    first_failure,
    run_step,
)
from ernie_pair.core.errors import InputError

AMPERE, VOLTA, PASCAL = ((8, 0), 80.0), ((7, 0), 16.0), ((6, 1), 8.0)


class LosesOne(FakeLab):
    """A run that loses a process ends with an error."""

    def run(self, words, *given, **more):
        running = super().run(words, *given, **more)
        if "--max_steps=5000" in words and words[0] == "launch":
            running.process.returncode = 6
        return running


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Run all steps with fake commands; returns the outcomes, the commands and the processes killed."""
    killed = []
    monkeypatch.setattr(cases.os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(cases, "LOSS_SECONDS", float("inf"))

    def run(of, device="gpu", quick=False, lab_class=LosesOne):
        lab = lab_class(tmp_path, device, quick)
        lab.machine, data = of, SmallData(lab)
        outcomes = [run_step(step, lab, data, lambda case: None) for step in STEPS]
        return outcomes, lab.calls, killed

    return run


def verdicts(outcomes):
    return {step.number: step.verdict for step in outcomes}


def said(outcomes):
    return {f"{step.number} {case.name}": case for step in outcomes for case in step.cases}


def of_run(asked, **wanted):
    """The options of the runs that have these values."""
    return [config for _, config in asked if all(getattr(config, n, None) == v for n, v in wanted.items())]


def test_two_good_gpus_run_every_case(check):
    outcomes, asked, killed = check(machine(AMPERE, AMPERE))
    assert [case.said for case in said(outcomes).values() if case.verdict == FAILED] == []
    needing = {name for name, case in said(outcomes).items() if case.verdict == NEEDS}
    assert needing <= {"2 kernels of the CPU as Paddle's own", "6 run by ONNX Runtime, CPU"}
    assert set(verdicts(outcomes).values()) == {PASSED}
    assert killed and killed[0][0] == os.getpid()
    (base,) = {config.vocab_file for words, config in asked if of_base(words)}
    assert len(Path(base).read_text().splitlines()) == BASE_VOCABULARY == 18_000


def of_base(words):
    return words[0] == "new-model" and any("base" in word for word in words)


def test_every_precision_is_tested(check):
    _, asked, _ = check(machine(AMPERE, AMPERE))
    runs = [config for words, config in asked if words[0] == "pretrain" and config.device == "gpu"]
    found = Counter((c.use_amp, c.amp_dtype, c.tf32) for c in runs if "losses" in c.output_dir)
    assert found == {
        (False, "auto", False): 1,
        (False, "auto", True): 1,
        (True, "float16", False): 3,  # with a loss scale that changes, and in the dynamic graph
        (True, "bfloat16", False): 1,
    }
    assert [c.use_amp for c in runs if c.graph == "dynamic" and "losses" in c.output_dir] == [True]
    assert of_run(asked, device="cpu", max_steps=60)  # what they are compared with
    fast = [c for c in runs if "speed" in c.output_dir]
    assert Counter((c.max_seq_len, c.micro_batch_size) for c in fast) == {(128, 256): 4, (512, 32): 4}
    assert sum(c.tf32 for c in fast) == 2
    half = [c.precision for words, c in asked if words[0] == "predict" and c.device == "gpu"]
    assert Counter(half) == {"fp32": 2, "fp16": 2, "bf16": 2}


def test_parallel_layouts_use_both_gpus(check):
    _, asked, _ = check(machine(AMPERE, AMPERE))
    assert all("--gpus=0,1" in words for words, _ in asked if words[0] == "launch")
    assert of_run(asked, sharding="stage2", amp_level="O2")
    assert of_run(asked, sharding_degree=2, global_batch_size=16)


def test_with_one_gpu_parallel_layouts_run_on_the_cpu(check):
    outcomes, asked, _ = check(machine(AMPERE))
    launched = [(words, config) for words, config in asked if words[0] == "launch"]
    assert launched and all("--processes=2" in words and c.device == "cpu" for words, c in launched)
    assert verdicts(outcomes)[4] == PASSED and verdicts(outcomes)[5] == NEEDS
    assert said(outcomes)["4 pretraining, data parallel, bf16 O1"].said == "needs two GPUs"


@pytest.mark.parametrize("card, without", [(VOLTA, {"bf16", "TF32"}), (PASCAL, {"bf16", "TF32", "fp16"})])
def test_an_older_gpu_is_tested_only_for_what_it_supports(check, card, without):
    outcomes, asked, _ = check(machine(card))
    assert not [case for case in said(outcomes).values() if case.verdict == FAILED]
    for name, case in said(outcomes).items():
        if case.verdict == NEEDS and "needs a GPU of" in case.said:
            assert any(word in name for word in without), name
    speed = [c for w, c in asked if w[0] == "pretrain" and "speed" in c.output_dir]
    assert not [c for c in speed if c.tf32 or c.amp_dtype == "bfloat16"]
    assert {c.micro_batch_size for c in speed} == ({64, 8} if card is VOLTA else {32, 4})


def test_on_a_cpu_the_check_reports_what_needs_a_gpu(check):
    outcomes, asked, _ = check(machine(), device="cpu")
    assert verdicts(outcomes) == {**dict.fromkeys(range(9), PASSED), 5: NEEDS}
    assert all(config.device == "cpu" for _, config in asked if hasattr(config, "device"))
    assert said(outcomes)["2 bf16 O1"].said == "needs a GPU"
    assert first_failure(outcomes) is None


def test_quick_runs_fewer_cases(check):
    outcomes, _, _ = check(machine(AMPERE, AMPERE), quick=True)
    assert 25 < len(said(outcomes)) < 45 and set(verdicts(outcomes).values()) == {PASSED}


def test_without_a_gpu_the_remaining_steps_are_not_run(check):
    outcomes, asked, _ = check(machine(), device="gpu")
    assert verdicts(outcomes) == {0: FAILED, **dict.fromkeys(range(1, 9), NOT_RUN)}
    assert {words[0] for words, _ in asked} == {"doctor"}
    assert first_failure(outcomes).startswith("step 0, libraries: Paddle sees the GPUs: there is no GPU")


class OtherLosses(FakeLab):
    """A GPU whose losses differ from those of the CPU, most of all in half precision."""

    def event(self, step, config, command):
        event = super().event(step, config, command)
        if config.device == "gpu":
            event["loss"] *= 1.03 if config.use_amp else 1.001
        return event


def test_differing_losses_fail_and_later_steps_still_run(check):
    outcomes, _, _ = check(machine(AMPERE), lab_class=OtherLosses)
    failed = {name for name, case in said(outcomes).items() if case.verdict == FAILED and name[0] == "2"}
    assert failed == {
        "2 fp32 as on the CPU",
        "2 fp16 O1, dynamic graph",
        *(f"2 {t} O1" for t in ("fp16", "bf16")),
    }
    assert "the first 10 losses differ by 0.001 (relative), above 0.0001: " in first_failure(outcomes)
    assert "mean losses of 10 steps differ by 0.03" in said(outcomes)["2 bf16 O1"].said
    assert verdicts(outcomes)[6] == PASSED and verdicts(outcomes)[8] == PASSED


class OtherBits(FakeLab):
    """A resumed run that ends with different weights, and one that cannot be killed in time."""

    def run(self, words, *given, **more):
        running = super().run(words, *given, **more)
        if words[0] == "checkpoint" and "dropout" in words[2]:
            running.process.returncode = 1
            running.output = "differs\nlargest difference 1e-09; 1 of 4 arrays differ\n"
        if "recompute" in " ".join(map(str, words)):
            running.wait = lambda until=None: False
        return running


def test_differing_weights_fail_with_their_difference(check):
    outcomes, asked, _ = check(machine(AMPERE), lab_class=OtherBits)
    found = said(outcomes)
    dropout, merge = found["3 pretraining, dropout"], found["3 pretraining, gradient merge"]
    assert dropout.verdict == FAILED
    assert dropout.said == "after 20 steps: largest difference 1e-09; 1 of 4 arrays differ"
    assert merge.verdict == PASSED and merge.figures == {"steps": 20}
    assert found["3 pairs, recompute"].said == "its 320 steps were over before it could be killed"
    assert {c.max_steps for c in of_run(asked, use_recompute=True, device="gpu")} == {20, 80, 320}


class OtherAnswers(FakeLab):
    """An exported model whose answers on a GPU are different."""

    def leave(self, words, launch, config):
        super().leave(words, launch, config)
        if words[0] == "predict" and config.backend == "paddle" and config.device == "gpu":
            path = Path(config.output_file)
            path.write_text(path.read_text().replace("0.25\t0.75", "0.6\t0.4"))


def test_differing_answers_fail_beyond_their_tolerance(check):
    found = said(check(machine(AMPERE), lab_class=OtherAnswers)[0])
    case = found["6 run by Paddle Inference, GPU"]
    assert case.verdict == FAILED and "a probability differs by 0.35 from that of the CPU" in case.said
    assert found["6 predict, GPU in fp16"].verdict == PASSED


def test_a_run_that_survives_a_lost_process_fails(check):
    case = said(check(machine(AMPERE), lab_class=FakeLab)[0])["4 a lost process ends the run, on the CPU"]
    assert case.verdict == FAILED
    assert "ended with exit code 0 after one of two processes was killed" in case.said


def test_an_unexpected_exception_fails_its_case(check):
    class Empty(FakeLab):
        def leave(self, words, launch, config):
            pass

    found = said(check(machine(AMPERE), lab_class=Empty)[0])
    assert found["6 the converter's proof"].said.startswith("FileNotFoundError: ")


def test_steps_are_chosen_by_number():
    for numbers, wanted in (("", list(range(9))), ("6, 2,2", [2, 6])):
        assert [step.number for step in chosen_steps(numbers)] == wanted
    with pytest.raises(InputError, match="steps=9 is not a step; use some of 0,1,2,3,4,5,6,7,8"):
        chosen_steps("2,9")
