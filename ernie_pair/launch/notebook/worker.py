"""One process of `notebook_launcher`: calls the function and stores its result.

python -m ernie_pair.launch.notebook.worker FOLDER RANK
"""

import os
import pickle
import sys
import time
import traceback
from pathlib import Path

from ernie_pair.core.errors import InputError, LostProcessError
from ernie_pair.core.files.atomic_files import published
from ernie_pair.launch.notebook.notebook_launcher import MODULES, PAYLOAD, UNPACKABLE, packed
from ernie_pair.runtime.processes.stop_signals import stop_with_the_launcher


def main() -> None:
    """Call the function of FOLDER as rank RANK, and leave its answer there."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    stop_with_the_launcher()
    try:
        sys.path[:] = pickle.loads((folder / MODULES).read_bytes())
        function, args = pickle.loads((folder / PAYLOAD).read_bytes())
        result = function(*args)
        try:
            answer = packed({"result": result if rank == 0 else None})
        except UNPACKABLE as error:
            raise InputError(
                f"what the function returned cannot be sent back ({error}); return numbers, texts or arrays"
            ) from None
    except BaseException as error:
        try:
            itself = packed(error)
        except Exception:  # whatever it holds; its text remains
            itself = b""
        failure = {
            "error": itself,
            "said": traceback.format_exception_only(type(error), error)[-1].strip(),
            "rank": rank,
            "traceback": f"rank {rank}:\n{traceback.format_exc()}",
            "is_of_a_peer": isinstance(error, LostProcessError),
            "time": time.time(),
        }
        _leave(folder, rank, pickle.dumps(failure))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # whatever waits for the others stays behind
    _leave(folder, rank, answer)


def _leave(folder: Path, rank: int, answer: bytes) -> None:
    with published(folder / f"answer.{rank}", forced=False) as (draft,):
        draft.write_bytes(answer)


if __name__ == "__main__":
    main()
