"""From raw text and documents to a corpus, on this machine, or by Ray on one or several machines.

ernie-pair prepare --input_path raw/ --output_prefix data/baike --vocab_file vocab.txt --chinese

Of raw text, and of documents beside it, it makes the JSON lines PREFIX.jsonl first, as `trans_to_json` does,
and the corpus of these, as `create_pretraining_data`. A cluster (--engine ray --workers 64 --ray_address
head:6379) uses the same paths as this machine: the folders of --output_prefix, the vocabulary and the lexicon
must be mounted everywhere. The input is read here only.
"""

import re
import socket
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, Literal, Tuple

from data_tools.corpus.create_flags import RawTextFlags
from data_tools.corpus.format import corpus_paths
from data_tools.corpus.shards import ShardMaker
from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.text.text_files import DOCUMENTS, RAW, list_inputs
from data_tools.text.texts import LineBatch, holds_documents
from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import check_unset, defaults_of, path_option, speed_option
from ernie_pair.core.cli.standard_streams import with_standard_streams
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.core.files.results import Results
from ernie_pair.core.process_pool import ordered_map, ray_map, require_ray


@dataclass(frozen=True)
class PrepareConfig(RawTextFlags, CreateConfig):
    """Turn raw text, JSON lines and tables into the token ids that pretraining reads, in processes or on Ray.

    In raw text a line is a sentence or a paragraph, and an empty line separates documents; PREFIX.jsonl keeps
    its documents, and those of JSON lines and tables beside it, in an order that depends on the seed.
    """

    EXAMPLE = CreateConfig.EXAMPLE.replace("baike.jsonl", "raw/")
    NEEDS = {"rjieba": ""}

    input_path: str = path_option(
        help="text: raw (.txt), JSON lines (.jsonl, .json), a document per line, or tables (.csv, .tsv, "
        ".xlsx, .parquet), a document per row, also packed: a file, a folder (two levels), or several with "
        "commas between",
        stdin=(".txt", ".jsonl"),
    )
    engine: Literal["local", "ray"] = speed_option(
        "local",
        needs={"ray": {"ray": "ray"}},
        help="run --workers as processes on this machine or as Ray tasks; the files are the same",
    )
    ray_address: str = speed_option(
        "",
        help="HOST:PORT of a Ray cluster that this machine belongs to; every machine of it needs this "
        "package and access to the folders of --output_prefix, the vocabulary and --user_lexicon (a shared "
        "file system). Empty: start Ray on this machine for this run",
        only_with="engine=ray",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.ray_address and not re.fullmatch(r"[^\s:/]+:\d+", self.ray_address):
            raise InputError(f"--ray_address {self.ray_address} is not HOST:PORT; give e.g. head:6379")


@with_standard_streams
def prepare(config: PrepareConfig) -> Dict[str, Any]:
    """Convert raw text or JSON lines to a corpus of token ids, and return what PREFIX.manifest.json holds.

    Its ``counts`` are the documents, the sentences, the tokens and the unknown ones among them. The folder of
    PREFIX is the ``input_dir`` of `pretrain`. The texts are read as by `create_pretraining_data`.
    Raises InputError for whatever the user can fix, MachineError if Ray or a machine of it fails.
    """
    given = CreateConfig(**{item.name: getattr(config, item.name) for item in fields(CreateConfig)})
    path, lines = Path(config.input_path), Path(f"{config.output_prefix}.jsonl")
    # The JSON lines of an earlier run may lie among them.
    files = list_inputs(config.input_path, (*RAW, *DOCUMENTS), [] if path.is_file() else [lines])
    if not all(holds_documents(file, config.line_rules) for file in files):
        names = {item.name for item in fields(TransConfig)} - {"input_path", "output_path", "no_merge"}
        flags = {name: getattr(config, name) for name in names}
        try:  # --overwrite is for what is made of them
            Results("trans_to_json", [lines], {}, {}, overwrite=False).check_existing(from_any_inputs=True)
        except InputError:
            raise InputError(
                f"{lines} exists and is not what prepare made of raw text; move it, or choose another "
                "--output_prefix"
            ) from None
        trans_to_json(TransConfig(config.input_path, config.output_prefix, **flags), (*RAW, *DOCUMENTS))
        given = replace(given, input_path=str(lines))
    else:
        fault = f" is for raw text, and {config.input_path} holds documents; leave it out"
        check_unset(config, defaults_of(config, "raw text"), fault)
    if config.engine == "ray":
        require_ray(config.ray_address)  # before any shards of a stopped run are touched
        create_pretraining_data(given, partial(_by_ray, address=config.ray_address))
    else:
        create_pretraining_data(given, ordered_map)
    return read_json_object(corpus_paths(config.output_prefix).manifest, "make the corpus again")


def _by_ray(make: ShardMaker, jobs: Iterable, workers: int, address: str) -> Iterator[Path]:
    """Make the shards by Ray, with absolute paths: its processes have another working folder."""
    lexicon, vocab_file = make.rules.lexicon, str(Path(make.rules.vocab_file).absolute())
    lexicon = str(Path(lexicon).absolute()) if lexicon else None
    rules = replace(make.rules, vocab_file=vocab_file, lexicon=lexicon)
    shared = SharedMaker(replace(make, folder=make.folder.absolute(), rules=rules))
    return ray_map(shared, jobs, workers, address)


@dataclass(frozen=True)
class SharedMaker:
    """A ShardMaker for any machine.

    Raises MachineError on a machine that cannot see what it needs.
    """

    make: ShardMaker

    def __call__(self, job: Tuple[int, LineBatch]) -> Path:
        """Make the shard of ``job`` and return its path."""
        rules = self.make.rules
        needed = [str(self.make.folder), rules.vocab_file, rules.lexicon]
        for path in needed:
            if path and not Path(path).exists():
                raise MachineError(
                    f"{path}: not seen by {socket.gethostname()}; put it where all machines of the "
                    "cluster see it"
                )
        return self.make(job)


if __name__ == "__main__":
    run_command(prepare, PrepareConfig)
