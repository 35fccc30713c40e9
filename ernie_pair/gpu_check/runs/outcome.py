"""What the check found: cases with a verdict, words and figures, and the steps that they are of."""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional

PASSED, FAILED, NEEDS, NOT_RUN = "passed", "failed", "needs", "not run"
Figures = Dict[str, Any]  # name: a number, or words


class Planned(NamedTuple):
    """A case that is to be run; ``needs``: what this machine lacks for it, in words, or ''.

    ``run`` returns its figures, and raises an ErniePairError where it fails.
    """

    name: str
    run: Callable[[], Figures]
    needs: str = ""


class Case(NamedTuple):
    """A case and its verdict, one of the four above; ``said``: why it failed, or what it needs."""

    name: str
    verdict: str
    said: str
    seconds: float
    figures: Figures
    error: Optional[BaseException] = None  # that it failed with

    def facts(self) -> Dict[str, Any]:
        """Return what the report says of it."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "said": self.said,
            "seconds": round(self.seconds, 1),
            "figures": {name: _as_json(value) for name, value in self.figures.items()},
        }


class StepOutcome(NamedTuple):
    """A step of the check: its number in the list, its title, its cases, and how long it took."""

    number: int
    title: str
    cases: List[Case]
    seconds: float

    @property
    def verdict(self) -> str:
        """Return the verdict of the step: the worst of its cases; one that only needs things is 'needs'."""
        found = {case.verdict for case in self.cases}
        return next((verdict for verdict in (FAILED, NOT_RUN, PASSED) if verdict in found), NEEDS)

    def facts(self) -> Dict[str, Any]:
        """Return what the report says of it."""
        return {
            "number": self.number,
            "title": self.title,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "cases": [case.facts() for case in self.cases],
        }


def _as_json(value: Any) -> Any:
    """Return a figure as JSON has it: what is no number, infinite ones included, as a text."""
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return value if is_number else str(value)


def first_failure(steps: List[StepOutcome]) -> Optional[str]:
    """Return the first case that failed, in words; None where none did."""
    for step in steps:
        for case in step.cases:
            if case.verdict in (FAILED, NOT_RUN):
                return f"step {step.number}, {step.title}: {case.name}: {case.said}"
    return None
