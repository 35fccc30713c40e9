"""The checkpoints of a run: a step_NNNNNNNN/ folder is complete if its manifest says so, and immutable.

output_dir/
    run.lock                        held by the first rank for the life of the run
    run.json                        which run it is, and whether it has published a checkpoint (run_folder.py)
    ranks/                          heartbeats of a run of several processes (watchdog.py)
    checkpoints/step_00005000/      see checkpoint_folder.py
    checkpoints/.tmp-* .trash-*     being made or deleted: never read; those of a killed run are removed
                                    at the next start, recognized by their names (atomic_files.py)
    checkpoints/.bad-*              damaged, set aside, never read or deleted
    model_last -> checkpoints/step_00005000     for the user; a run does not rely on it

Every rank writes its own files into a draft, forces them to disk, and tells the others what it wrote,
or why it could not: then all raise the same error, the draft is removed and earlier checkpoints stay.
Nothing here depends on a model or a framework.
"""

import logging
import os
import re
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ernie_pair.checkpoint.checkpoint_folder import (
    MANIFEST,
    STATE,
    Checkpoint,
    Content,
    write_content,
    write_synced,
)
from ernie_pair.checkpoint.fingerprint import NO_RULES, RunRules, check_known_keys
from ernie_pair.checkpoint.manifest import (
    DamagedError,
    TrainState,
    installed_versions,
    manifest_bytes,
    state_bytes,
)
from ernie_pair.checkpoint.run_folder import (
    CHECKPOINTS,
    LAST,
    LOCK,
    OWN_LINK,
    RunLock,
    check_no_lost_checkpoints,
    ensure_run_id,
    note_checkpoint,
    set_aside_run,
)
from ernie_pair.core.errors import CheckpointError, InputError, MachineError
from ernie_pair.core.files.atomic_files import BAD, FILLING, TRASH, own_name, stem_of, to_disk
from ernie_pair.core.files.atomic_folder import (
    clear_leftovers,
    point_link,
    remove_or_warn,
    rename_for_good,
    set_aside,
)
from ernie_pair.runtime.processes.watchdog import clear_heartbeats
from ernie_pair.runtime.processes.world import AllReduce, World, gather_results, raised_on_all

STEP_FOLDER = re.compile(r"step_(\d{8})")
NEWEST_OF_ALL, NONE = 10**9, -1

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run, as seen by one of its ranks. Every rank calls every method.

    ``keep``: number of newest checkpoints to keep; with ``every`` also those of its multiples.
    ``local``: the place of this rank among those that share a folder, if not all do; their
    ranks are consecutive, and the first of them creates and cleans up the folder.
    ``fresh_start``: set aside what an earlier run left.
    Raises InputError when another run holds the folder, CheckpointError when it was used before and its
    checkpoints are gone: a run never silently starts from the beginning.
    """

    def __init__(
        self,
        output_dir: Path,
        world: World,
        all_reduce: AllReduce,
        keep: int = 3,
        every: int = 0,
        local: Optional[World] = None,
        fresh_start: bool = False,
    ):
        self.output_dir, self.folder = Path(output_dir), Path(output_dir) / CHECKPOINTS
        self.world, self.local, self.all_reduce = world, local or world, all_reduce
        self.keep, self.every, self.fresh_start = keep, every, fresh_start
        self.changes: List[Dict] = []
        self._damaged: Dict[Path, str] = {}
        self._lock: Optional[RunLock] = None
        self._bytes_before = 0
        self._cleaner = ThreadPoolExecutor(1)  # a run need not wait until an old checkpoint is deleted
        self.run_id, self._attempt = self._on_all_ranks(self._open)[0]

    def resume(
        self,
        fingerprint: Dict[str, object],
        topology: Dict[str, object],
        allowed: Sequence[str] = (),
        rules: RunRules = NO_RULES,
    ) -> Optional[Checkpoint]:
        """Return ``newest()`` if it belongs to this run; see `fingerprint.check_same_run`.

        Allowed changes are recorded in every later manifest. Raises InputError if the ranks
        have different settings, or others than the checkpoint was made with.
        """
        check_known_keys(fingerprint, allowed)
        check_ranks_agree(self.all_reduce, self.world, fingerprint)
        checkpoint = self.newest()
        if checkpoint is not None:
            changes = checkpoint.check_same_run(fingerprint, allowed, rules)
            self.changes = checkpoint.manifest["changes"] + changes
            checkpoint.log_other_changes(topology)
        return checkpoint

    def newest(self) -> Optional[Checkpoint]:
        """Return the newest checkpoint that is intact in every folder; None if there never was one.

        A damaged one is set aside with a warning, and the one before it is used. Raises CheckpointError
        when all are damaged: a run never silently starts from the beginning.
        """
        limit = NEWEST_OF_ALL
        while True:
            offers: List[Any] = self._on_all_ranks(partial(self._newest_here, limit))
            steps = {offer[0] for offer in offers if offer}
            if len(steps) == 1:
                break
            limit = min(steps)
            if limit == NONE:
                raise CheckpointError(
                    f"{self.folder} holds different checkpoints on the machines, and none that "
                    "all have; copy one to every machine, or use another --output_dir"
                )
        step, sha256 = offers[self.world.rank - self.local.rank]
        if step == NONE:
            return None
        return self._adopt(self.folder / _name_of(step), sha256)

    def save(
        self,
        state: TrainState,
        fingerprint: Dict[str, object],
        files: Iterable[Tuple[str, Content]],
        topology: Dict[str, object],
    ) -> None:
        """Publish the files of all ranks as the checkpoint of ``state``.

        ``files``: (name, content) of this rank, taken one by one; names differ between the ranks.
        Raises, on all ranks alike, MachineError when a disk fails and NumbersError when a tensor is
        not finite: then nothing is published.
        """
        draft = self._draft_path(FILLING, state.step)
        manifest = {
            "run_id": self.run_id,
            "step": state.step,
            "fingerprint": fingerprint,
            "topology": topology,
        }
        manifest.update(changes=self.changes, versions=installed_versions())
        try:
            with raised_on_all(self.all_reduce, self.world):
                if self.local.is_first:
                    self._create_draft(draft)
            rank = self.world.rank
            written = self._on_all_ranks(
                lambda: [{**write_content(draft / name, content), "rank": rank} for name, content in files]
            )
            first = rank - self.local.rank  # of those that share a folder
            entries = [entry for of_rank in written[first : first + self.local.size] for entry in of_rank]
            with raised_on_all(self.all_reduce, self.world):
                if self.local.is_first:
                    self._publish(draft, state, manifest, entries)
        except BaseException:
            if self.local.is_first:
                shutil.rmtree(draft, ignore_errors=True)
            raise
        if self.local.is_first:
            self._delete_old()

    def close(self) -> None:
        """Wait until old checkpoints are deleted, and release the output folder."""
        self._cleaner.shutdown()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _on_all_ranks(self, action: Callable[[], object]) -> List:
        return gather_results(self.all_reduce, self.world, action)

    def _open(self) -> Tuple[str, str]:
        """Lock and clean the folder; return (name of the run, name of this start of it)."""
        if not self.local.is_first:
            return "", ""
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self._lock = RunLock(self.output_dir / LOCK)
        try:
            self._prepare_folder()
            return ensure_run_id(self.output_dir), secrets.token_hex(8)
        except BaseException:
            self._lock.release()
            raise

    def _prepare_folder(self) -> None:
        """Remove what a killed start left, and check that continuing loses nothing."""
        if self.fresh_start:
            set_aside_run(self.output_dir)
        self.folder.mkdir(exist_ok=True)
        clear_leftovers(self.folder, lambda name: name.startswith("step_"))
        clear_heartbeats(self.output_dir)
        known = {path.name for path in published_steps(self.folder).values()}
        strange = sorted(name for name in os.listdir(self.folder) if name not in known)
        strange = [name for name in strange if not name.startswith(BAD) and not stem_of(name)]
        if strange:
            shown = ", ".join(strange[:3])
            logger.warning("%s: %d entries are not checkpoints: %s", self.folder, len(strange), shown)
        if known:
            ensure_run_id(self.output_dir)
            note_checkpoint(self.output_dir)
        elif not list(self.folder.glob(f"{BAD}*")):
            check_no_lost_checkpoints(self.output_dir)

    def _draft_path(self, kind: str, step: int) -> Path:
        """Return a hidden path, the same on all ranks of this start."""
        return self.folder / own_name(f"{kind}{_name_of(step)}", self._attempt)

    def _newest_here(self, most: int) -> Optional[Tuple[int, str]]:
        """Return step and hash of the newest sound checkpoint up to ``most``; None: another rank decides."""
        if not self.local.is_first:
            return None
        checkpoint = newest_sound(self.folder, self._damaged, most)
        if checkpoint is None:
            return NONE, ""
        self._bytes_before = sum(entry["size"] for entry in checkpoint.files.values())
        return checkpoint.step, checkpoint.sha256

    def _adopt(self, folder: Path, sha256: str) -> Checkpoint:
        """Make ``folder`` the newest checkpoint, and check that this rank sees it as the first one does."""
        with raised_on_all(self.all_reduce, self.world):
            if self.local.is_first:
                self._set_aside_others(folder)
        with raised_on_all(self.all_reduce, self.world):
            seen = Checkpoint(folder)
            if seen.sha256 != sha256:
                raise CheckpointError(
                    f"{folder} differs from what the first rank sees; give all ranks the same folder"
                )
        return seen

    def _set_aside_others(self, chosen: Path) -> None:
        for step, folder in published_steps(self.folder).items():
            if folder in self._damaged or step > int(chosen.name[5:]):
                reason = self._damaged.get(folder, f"{folder} is not on every machine")
                aside = set_aside(folder)
                logger.warning("%s; it is now %s, and %s is taken", reason, aside.name, chosen.name)
        self._damaged = {}
        self._point_model_last_to(chosen, expected=True)

    def _create_draft(self, draft: Path) -> None:
        """Create ``draft``, unless there is clearly no room for a checkpoint as large as the one before."""
        free, wanted = shutil.disk_usage(self.folder).free, self._bytes_before
        if free < wanted:
            raise MachineError(
                f"{self.folder}: {free} bytes free, a checkpoint takes {wanted}; make room, then start the "
                "same command again"
            )
        draft.mkdir()

    def _publish(self, draft: Path, state: TrainState, manifest: Dict, entries: List[Dict]) -> None:
        final = self.folder / _name_of(state.step)
        entries = [*entries, {**write_synced(draft / STATE, state_bytes(state)), "rank": self.world.rank}]
        write_synced(draft / MANIFEST, manifest_bytes({**manifest, "files": entries}))
        to_disk(draft)
        if os.path.lexists(final):  # a link or a file of the user: no checkpoint of this run has the step
            logger.warning("%s occupied the path of a checkpoint; it is now %s", final, set_aside(final).name)
        rename_for_good(draft, final)
        self._point_model_last_to(final)
        note_checkpoint(self.output_dir)
        self._bytes_before = sum(entry["size"] for entry in entries)

    def _point_model_last_to(self, final: Path, expected: bool = False) -> None:
        """Point model_last to ``final``; ``expected``: warn if it did not do so already."""
        link = self.output_dir / LAST
        if point_link(link, final.relative_to(self.output_dir), OWN_LINK) and expected:
            logger.warning("%s did not point to the newest checkpoint, %s; now it does", link, final.name)

    def _delete_old(self) -> None:
        """Delete old checkpoints; each is renamed first: none that is partly deleted looks complete."""
        published = published_steps(self.folder)
        for step in sorted(published)[: -self.keep]:
            if self.every and step % self.every == 0:
                continue
            trash = self._draft_path(TRASH, step)
            try:
                published[step].rename(trash)
            except OSError as error:
                logger.warning("%s cannot be deleted (%s)", published[step], error.strerror)
                continue
            self._cleaner.submit(remove_or_warn, trash)


def check_ranks_agree(all_reduce: AllReduce, world: World, fingerprint: Dict[str, object]) -> None:
    """Raise InputError on every rank if their fingerprints differ; called by every rank."""
    given = gather_results(all_reduce, world, lambda: fingerprint)
    for rank, other in enumerate(given):
        for key in {*given[0], *other}:
            if given[0].get(key) != other.get(key):
                raise InputError(
                    f"rank {rank} was started with {key} {other.get(key)!r} and rank 0 with "
                    f"{given[0].get(key)!r}; start all of them with the same flags"
                )


def published_steps(folder: Path) -> Dict[int, Path]:
    """Return {step: its folder} of the checkpoints in ``folder``, intact or not."""
    with os.scandir(folder) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return {int(name[5:]): folder / name for name in folders if STEP_FOLDER.fullmatch(name)}


def newest_sound(folder: Path, damaged: Dict[Path, str], most: int = NEWEST_OF_ALL) -> Optional[Checkpoint]:
    """Return the newest checkpoint up to step ``most`` whose every byte is right; None: there never was one.

    ``damaged`` grows by {folder: why} of the others. Raises CheckpointError if all are damaged.
    """
    published = published_steps(folder)
    for step in sorted(filter(most.__ge__, published), reverse=True):
        try:
            checkpoint = Checkpoint(published[step])
            checkpoint.verify()
            if checkpoint.step != step:
                raise DamagedError(f"{checkpoint.folder} is of step {checkpoint.step}")
            return checkpoint
        except DamagedError as error:
            damaged[published[step]] = error.message
    reasons = [*damaged.values(), *(f"{path} was set aside" for path in sorted(folder.glob(f"{BAD}*")))]
    if not reasons:
        return None
    raise CheckpointError(
        f"no usable checkpoint in {folder}: {'; '.join(reasons[:5])}; use another --output_dir"
    )


def _name_of(step: int) -> str:
    return f"step_{step:08d}"
