"""The results of the check: cases with a verdict, a text and figures, and their steps."""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional

PASSED, FAILED, NEEDS, NOT_RUN = "passed", "failed", "needs", "not run"
Figures = Dict[str, Any]  # name: a number, or words


class Planned(NamedTuple):
    """A case to run; ``needs``: what this machine lacks for it, in words, or ''.

    ``run`` returns its figures, and raises an ErniePairError if it fails.
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
    error: Optional[BaseException] = None  # the error of a failed case

    def facts(self) -> Dict[str, Any]:
        """Return the part of the report about it."""
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
        """Return the part of the report about it."""
        return {
            "number": self.number,
            "title": self.title,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "cases": [case.facts() for case in self.cases],
        }


def _as_json(value: Any) -> Any:
    """Return a figure as JSON content: a text for what is not a number, or infinite."""
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return value if is_number else str(value)


def first_failure(steps: List[StepOutcome]) -> Optional[str]:
    """Return the first case that failed, in words; None if none did."""
    for step in steps:
        for case in step.cases:
            if case.verdict in (FAILED, NOT_RUN):
                return f"step {step.number}, {step.title}: {case.name}: {case.said}"
    return None
