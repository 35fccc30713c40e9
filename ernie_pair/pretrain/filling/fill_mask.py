"""ernie-pair fill-mask --model_name_or_path output --text '今天[MASK][MASK]很好': look at a model."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Literal, Sequence, Tuple

from data_tools.files.errors import InputError
from data_tools.files.progress import Progress
from data_tools.files.results import Results, files_of, settings_of
from data_tools.options.options import Options, option
from data_tools.options.standard_streams import refuse_closed_input
from data_tools.text.text_files import ENCODINGS, LineRules, decoded, read_lines
from ernie_pair.models.source import open_model
from ernie_pair.pretrain.filling.mask_filler import FilledSlot, MaskFiller
from ernie_pair.runtime.device import default_device

STANDARD_INPUT = "-"
PLACES = ("text_file", "model_name_or_path", "output")


@dataclass(frozen=True)
class FillMaskConfig(Options):
    """Show what a pretrained model predicts for [MASK], with probabilities.

    Adjacent masks are one word.
    """

    EXAMPLE = "--model_name_or_path output --text '今天[MASK][MASK]很好'"

    model_name_or_path: str = option(
        help="a built-in name, a pretrained folder, a checkpoint, or the output folder of a run",
        group="model",
    )
    text: str = option("", help="a text with [MASK] in it", group="data")
    text_file: str = option(
        "",
        help="a file of such texts, one per line; -: standard input, answered line by line",
        group="data",
        stdin=(".txt",),
    )
    output: str = option("", help="the predictions go here; empty: the terminal", group="data")
    format: Literal["table", "json"] = option(
        "table", help="readable lines, or one line of JSON per text", group="data"
    )
    top_k: int = option(
        5, help="predictions for each word", group="evaluation", unit="words", at_least=1, at_most=1000
    )
    beam_size: int = option(
        5,
        help="beam width for a word of several masks; 1: greedy",
        group="evaluation",
        unit="beginnings",
        at_least=1,
        at_most=1000,
    )
    encoding: str = option("utf-8", help="encoding of --text_file", group="data", choices=ENCODINGS)
    overwrite: bool = option(False, help="replace existing predictions", group="data")
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run", group="devices")

    def __post_init__(self):
        super().__post_init__()
        if self.text and self.text_file:
            raise InputError("--text and --text_file are both given; leave one of them out")


def fill_mask(config: FillMaskConfig) -> None:
    """Print the predictions for each text, or write all to ``output``.

    Raises InputError, with file:line, for a text that holds no [MASK] or is too long; blank lines are
    skipped.
    """
    if not config.text and not config.text_file:
        raise InputError(
            "no text is given; pass --text TEXT, --text_file FILE, or --text_file - for the standard input"
        )
    if config.text_file == STANDARD_INPUT:
        refuse_closed_input("--text_file -")
    show = _json_line if config.format == "json" else _table
    if not config.output:
        filler = MaskFiller(config.model_name_or_path, config.device)
        for line in _answers(config, filler, show, lambda count: None):
            sys.stdout.write(line)
            sys.stdout.flush()
        return
    results = _results(config)
    if results.are_done():
        return
    filler = MaskFiller(config.model_name_or_path, config.device)
    with results.published() as (draft,), Progress(files_of(config.text_file), log_interval=0) as progress:
        lines = _answers(config, filler, show, progress.read)
        draft.write_text("".join(lines), encoding="utf-8")
    print(f"wrote {config.output}")


def _results(config: FillMaskConfig) -> Results:
    if config.text_file == STANDARD_INPUT:
        raise InputError(
            "--text_file -: standard input cannot be read again to check --output; name a file, or use "
            "> FILE instead"
        )
    source = open_model(config.model_name_or_path, model_type="")
    inputs: Dict[str, Sequence[Path]] = {
        "text_file": files_of(config.text_file),
        "model_name_or_path": [*source.weight_files, source.vocab_file],
    }
    settings = settings_of(config, *PLACES)
    return Results("fill-mask", [Path(config.output)], inputs, settings, config.overwrite)


def _answers(
    config: FillMaskConfig,
    filler: MaskFiller,
    show: Callable[[str, List[FilledSlot]], str],
    advance: Callable[[int], None],
) -> Iterator[str]:
    for where, text in _texts(config, advance):
        yield show(text, filler.fill(text, config.top_k, config.beam_size, where))


def _texts(config: FillMaskConfig, advance: Callable[[int], None]) -> Iterator[Tuple[str, str]]:
    """Yield the location of each text, file:line, and the text."""
    if config.text:
        yield "--text", config.text
        return
    rules = LineRules(encoding=config.encoding, has_flag=True)
    if config.text_file == STANDARD_INPUT:
        name = "<stdin>"
        lines: Iterable[bytes] = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)  # as each arrives
    else:
        name, lines = config.text_file, read_lines(_file_of(config.text_file), advance)
    for number, line in enumerate(lines, start=1):
        text = decoded(name, number, line, rules)
        text = text.removeprefix("\ufeff") if number == 1 else text  # as read_lines does with a file's
        if text.strip():
            yield f"{name}:{number}", text


def _file_of(given: str) -> Path:
    path = Path(given)
    if not path.exists() or path.is_dir():
        raise InputError(f"{given}: no such file; fix --text_file")
    return path


def _json_line(text: str, slots: List[FilledSlot]) -> str:
    named = [{**slot._asdict(), "fillings": [each._asdict() for each in slot.fillings]} for slot in slots]
    return json.dumps({"text": text, "slots": named}, ensure_ascii=False) + "\n"


def _table(text: str, slots: List[FilledSlot]) -> str:
    lines = [text]
    for number, slot in enumerate(slots, start=1):
        masks = f"{slot.masks} masks" if slot.masks > 1 else "1 mask"
        lines.append(f"  word {number} ({masks})")
        lines += [
            f"  {_percent(each.probability):>8} %  {each.word}  {each.filled}" for each in slot.fillings
        ]
    return "\n".join(lines) + "\n\n"


def _percent(share: float) -> str:
    """Return a probability in percent: two decimals, or two digits of one that these would show as 0.00."""
    return f"{100 * share:.2f}" if share >= 1e-4 else f"{100 * share:.2g}"
