"""Make docs/RESULTS.md and its pictures of the JSON of the runs, and the short table of the READMEs.

python scripts/results/write_results.py
python scripts/results/write_results.py --results my_results --output my_results/RESULTS.md
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict

from proof.groups import GROUPS
from proof.page import Results, read_results, render_page
from proof.runner import ROOT, main_folder
from proof.scale import Scale
from proof.summary import summary_of

from data_tools.files.atomic_files import published
from data_tools.files.errors import InputError
from data_tools.options.cli import run_command
from data_tools.options.options import Options, option, refuse_empty

PAGE = ROOT / "docs" / "RESULTS.md"


@dataclass(frozen=True)
class WriteConfig(Options):
    """Make the page of the results of their JSON; what was not run is not on it."""

    results: str = option(str(main_folder()), help="GROUP/NAME.json of run.py", group="data")
    output: str = option(
        str(PAGE),
        help="the page; its pictures go into the folder results beside it, and the table of the page of the "
        "project goes into its READMEs too",
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
    if output.resolve() == PAGE:
        show_in_readmes(found)


def show_in_readmes(results: Dict[str, Results]) -> None:
    """Put the table of the comparisons between its marks in both READMEs."""
    sys.path.append(str(ROOT / "scripts"))  # Python adds only the folder of the launched file
    from readme_block import RESULTS, is_chinese, replace_block

    replace_block(RESULTS, lambda page: summary_of(results, is_chinese(page)))


def main() -> None:
    run_command(write_results, WriteConfig)


if __name__ == "__main__":
    main()
