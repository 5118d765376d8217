"""The files of adapters: found, read, and put on a loaded model."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from modules.adapters.adapter_facts import EMBEDDING_IMAGE_SUFFIXES, EMBEDDING_SUFFIXES
from modules.adapters.catalogue import SHORT_HASH, AdapterCatalogue, AdapterInfo
from modules.adapters.tags import LoraTag, plain_name
from modules.prompting.cache import AdapterUse
from modules.prompting.extra_networks import PromptTags
from modules.settings.sections.stable_diffusion import (
    AI_TOOLKIT,
    AI_TOOLKIT_CACHED,
    AUTOMATIC_REFERENCES,
    IDENTITY_EDIT,
)
from modules.settings.values import Settings
from modules.system.model_folders import FilesBelow, as_folders
from modules.system.texts import page_text

if TYPE_CHECKING:
    from modules.adapters.adapter_facts import Digests
    from modules.adapters.adapter_file import AdapterFile
    from modules.adapters.applying import AdapterApplier, LoraMode, Retention, Use
    from modules.adapters.embeddings import Embedding, EmbeddingStore
    from modules.models.loading.loaded import LoadedModel
    from modules.models.loading.precision import PrecisionPlan

log = logging.getLogger(__name__)
FILES_KEPT = 4  # in main memory, besides those in use
AUTOMATIC = "Automatic"


@dataclass(frozen=True)
class EffectKept:
    """How much of the effect of an adapter the weights kept when it was last used: 1 is all of it.

    `noise` and the `worst` layers are those of all adapters of that image together, see `Retention`.
    """

    retention: float
    mode: str
    noise: float = 0.0
    worst: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class LoadedAdapters:
    """The result of `AdapterFiles.put_on`. `hashes` are those of the files by the adapters' names, `missing` names
    without a file, `embeddings` the words that came inside the files. `mode_matters`: the infotext should say it."""

    uses: tuple[AdapterUse, ...] = ()
    mode: str = ""
    mode_matters: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    retention: Retention | None = None
    embeddings: Mapping[str, Embedding] = field(default_factory=dict)


class AdapterFiles:
    """Finds, reads and applies adapters. One for the program; call `put_on` with the engine's lock held."""

    def __init__(
        self,
        folders: tuple[Path, ...] = (),
        embeddings: Path | Iterable[Path] | None = None,
        hypernetworks: Path | Iterable[Path] | None = None,
    ) -> None:
        """Folders of LoRA-family files, of textual inversion embeddings, of hypernetworks."""
        self.catalogue = AdapterCatalogue(folders)
        self.hypernetworks = AdapterCatalogue(as_folders(hypernetworks), (".pt",))
        self._embeddings_folders = as_folders(embeddings)
        self._embeddings: EmbeddingStore | None = None
        self._files: OrderedDict[str, AdapterFile] = OrderedDict()
        self.effect_kept: dict[Path, EffectKept] = {}

    def knows(self, name: str) -> bool:
        """Whether there is an adapter of the LoRA family of this name, alias or hash."""
        return self.catalogue.find(name) is not None

    def named_in(self, tags: PromptTags) -> list[AdapterInfo]:
        """Return the files of the LoRA family that these tags of a prompt name."""
        names = {tag.items[0] for same_type in tags.values() for tag in same_type if tag.items}
        return [info for info in map(self.catalogue.find, names) if info is not None]

    def references_shown_as(self, tags: PromptTags, settings: Settings) -> str:
        """Return the name in `ModelInputs.extra` of the references of a job with these tags, for models that edit by
        adapters."""
        from modules.models.families.denoiser_context import CLEAN_REFERENCE, ISOLATED_REFERENCE, REFERENCE

        asked = settings.img2img.krea2_references
        if asked == AUTOMATIC_REFERENCES:
            is_toolkit = any(info.trainer == "ai-toolkit" for info in self.named_in(tags))
            asked = AI_TOOLKIT if is_toolkit else IDENTITY_EDIT
        return {AI_TOOLKIT: CLEAN_REFERENCE, AI_TOOLKIT_CACHED: ISOLATED_REFERENCE}.get(asked, REFERENCE)

    def put_on(self, model: LoadedModel, wanted: Sequence[LoraTag]) -> LoadedAdapters:
        """Have exactly these adapters of the LoRA family on the model, in the mode of its precision plan.

        Those that no file answers to are left out and named in the result. Raises `AdapterError` for a file that
        cannot be used on this model; the model is then without adapters.
        """
        from modules.adapters.applying import LoraMode, Use

        uses, hashes, missing, infos = [], {}, [], []
        for tag in wanted:
            info = self.catalogue.find_current(tag.name)
            if info is None:
                missing.append(tag.name)
                continue
            digests = self.digests(self.catalogue, info)
            self._load(info, digests.content)
            strengths = (tag.te_strength, tag.unet_strength, tag.dynamic_rank, tag.blocks, tag.steps)
            uses.append(Use(tag.name, digests.content, *strengths))
            hashes[plain_name(tag.name)] = digests.tensors[:SHORT_HASH]
            infos.append(info)
        applier = self._applier(model)
        if not uses:
            applier.remove()
            return LoadedAdapters(missing=tuple(missing))
        is_low_precision = model.is_low_precision
        mode = lora_mode(model.plan, is_low_precision)
        applier.apply(uses, self._files, mode, model.plan.cache_fp16_weight)
        self._forget({use.file_hash for use in uses})
        self._note_retention(infos, applier.retention, mode)
        rounds = mode in (LoraMode.INTO_STORED, LoraMode.STOCHASTIC) and applier.retention is not None
        return LoadedAdapters(
            uses=tuple(
                AdapterUse(
                    name=use.name,
                    file_hash=use.file_hash,
                    te_multiplier=use.te_strength,
                    unet_multiplier=use.unet_strength,
                    dyn_dim=use.dynamic_rank,
                    blocks=use.blocks,
                    steps=(use.steps.start, use.steps.stop),
                )
                for use in uses
            ),
            mode=mode.value,
            mode_matters=is_low_precision or model.plan.lora_mode != AUTOMATIC,
            hashes=hashes,
            missing=tuple(missing),
            notices=((_weak(applier.retention),) if rounds and applier.retention else ()) + tuple(applier.notices),
            retention=applier.retention,
            embeddings=self._bundled(uses),
        )

    @staticmethod
    def digests(catalogue: AdapterCatalogue, info: AdapterInfo) -> Digests:
        """The hashes of a file's bytes; raises `AdapterError` for one that cannot be read."""
        from modules.adapters.adapter_facts import AdapterError

        try:
            return catalogue.digests(info)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise AdapterError(f"{info.path.name}: cannot be read ({why}). Refresh the list of adapters.") from error

    @property
    def embeddings(self) -> EmbeddingStore:
        """Textual inversion embeddings; the first use imports torch and reads the folder."""
        if self._embeddings is None:
            from modules.adapters.embeddings import EmbeddingStore

            self._embeddings = EmbeddingStore(self._embeddings_folders)
            self._embeddings.refresh()
        return self._embeddings

    @property
    def embedding_files(self) -> tuple[tuple[Path, int], ...]:
        """Files in the folders of embeddings, with their times; imports no torch and reads none."""
        found = FilesBelow().of(self._embeddings_folders, (*EMBEDDING_SUFFIXES, *EMBEDDING_IMAGE_SUFFIXES))
        return tuple((path, path.stat().st_mtime_ns) for _, files in found for path in files)

    def _bundled(self, uses: Sequence[Use]) -> dict[str, Embedding]:
        """Embeddings that came inside of the adapter files in use, by name."""
        from modules.adapters.embeddings import Embedding, vectors_of

        found = {}
        for use in uses:
            for name, data in self._files[use.file_hash].embeddings.items():
                found[name] = Embedding(
                    name, f"{use.file_hash}:{name}", vectors_of(name, data), bundled_in=plain_name(use.name)
                )
        return found

    def _note_retention(self, infos: list[AdapterInfo], retention: Retention | None, mode: LoraMode) -> None:
        """Keep for lists how much of each effect was kept, and log what is new."""
        measured = retention.adapters if retention is not None else ()
        for info, (name, kept) in zip(infos, measured, strict=True):
            assert retention is not None
            effect_kept = EffectKept(kept, mode.value, retention.noise, retention.worst)
            if self.effect_kept.get(info.path) != effect_kept:
                log.info("LoRA %s: applied, %.1f %% of its effect kept (%s).", name, kept * 100, mode.value)
            self.effect_kept[info.path] = effect_kept

    def _load(self, info: AdapterInfo, content: str) -> None:
        from modules.adapters.adapter_file import read_adapter_file

        if content not in self._files:
            self._files[content] = read_adapter_file(info.path)
        self._files.move_to_end(content)

    def _forget(self, in_use: set[str]) -> None:
        spare = [content for content in self._files if content not in in_use]
        for content in spare[: max(0, len(spare) - FILES_KEPT)]:
            del self._files[content]

    @staticmethod
    def _applier(model: LoadedModel) -> AdapterApplier:
        """The model's own; it lives and dies with it."""
        from modules.adapters.applying import AdapterApplier
        from modules.adapters.targets import TargetTable
        from modules.models.loading.full_precision import FullPrecisionFile
        from modules.models.loading.precision import ComputeMode

        if model.adapters is None:
            parts = {
                part.name: (part.module, part.keymap.to_original) for part in model.components if part.name != "vae"
            }
            optional = model.family.texts.optional
            switched_off = optional.adapter_names if optional is not None and not model.has_optional else ()
            autocast = model.plan.compute_dtype if model.plan.mode is ComputeMode.AUTOCAST else None
            model.adapters = AdapterApplier(
                TargetTable(parts, switched_off, model.family.grown),
                FullPrecisionFile(model),
                model.device,
                autocast,
            )
        applier: AdapterApplier = model.adapters
        return applier


def lora_mode(plan: PrecisionPlan, is_low_precision: bool) -> LoraMode:
    """Automatic: exact where weights are in 8 bits or fewer, which merging would round; else merged, which costs
    nothing per step."""
    from modules.adapters.applying import LoraMode

    if plan.lora_mode not in ("", AUTOMATIC):
        return LoraMode(plan.lora_mode)
    return LoraMode.EXACT if is_low_precision else LoraMode.MERGE


def _weak(retention: Retention) -> str:
    name, share = min(retention.adapters, key=lambda item: item[1])
    kept = f"{retention.retention:.0%}" + (f" ({name}: {share:.0%})" if len(retention.adapters) > 1 else "")
    return page_text(
        f"{kept} of the adapters' effect is kept after rounding to 8 bits, with {retention.noise:.0%} of noise. "
        "LoRA mode exact keeps all of it."
    )
