"""Create corpora on this machine, or by Ray on one or several machines.

ernie-pair prepare --engine ray --workers 64 --ray_address head:6379 --input_path baike.jsonl ...

A cluster uses the same paths as this machine: the folders of --output_prefix, the vocabulary and the lexicon
must be mounted everywhere. The input is read here only.
"""

import re
import socket
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Iterable, Iterator, Literal, Tuple

from data_tools.corpus.shards import ShardJob, ShardMaker
from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.files.errors import MachineError
from data_tools.files.process_pool import ordered_map
from data_tools.files.ray_pool import ray_map, require_ray
from data_tools.options.cli import run_command
from data_tools.options.options import option
from data_tools.options.standard_streams import with_standard_streams


@dataclass(frozen=True)
class PrepareConfig(CreateConfig):
    """Turn JSON lines into the token ids that pretraining reads, in processes or on Ray."""

    EXAMPLE = f"{CreateConfig.EXAMPLE} --engine ray"

    engine: Literal["local", "ray"] = option(
        "local",
        help="run --workers as processes on this machine or as Ray tasks; the files are the same",
        group="devices",
    )
    ray_address: str = option(
        "",
        help="HOST:PORT of a Ray cluster that this machine belongs to; every machine of it needs this "
        "package and access to the folders of --output_prefix, the vocabulary and --user_lexicon (a shared "
        "file system). Empty: start Ray on this machine for this run",
        group="devices",
    )

    def _faults(self) -> Iterator[Tuple[bool, str]]:
        yield from super()._faults()
        if self.ray_address:
            yield self.engine != "ray", "--ray_address needs --engine ray; add it"
            is_address = re.fullmatch(r"[^\s:/]+:\d+", self.ray_address)
            yield not is_address, f"--ray_address {self.ray_address} is not HOST:PORT; give e.g. head:6379"


@with_standard_streams
def prepare(config: PrepareConfig) -> None:
    """Make a corpus as `create_pretraining_data` does, on the engine that ``config`` names.

    Raises InputError for whatever the user can fix, MachineError if Ray or a machine of it fails.
    """
    given = CreateConfig(**{item.name: getattr(config, item.name) for item in fields(CreateConfig)})
    if config.engine == "ray":
        require_ray(config.ray_address)  # before any shards of a stopped run are touched
        create_pretraining_data(given, partial(_by_ray, address=config.ray_address))
    else:
        create_pretraining_data(given, ordered_map)


def _by_ray(make: ShardMaker, jobs: Iterable[ShardJob], workers: int, address: str) -> Iterator[Path]:
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

    def __call__(self, job: ShardJob) -> Path:
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


def main() -> None:
    """Run the command ``ernie-pair prepare``."""
    run_command(prepare, PrepareConfig)


if __name__ == "__main__":
    main()
