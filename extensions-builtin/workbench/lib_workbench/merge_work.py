"""Merging as the page and the command line ask for it: options becomes a request at once, the work runs as a task."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lib_workbench.merging.request import MergeOptions, MergeRequest, resolve
from modules.jobs.computing import Computing
from modules.jobs.line import Line
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec
from modules.models.autoencoders.files import VaeCatalogue
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo
from modules.processing.engine.precision import storage_rules
from modules.system.texts import page_text

if TYPE_CHECKING:
    from lib_workbench.merging.merge import MergeResult, Progress

MERGE_TYPE = "merge"
NEEDED = "modules.models.loading.load_model"  # what imports diffusers and transformers


@dataclass(frozen=True)
class Merger:
    """Merges checkpoints of a catalogue into `folder`. Imports torch when it works, not before.

    `import_lock` is held while packages are imported that a load in the background may import too: their lazy modules
    must not meet halfway.
    """

    catalogue: CheckpointCatalogue
    vaes: VaeCatalogue
    folder: Path
    configs_dir: Path
    hashing: bool = True
    import_lock: threading.RLock = field(default_factory=threading.RLock)

    def resolve(self, options: MergeOptions) -> MergeRequest:
        """Check options, see `merging.options.resolve`. Imports no torch."""
        return resolve(options, self.catalogue, self.vaes, self.folder)

    def run(
        self,
        request: MergeRequest,
        progress: Progress,
        skip: Sequence[str] = (),
        text_encoders: bool = True,
    ) -> MergeResult:
        """Merge in the calling thread, see `merging.merge.merge`; afterwards the catalogue knows the result.

        In an 8-bit format, layers that one of the patterns `skip` finds, and without `text_encoders` those, stay in 16
        bits.
        """
        self._import()
        from lib_workbench.merging.merge import merge

        rules = storage_rules(request.storage, tuple(skip))
        result = merge(request, self.configs_dir, rules, self._hashed, progress, text_encoders)
        self.catalogue.refresh()
        return result

    def metadata_of(self, names: Sequence[str]) -> dict[str, str]:
        """Join what the metadata of these models' files say together; where they differ, the first one's."""
        infos = [self.catalogue.get(name) for name in names if name]
        self._import()
        from lib_workbench.merging.recipe import copied_metadata
        from modules.models.opening.checkpoint import open_checkpoint

        tables = []
        for info in infos:
            with open_checkpoint(info.path) as file:
                tables.append(file.metadata)
        return copied_metadata(tables)

    def _hashed(self, info: CheckpointInfo, on_read: Callable[[int], None]) -> CheckpointInfo:
        return self.catalogue.with_hash(info, on_read) if self.hashing else info

    def _import(self) -> None:
        if hasattr(sys.modules.get(NEEDED), "load_model"):
            return  # it is complete, and the lock may be held by a long job
        with self.import_lock:
            from lib_workbench.merging import merge as _merge

            assert _merge


def start_merge(
    queue: Line, merger: Merger, options: MergeOptions, skip: Sequence[str] = (), text_encoders: bool = True
) -> Task:
    """Put a merge in line; `skip` and `text_encoders` as in `Merger.run`. Raises what is wrong with the options."""
    return queue.submit_spec(merge_spec(merger, options, skip, text_encoders))


def merge_spec(merger: Merger, options: MergeOptions, skip: Sequence[str], text_encoders: bool) -> TaskSpec:
    """A merge before it is in line. Raises as `start_merge`."""
    request = merger.resolve(options)

    def work(task: Task) -> Outcome:
        done = merger.run(request, task.progress, skip, text_encoders)
        return {
            "file": done.path.name,
            "tensors": done.tensors,
            "size_bytes": done.size_bytes,
            "seconds": round(done.seconds, 3),
            "notices": done.notices,
        }

    asked = {"options": asdict(options), "skip": list(skip), "text_encoders": text_encoders}
    return TaskSpec(MERGE_TYPE, page_text(f"Merging into {request.target.name}"), work, asked)


def merge_starters(merger: Merger) -> Mapping[str, Starter]:
    """How a merge is begun from its record."""
    return {
        MERGE_TYPE: lambda asked: merge_spec(
            merger, MergeOptions(**asked["options"]), tuple(asked["skip"]), bool(asked["text_encoders"])
        )
    }


def merger_of(computing: Computing) -> Merger:
    """Return the merges of this program; results lie in the first folder of checkpoints."""
    return Merger(
        computing.catalogue,
        computing.engine.vaes,
        computing.paths.checkpoint_dirs[0],
        computing.paths.root / "configs",
        hashing=not computing.flags.no_hashing,
        import_lock=computing.engine.lock,
    )
