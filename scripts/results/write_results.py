"""Make docs/RESULTS.md and its pictures of the JSON of the runs, and the short table of the READMEs.

python scripts/results/write_results.py
python scripts/results/write_results.py --results my_results --output my_results/RESULTS.md
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict

from proof.experiments import TITLES, Scale, runs_of
from proof.page import Results, read_results, render_page, summary_of
from proof.runner import RESULTS, ROOT

from data_tools.files.atomic_files import published
from data_tools.files.errors import InputError
from data_tools.options.cli import run_command
from data_tools.options.options import Options, option, refuse_empty

PAGE = ROOT / "docs" / "RESULTS.md"


@dataclass(frozen=True)
class WriteConfig(Options):
    """Make the page of the results of their JSON; what was not run is not on it."""

    results: str = option(str(RESULTS), help="GROUP/NAME.json of run.py", group="data")
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
    results = read_results(Path(config.results))
    if not results:
        raise InputError(f"--results {config.results}: no run is there; make some with run.py")
    order = {group: [run.name for run in runs_of(group, Scale())] for group in TITLES}
    text, drawn = render_page(results, order)
    output = Path(config.output)
    pictures = {output.parent / "results" / name: svg for name, svg in drawn.items()}
    with published(output, *pictures) as drafts:
        for draft, content in zip(drafts, [text, *pictures.values()]):
            draft.write_text(content, encoding="utf-8")
    print(f"wrote {output}, {len(pictures)} pictures")
    if output.resolve() == PAGE:
        show_in_readmes(results)


def show_in_readmes(results: Dict[str, Results]) -> None:
    """Put the table of the comparisons between its marks in both READMEs."""
    sys.path.append(str(ROOT / "scripts"))  # Python adds only the folder of the launched file
    import readme_block

    replace = readme_block.replace_block
    replace(readme_block.RESULTS, lambda page: summary_of(results, readme_block.is_chinese(page)))


if __name__ == "__main__":
    run_command(write_results, WriteConfig)
