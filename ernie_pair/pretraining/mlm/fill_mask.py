"""The most probable words behind [MASK], by a pretrained model.

ernie-pair predict --model_path output --text '今天[MASK][MASK]很好'
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Literal, NamedTuple

import numpy as np

from data_tools.text.file_content import ENCODINGS
from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.text_files import LineRules, decoded, read_lines
from data_tools.text.wordpiece import CONTINUATION
from ernie_pair.core.cli.options import (
    DASH,
    OverwriteFlag,
    check_whole_numbers,
    data_option,
    evaluation_option,
    file_option,
    model_folder_option,
    paths_in,
)
from ernie_pair.core.cli.standard_streams import check_stdin
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.core.installation import TRAINING
from ernie_pair.core.progress import Progress
from ernie_pair.models.source import ModelSource, open_model
from ernie_pair.pretraining.convert.warm_start import idle_parts
from ernie_pair.runtime.device import DeviceFlag, default_device, start_device
from ernie_pair.runtime.processes.world import World
from ernie_pair.weights.parameter_names import (
    ORDER_HEAD,
    TOKEN_HEAD,
    cut_vocabulary,
    match_parameters,
    structured_names,
    without_training_heads,
)
from ernie_pair.weights.weight_files import as_float32

MASK = "[MASK]"


class Slot(NamedTuple):
    """A run of adjacent masks, a word or part of one: text[start:end], at ``positions`` of the token ids."""

    start: int
    end: int
    positions: list[int]


class MaskedText(NamedTuple):
    """A text, its token ids with [CLS] and [SEP], and its slots in their order."""

    text: str
    ids: list[int]
    slots: list[Slot]


def parse_masked_text(text: str, tokenizer: AnyTokenizer, max_positions: int, where: str = "") -> MaskedText:
    """Tokenize ``text``, each [MASK] as one token; masks with only spaces between them are one slot.

    Raises InputError, which begins with ``where``, without [MASK] or above ``max_positions``.
    """
    named = f"{where}: " if where else ""
    ids, last = [tokenizer.cls_id], 0
    slots: list[Slot] = []
    for found in re.finditer(re.escape(MASK), text):
        between = tokenizer.encode(text[last : found.start()])
        ids += between
        if slots and not between:
            slots[-1] = Slot(slots[-1].start, found.end(), [*slots[-1].positions, len(ids)])
        else:
            slots.append(Slot(found.start(), found.end(), [len(ids)]))
        ids.append(tokenizer.mask_id)
        last = found.end()
    ids += [*tokenizer.encode(text[last:]), tokenizer.sep_id]
    if not slots:
        raise InputError(f"{named}no {MASK} in {text[:40]!r}; write {MASK} where a token is to be predicted")
    if len(ids) > max_positions:
        raise InputError(f"{named}{len(ids)} tokens, and the model has {max_positions} positions; shorten it")
    return MaskedText(text, ids, slots)


def join_tokens(tokens: list[str]) -> str:
    """Return the text of ``tokens``: ##X continues the word before it, spaces separate words of letters."""
    joined = ""
    for token in tokens:
        if token.startswith(CONTINUATION) and len(token) > len(CONTINUATION):
            joined += token[len(CONTINUATION) :]
        else:
            apart = joined[-1:].isascii() and joined[-1:].isalnum() and token[:1].isascii()
            joined += f" {token}" if apart and token[:1].isalnum() else token
    return joined


def load_pretrained(source: ModelSource) -> Any:
    """Build the dynamic model of ``source``, without dropout, in float32, and load its weights.

    The file must hold the head for masked tokens; a missing sentence-order head or pooler is random. Raises
    CheckpointError when the weights do not fit or lack that head, InputError for another family.
    """
    from ernie_pair.pretraining.graph.model import build_ernie, ernie_config

    model = build_ernie(ernie_config(source.spec))
    parameters, where = model.state_dict(), str(source.weights)
    found = without_training_heads(structured_names(source.read_weights(), parameters, where))
    if not any(name.startswith(TOKEN_HEAD) for name in found):
        raise CheckpointError(
            f"{where} holds no {TOKEN_HEAD}*, the head that predicts masked tokens; give a pretrained model, "
            "not one that was fine-tuned on pairs or converted without its heads"
        )
    arrays = match_parameters(
        parameters,
        as_float32(cut_vocabulary(found, source.spec.vocab_size), where),
        where,
        may_miss=(ORDER_HEAD, f"{model.base_model_prefix}.pooler."),
        may_have=("classifier.", *idle_parts(source)),
    )
    for parameter in parameters.values():
        if parameter.name in arrays:
            parameter.set_value(arrays[parameter.name])
    model.eval()
    return model


def has_order_head(source: ModelSource, model: Any) -> bool:
    """Return whether the weights of ``source`` hold the sentence-order head, else random in ``model``."""
    found = structured_names(source.read_weights(), model.state_dict(), str(source.weights))
    return any(name.startswith(ORDER_HEAD) for name in found)


class Filling(NamedTuple):
    """A prediction for a slot.

    word         what its tokens read as
    tokens       one for each mask
    ids          their ids
    probability  the product over the masks, each given those left of it in the slot
    filled       the text with the word in place of the slot
    """

    word: str
    tokens: list[str]
    ids: list[int]
    probability: float
    filled: str


class FilledSlot(NamedTuple):
    """The slot text[start:end] of ``masks`` masks, and its predictions, the most probable first."""

    start: int
    end: int
    masks: int
    fillings: list[Filling]


class MaskFiller:
    """Predict the words behind [MASK] with a pretrained model.

        from ernie_pair import MaskFiller

        filler = MaskFiller("output/model_last")
        (slot,) = filler.fill("今天[MASK][MASK]很好")
        print(slot.fillings[0].word, slot.fillings[0].probability)

    ``model_name_or_path``: a built-in name, a folder that from_pretrained loads, a checkpoint of static
    pretraining (of this package or of the recipe), or the output_dir of a run. Raises InputError if there is
    no such model, CheckpointError if it has no head for masked tokens.
    """

    def __init__(self, model_name_or_path: str, device: str = ""):
        import paddle

        if not paddle.in_dynamic_mode():
            raise InputError("static mode is on in this process; call paddle.disable_static() first")
        source = open_model(model_name_or_path, model_type="")
        self.device = start_device(device or default_device(), World())
        self.model = load_pretrained(source)
        self.tokenizer = source.read_tokenizer()
        self.max_positions: int = source.spec.max_positions
        # The vocabulary may have twins beyond the model's rows, and the model may have rows without a token.
        self._num_known = min(source.spec.vocab_size, self.tokenizer.vocab_size)
        tokenizer = self.tokenizer
        self._never_predicted = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]

    def fill(self, text: str, top_k: int = 5, beam_size: int = 5, where: str = "") -> list[FilledSlot]:
        """Return the ``top_k`` most probable words for each slot of ``text``; a slot is a run of [MASK]s.

        The masks of a slot are filled from left to right by beam search with ``beam_size`` prefixes; 1 is
        greedy. Other slots stay masked meanwhile. Probabilities are over the whole vocabulary; [PAD], [CLS],
        [SEP] and [MASK] are never predicted. Raises InputError, whose message begins with ``where``, for a
        text without [MASK] or too long for the model.
        """
        check_whole_numbers(1, top_k=top_k, beam_size=beam_size)
        masked = parse_masked_text(text, self.tokenizer, self.max_positions, where)
        return [self._fill_slot(masked, slot, top_k, beam_size) for slot in masked.slots]

    def _fill_slot(self, masked: MaskedText, slot: Slot, top_k: int, beam_size: int) -> FilledSlot:
        beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]  # ids so far, and their log probability
        for number, position in enumerate(slot.positions):
            rows = np.array([masked.ids] * len(beams), np.int64)
            rows[:, slot.positions[:number]] = [ids for ids, _ in beams]
            width = top_k if number == len(slot.positions) - 1 else beam_size
            totals = self._log_probabilities(rows, position)
            totals += np.array([[log_probability] for _, log_probability in beams])
            order = np.argsort(-totals, axis=None, kind="stable")[:width]  # ties in the order of ids
            chosen = zip(*np.unravel_index(order, totals.shape))
            beams = [((*beams[row][0], int(token)), float(totals[row, token])) for row, token in chosen]
            beams = [beam for beam in beams if np.isfinite(beam[1])]
        fillings = []
        for ids, log_probability in beams:
            tokens = [self.tokenizer.tokens[token] for token in ids]
            word = join_tokens(tokens)
            filled = f"{masked.text[: slot.start]}{word}{masked.text[slot.end :]}"  # other masks stay
            probability = float(np.exp(log_probability))
            fillings.append(Filling(word, tokens, list(ids), probability, filled))
        return FilledSlot(slot.start, slot.end, len(slot.positions), fillings)

    def _log_probabilities(self, rows: np.ndarray, position: int) -> np.ndarray:
        """Return the log probabilities of the tokens at ``position`` of ``rows`` [N, S], float64 [N, K]."""
        import paddle

        places = np.arange(len(rows), dtype=np.int64) * rows.shape[1] + position
        with paddle.no_grad():
            tensors = {"input_ids": rows, "token_type_ids": np.zeros_like(rows), "masked_positions": places}
            logits = self.model(**{name: paddle.to_tensor(array) for name, array in tensors.items()})[0]
        values = logits.numpy().astype(np.float64)
        values -= values.max(axis=1, keepdims=True)
        values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
        values = values[:, : self._num_known]
        values[:, self._never_predicted] = -np.inf
        return values


@dataclass(frozen=True)
class FillMaskConfig(DeviceFlag, OverwriteFlag):
    """Show what a pretrained model predicts for [MASK], with probabilities.

    Adjacent masks are one word.
    """

    EXAMPLE = "--model_path output --text '今天[MASK][MASK]很好'"
    NEEDS = TRAINING

    model_path: str = model_folder_option(
        help="a built-in name, a pretrained folder, a checkpoint, or the output folder of a run"
    )
    text: str = data_option("", help="a text with [MASK] in it")
    input_file: str = file_option(
        "",
        help="a file of such texts, one per line; -: standard input, answered line by line",
        stdin=(".txt",),
    )
    output_file: str = data_option("", help="the predictions go here; empty: the terminal", writes="FILE")
    format: Literal["table", "json"] = data_option(
        "table", help="readable lines, or one line of JSON per text"
    )
    top_k: int = evaluation_option(
        5, help="predictions for each word", unit="words", at_least=1, at_most=1000
    )
    beam_size: int = evaluation_option(
        5,
        help="beam width for a word of several masks; 1: greedy",
        unit="beginnings",
        at_least=1,
        at_most=1000,
    )
    encoding: str = data_option("utf-8", help="encoding of --input_file", choices=ENCODINGS)

    def __post_init__(self):
        super().__post_init__()
        if self.text and self.input_file:
            raise InputError("--text and --input_file are both given; leave one of them out")


def fill_mask(config: FillMaskConfig) -> None:
    """Print the predictions for each text, or write all to ``output_file``.

    Raises InputError, with file:line, for a text without [MASK] or too long; blank lines are skipped.
    """
    if not config.text and not config.input_file:
        raise InputError(
            "no text is given; pass --text TEXT, --input_file FILE, or --input_file - for the standard input"
        )
    if config.input_file == DASH:
        check_stdin("--input_file -")
    if not config.output_file:
        filler = MaskFiller(config.model_path, config.device)
        for line in _format_fillings(config, filler, lambda count: None):
            sys.stdout.write(line)
            sys.stdout.flush()
        return
    if config.input_file == DASH:
        raise InputError(
            "--input_file -: standard input cannot be read again to check --output_file; name a file, or use "
            "> FILE instead"
        )
    source, files = open_model(config.model_path, model_type=""), files_of(config.input_file)
    results = Results(
        "predict mlm",
        [Path(config.output_file)],
        {"input_file": files, "model_path": [*source.weight_files, source.vocab_file]},
        settings_of(config, *paths_in(config)),
        config.overwrite,
    )
    if results.are_done():
        return
    filler = MaskFiller(config.model_path, config.device)
    with results.published() as (draft,), Progress(files, log_interval=0) as progress:
        lines = _format_fillings(config, filler, progress.read)
        draft.write_text("".join(lines), encoding="utf-8")
    print(f"wrote {config.output_file}")


def _format_fillings(
    config: FillMaskConfig, filler: MaskFiller, advance: Callable[[int], None]
) -> Iterator[str]:
    for where, text in _read_texts(config, advance):
        slots = filler.fill(text, config.top_k, config.beam_size, where)
        if config.format == "table":
            yield _format_table(text, slots)
            continue
        named = [{**each._asdict(), "fillings": [one._asdict() for one in each.fillings]} for each in slots]
        yield json.dumps({"text": text, "slots": named}, ensure_ascii=False) + "\n"


def _read_texts(config: FillMaskConfig, advance: Callable[[int], None]) -> Iterator[tuple[str, str]]:
    if config.text:
        yield "--text", config.text
        return
    rules = LineRules(encoding=config.encoding, has_flag=True)
    if config.input_file == DASH:
        name = "<stdin>"
        lines: Iterable[bytes] = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)  # as each arrives
    else:
        path = Path(config.input_file)
        if not path.exists() or path.is_dir():
            raise InputError(f"{path}: no such file; fix --input_file")
        name, lines = config.input_file, read_lines(path, advance, encoding=config.encoding)
    for number, line in enumerate(lines, start=1):
        text = decoded(name, number, line, rules)
        text = text.removeprefix("\ufeff") if number == 1 else text  # as read_lines does with a file's
        if text.strip():
            yield f"{name}:{number}", text


def _format_table(text: str, slots: list[FilledSlot]) -> str:
    lines = [text]
    for number, slot in enumerate(slots, start=1):
        masks = f"{slot.masks} masks" if slot.masks > 1 else "1 mask"
        lines.append(f"  word {number} ({masks})")
        for each in slot.fillings:  # two decimals, or two digits where these would show 0.00
            percent = f"{100 * each.probability:.{'2f' if each.probability >= 1e-4 else '2g'}}"
            lines.append(f"  {percent:>8} %  {each.word}  {each.filled}")
    return "\n".join(lines) + "\n\n"
