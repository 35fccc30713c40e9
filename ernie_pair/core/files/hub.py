"""A model that is given as the Hugging Face Hub names it, org/name: its folder in the cache of that library.

A revision that is in the cache is used without asking the Hub, so that a name stands for the same model until
`hf download` renews it. Records have the commit, org/name@0123abc..., and a flag takes that as well.
"""

import logging
import os
import re
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Optional

from ernie_pair.core.errors import InputError, again_with
from ernie_pair.core.files.atomic_files import MAX_CONFIG_BYTES, read_regular
from ernie_pair.core.files.keyed_cache import build_once
from ernie_pair.core.progress import say, shows_bars

_WORD = r"[A-Za-z0-9][\w.-]*"
HUB_NAME = re.compile(rf"(?!.*(--|\.\.|\.git$)){_WORD}/{_WORD}(@[\w.-]+)?")
ONE_WORD = re.compile(_WORD)  # bert-base-chinese, which belongs to no organization
# PaddleNLP's own, which it loads itself.
BUILT_IN = """
    hfl/roberta-wwm-ext hfl/roberta-wwm-ext-large hfl/rbt6 hfl/rbt4 hfl/rbt3 hfl/rbtl3
    uer/chinese-roberta-base uer/chinese-roberta-medium uer/chinese-roberta-6l-768h
    uer/chinese-roberta-small uer/chinese-roberta-mini uer/chinese-roberta-tiny
""".split()
MAIN = "main"
OTHER_FORMATS = ("tf_model*", "flax_model*", "rust_model*", "onnx/*", "openvino/*", "coreml/*")
SAFE, PICKLED = "model*.safetensors", "pytorch_model*.bin"  # the second only where the first is not
LIBRARIES = ("huggingface_hub", "httpx", "requests")
WAIT = 86400.0  # seconds for another process that downloads the same
REASONS = {  # {error of the library, the more specific first: what is wrong, and what helps}
    "GatedRepoError": "{name} is gated: accept its conditions on {hub}/{name} and log in with "
    "`hf auth login`",
    "RepositoryNotFoundError": "{hub} has no {name} that is public: correct the name, or log in with "
    "`hf auth login` if it is private",
    "RevisionNotFoundError": "{name} has no revision {revision}: correct what follows the @",
}


class HubFolder(str):
    """The folder of a model of the Hub in the cache."""

    @property
    def given(self) -> str:
        """Return what names it again, on any machine: org/name@commit."""
        repository, commit = Path(self).parts[-3::2]
        return f"{'/'.join(repository.split('--')[1:])}@{commit}"


def is_hub_name(given: str) -> bool:
    """Return whether ``given`` may be org/name of the Hub: it is no path here, nor PaddleNLP's."""
    is_here = os.path.lexists(given) or os.path.isdir(given.partition("/")[0])
    return bool(HUB_NAME.fullmatch(given)) and not is_here and given not in BUILT_IN


def local_model(given: str, flag: str = "", output_dir: str = "") -> str:
    """Return the folder of the model ``given`` as org/name or org/name@revision; anything else as it is.

    It is downloaded if the cache lacks it, by one process for all of this machine. ``flag`` it is the value
    of, for errors. ``output_dir``: of a command, which has the revision that an earlier start of it took.
    Raises InputError with the commands that fetch it if it is neither there nor to be had.
    """
    if not is_hub_name(given):
        return given
    name, _, revision = given.partition("@")
    revision = revision or _recorded_revision(name, output_dir) or MAIN
    from huggingface_hub import constants

    read, build = partial(_read_cached, name, revision), partial(_download, name, revision)
    lock = Path(constants.HF_HUB_CACHE, ".locks", f"ernie-pair--{name.replace('/', '--')}.lock")
    try:
        folder = (read() or build()) if constants.HF_HUB_OFFLINE else build_once(lock, WAIT, read, build)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in LIBRARIES:
            raise
        known = [REASONS[each.__name__] for each in type(error).__mro__ if each.__name__ in REASONS]
        usual = "{hub} cannot be reached" + (" (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else "")
        reason = (known or [usual])[0].format(name=name, hub=constants.ENDPOINT, revision=revision)
        shown = f"--{flag} {given}" if flag else given
        hint = download_hint(given, is_there=not known)
        raise InputError(f"{shown} is not a folder, and {reason}{hint}") from None
    return HubFolder(folder)


def download_hint(given: str, is_there: bool = True) -> str:
    """Return the commands that fetch a model and go on if ``given`` looks like its name on a Hub, else ''.

    ``is_there``: False where the Hugging Face Hub has said that it does not give it.
    """
    if not (is_hub_name(given) or ONE_WORD.fullmatch(given) and not os.path.lexists(given)):
        return ""
    name, _, revision = given.partition("@")
    folder, here = name.rpartition("/")[2], Path(sys.executable)
    programs = (p for p in ("hf", "huggingface-cli") if here.with_name(p).exists() or shutil.which(p))
    words = [next(programs, "hf"), "download", name, *(["--revision", revision] if revision else [])]
    ways = [f"from Hugging Face: {shlex.join([*words, '--local-dir', folder])}"] if is_there else []
    if "/" in name and not revision:
        ways += [f"from ModelScope: modelscope download --model {name} --local_dir {folder}"]
    again = again_with({given: folder})
    return f"; fetch its folder {' or '.join(ways)}; then give the folder: {again}" if ways else ""


def _recorded_revision(name: str, output_dir: str) -> str:
    """Return the commit of ``name`` that a record in the folder has, the earliest; or ''."""
    folder = Path(output_dir or os.devnull)
    for path in [*sorted(folder.glob("config*.yaml")), *folder.glob("pipeline.json")]:
        with suppress(OSError, ValueError, IndexError):  # of something else with that name
            text = read_regular(path, MAX_CONFIG_BYTES).decode("utf-8", "replace")
            return re.findall(rf"(?<![\w.-]){re.escape(name)}@([0-9a-f]{{40}})", text)[0]
    return ""


def _read_cached(name: str, revision: str) -> Optional[str]:
    """Return the folder in the cache; None if it is not there or lacks a file."""
    from huggingface_hub import errors

    unfinished = getattr(errors, "IncompleteSnapshotError", None)
    if unfinished is None:
        return None  # this release cannot tell, and looks itself which files it lacks
    try:
        return _take_snapshot(name, revision, is_local=True)
    except (errors.LocalEntryNotFoundError, unfinished):
        return None


def _download(name: str, revision: str) -> str:
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        (enable_progress_bars if shows_bars() else disable_progress_bars)()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # PaddleNLP shows a line of it for each request
    if not constants.HF_HUB_OFFLINE:
        say(f"downloading {name} from {constants.ENDPOINT} into {constants.HF_HUB_CACHE}", sys.stderr)
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))
    try:
        return _take_snapshot(name, revision)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_snapshot(name: str, revision: str, is_local: bool = False) -> str:
    """Return the folder of a snapshot with all that this package reads; torch's weights if none are safe."""
    from huggingface_hub import snapshot_download

    take = partial(snapshot_download, name, local_files_only=is_local)
    folder = Path(take(revision=revision, ignore_patterns=[*OTHER_FORMATS, PICKLED]))
    if not any(folder.glob(SAFE)):
        take(revision=folder.name, ignore_patterns=[*OTHER_FORMATS])
    return str(folder)
