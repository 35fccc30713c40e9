"""Measure cases one after another and show their figures."""

import io
import logging
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Callable, List, NamedTuple, Sequence

from data_tools.files.errors import InputError
from side_by_side.figures import CaseFigures, case_figures
from side_by_side.flags import SideBySideFlags
from side_by_side.lanes import Lane, Measured, measure_lanes
from side_by_side.report import machine_facts, publish, render
from side_by_side.starting import our_lane

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


class Case(NamedTuple):
    """A case: its name, what a step is, and a function that measures it in a separate folder."""

    name: str
    unit: str
    measure: Callable[[Path], List[Measured]]


def case_of_lanes(flags: SideBySideFlags, name: str, unit: str, lanes: Callable[[Path], List[Lane]]) -> Case:
    """Return the case of lanes that take turns, and of the rate of matrix products beside them."""
    return Case(name, unit, partial(_measure, flags, lanes))


def compare(flags: SideBySideFlags, cases: Sequence[Case]) -> None:
    """Measure the cases, print their tables, and write them where --output says. Raises InputError."""
    outputs = flags.outputs()
    facts = machine_facts(flags.threads, flags.peer_versions())
    found: List[CaseFigures] = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="side_by_side.") as folder:
            found.append(case_figures(case.name, case.unit, case.measure(Path(folder))))
        print(render(found[-1:], facts), flush=True)
        if outputs:  # after every case, so that a long benchmark that is cut short has something to show
            publish(outputs, found, facts, render(found, facts))


def _measure(flags: SideBySideFlags, lanes: Callable[[Path], List[Lane]], folder: Path) -> List[Measured]:
    with _silence():
        working = _chosen(flags.lanes, lanes(folder))
    counts = any(work.flops for lane in working for work in lane.work)
    products = [_products(folder, name, flags.device) for name in DTYPES if counts]
    return measure_lanes([*working, *products], flags.plan, flags.threads)


def _chosen(names: str, lanes: Sequence[Lane]) -> List[Lane]:
    """Return those of ``lanes`` that --lanes names, by default all. Raises InputError for an unknown name."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = [lane.name for lane in lanes]
    for name in wanted:
        if name not in known:
            raise InputError(f"--lanes {name} is not a lane of this case; use some of {', '.join(known)}")
    return [lane for lane in lanes if not wanted or lane.name in wanted]


@contextmanager
def _silence():
    """Silence what makes the data and the models: their warnings do not matter here."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _products(folder: Path, precision: str, device: str) -> Lane:
    spec = {"task": "product", "dtype": DTYPES[precision], "device": device}
    return our_lane(folder, f"product {precision}", precision, spec, side="product")
