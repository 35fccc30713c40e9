"""Make docs/RESULTS.md and its pictures of the JSON of the runs.

python scripts/results/write_results.py
"""

from dataclasses import dataclass
from pathlib import Path

from proof.groups import GROUPS
from proof.page import read_results, render_page
from proof.runner import ROOT, main_folder
from proof.scale import Scale

from data_tools.base.cli import run_command
from data_tools.base.errors import InputError
from data_tools.base.options import Options, option, refuse_empty
from data_tools.files.atomic_files import published


@dataclass(frozen=True)
class WriteConfig(Options):
    """Make the page of the results of their JSON; what was not run is not on it."""

    results: str = option(str(main_folder()), help="GROUP/NAME.json of run.py", group="data")
    output: str = option(
        str(ROOT / "docs" / "RESULTS.md"),
        help="the page; its pictures go into the folder results beside it",
        group="data",
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output")


def write_results(config: WriteConfig) -> None:
    """Write the page and its pictures. Raises InputError where there is no result."""
    found = read_results(Path(config.results))
    if not found:
        raise InputError(f"--results {config.results}: no run is there; make some with run.py")
    order = {name: [run.name for run in group.runs(Scale())] for name, group in GROUPS.items()}
    page, output = render_page(found, order), Path(config.output)
    pictures = {output.parent / "results" / name: svg for name, svg in page.pictures.items()}
    with published(output, *pictures) as (draft, *drafts):
        draft.write_text(page.text, encoding="utf-8")
        for each, svg in zip(drafts, pictures.values()):
            each.write_text(svg, encoding="utf-8")
    print(f"wrote {output}, {len(pictures)} pictures")


def main() -> None:
    run_command(write_results, WriteConfig)


if __name__ == "__main__":
    main()
