"""From the tags in a prompt to networks on the loaded model, and to what the picture says about them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from modules.networks.catalogue import SHORT_HASH, NetworkCatalogue, NetworkInfo
from modules.networks.tags import lora_tags, name_in
from modules.processing.pasted_networks import plain_name
from modules.prompting.cache import NetworkUse
from modules.prompting.extra_networks import NetworkTag, NetworkTags
from modules.settings.values import Settings

if TYPE_CHECKING:
    from modules.models.loaded import LoadedModel
    from modules.models.precision import PrecisionPlan
    from modules.networks.applying import LoraMode, NetworkApplier, Survival
    from modules.networks.embeddings import Embedding, EmbeddingStore
    from modules.networks.network_file import Digests, NetworkFile

log = logging.getLogger(__name__)
FILES_KEPT = 4  # in main memory, besides those in use
AUTOMATIC = "Automatic"
NO_LORA = "None"


@dataclass(frozen=True)
class ActiveNetworks:
    """What is on the model for a job: for the conditioning cache, the infotext and the user."""

    uses: tuple[NetworkUse, ...] = ()
    mode: str = ""
    fields: dict[str, object] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    survival: Survival | None = None


@dataclass(frozen=True)
class Arrived:
    """How much of a network arrived in the weights when it was last used: 1 is all of it.

    `noise` and the `worst` layers are those of all networks of that picture together, see `Survival`.
    """

    retention: float
    mode: str
    noise: float = 0.0
    worst: tuple[tuple[str, float], ...] = ()


class Networks:
    """Finds, reads and applies networks. One for the program; call `activate` with the engine's lock held."""

    def __init__(
        self,
        folders: tuple[Path, ...] = (),
        embeddings: Path | None = None,
        hypernetworks: Path | None = None,
    ) -> None:
        """Folders of LoRA-family files, of textual inversion embeddings, of hypernetworks."""
        self.catalogue = NetworkCatalogue(folders)
        self.hypernetworks = NetworkCatalogue((hypernetworks,) if hypernetworks else (), (".pt",))
        self._embeddings_folder = embeddings
        self._embeddings: EmbeddingStore | None = None
        self._files: OrderedDict[str, NetworkFile] = OrderedDict()
        self.arrived: dict[Path, Arrived] = {}

    def activate(self, model: LoadedModel, tags: NetworkTags, settings: Settings) -> ActiveNetworks:
        """Put exactly the networks of these tags on the model; what is there already stays.

        A name that no file answers to, and a tag that cannot be read, is left out with a notice. Raises
        `NetworkError` for a file that cannot be used on this model; the model is then without networks.
        """
        from modules.networks.applying import LoraMode, Use

        wanted, notices = lora_tags(self._with_setting(tags, settings), lambda name: _knows(self.catalogue, name))
        notices += self._activate_hypernetworks(model, tags, settings)
        uses, names, infos = [], [], []
        for tag in wanted:
            info = _find(self.catalogue, tag.name)
            if info is None:
                notices.append(
                    f"The network {tag.name!r} was not found and was left out. Refresh the list of networks."
                )
                continue
            digests = _digests(self.catalogue, info)
            self._load(info, digests.content)
            uses.append(Use(tag.name, digests.content, tag.te_strength, tag.unet_strength, tag.dynamic_rank))
            names.append((plain_name(tag.name), digests.tensors[:SHORT_HASH]))
            infos.append(info)
        mode = lora_mode(model.plan)
        applier = self._applier(model)
        if not uses:
            applier.remove()
            return ActiveNetworks(notices=tuple(notices))
        applier.apply(uses, self._files, mode, model.plan.cache_fp16_weight)
        self._forget({use.file_hash for use in uses})
        self._note_survival(infos, applier.survival, mode)
        fields: dict[str, object] = {}
        if settings.flag("lora_add_hashes_to_infotext"):
            fields["Lora hashes"] = ", ".join(f"{name}: {short}" for name, short in dict(names).items())
        if model.plan.is_low_precision or model.plan.lora_mode != AUTOMATIC:
            fields["LoRA mode"] = mode.value
        if mode in (LoraMode.INTO_STORED, LoraMode.STOCHASTIC) and applier.survival is not None:
            notices.append(_weak(applier.survival))
        return ActiveNetworks(
            uses=tuple(
                NetworkUse(
                    name=use.name,
                    file_hash=use.file_hash,
                    te_multiplier=use.te_strength,
                    unet_multiplier=use.unet_strength,
                    dyn_dim=use.dynamic_rank,
                )
                for use in uses
            ),
            mode=mode.value,
            fields=fields,
            notices=(*notices, *applier.notices),
            survival=applier.survival,
        )

    @property
    def embeddings(self) -> EmbeddingStore:
        """Textual inversion embeddings; the first use imports torch and reads the folder."""
        if self._embeddings is None:
            from modules.networks.embeddings import EmbeddingStore

            self._embeddings = EmbeddingStore(self._embeddings_folder)
            self._embeddings.refresh()
        return self._embeddings

    def bundled(self, uses: tuple[NetworkUse, ...]) -> dict[str, Embedding]:
        """Embeddings that came inside of the network files in use, by name."""
        from modules.networks.embeddings import Embedding, vectors_of

        found = {}
        for use in uses:
            for name, data in self._files[use.file_hash].embeddings.items():
                found[name] = Embedding(
                    name, f"{use.file_hash}:{name}", vectors_of(name, data), bundled_in=plain_name(use.name)
                )
        return found

    def _activate_hypernetworks(self, model: LoadedModel, tags: NetworkTags, settings: Settings) -> list[str]:
        from modules.networks.hypernetworks import HypernetworkHooks, read_hypernetwork
        from modules.networks.tags import hypernetwork_tags

        added = settings.text("sd_hypernetwork")
        if added not in ("", NO_LORA) and not _names(tags.get("hypernet", ()), added):
            strength = str(settings.number("extra_networks_default_multiplier"))
            tags = {**tags, "hypernet": [*tags.get("hypernet", ()), NetworkTag((added, strength))]}
        wanted, notices = hypernetwork_tags(tags, lambda name: _knows(self.hypernetworks, name))
        chosen = []
        for tag in wanted:
            info = _find(self.hypernetworks, tag.name)
            if info is None:
                notices.append(f"The hypernetwork {tag.name!r} was not found and was left out.")
                continue
            content = _digests(self.hypernetworks, info).content
            chosen.append((content, read_hypernetwork(info.path), tag.te_strength))
        if model.hypernetworks is None:
            model.hypernetworks = HypernetworkHooks(model.unet)
        model.hypernetworks.apply(chosen)
        return notices

    def _with_setting(self, tags: NetworkTags, settings: Settings) -> NetworkTags:
        """The setting "Add network to prompt" counts as a tag, unless the prompt names that network itself."""
        added = settings.text("sd_lora")
        if added in ("", NO_LORA) or _names(tags.get("lora", ()), added):
            return tags
        strength = str(settings.number("extra_networks_default_multiplier"))
        return {**tags, "lora": [*tags.get("lora", ()), NetworkTag((added, strength))]}

    def _note_survival(self, infos: list[NetworkInfo], survival: Survival | None, mode: LoraMode) -> None:
        """Keep for lists how much of each network arrived, and log what is new."""
        measured = survival.networks if survival is not None else ()
        for info, (name, retention) in zip(infos, measured, strict=True):
            assert survival is not None
            arrived = Arrived(retention, mode.value, survival.noise, survival.worst)
            if self.arrived.get(info.path) != arrived:
                log.info("LoRA %s: %.1f %% arrived (%s).", name, retention * 100, mode.value)
            self.arrived[info.path] = arrived

    def _load(self, info: NetworkInfo, content: str) -> None:
        from modules.networks.network_file import read_network

        if content not in self._files:
            self._files[content] = read_network(info.path)
        self._files.move_to_end(content)

    def _forget(self, in_use: set[str]) -> None:
        spare = [content for content in self._files if content not in in_use]
        for content in spare[: max(0, len(spare) - FILES_KEPT)]:
            del self._files[content]

    @staticmethod
    def _applier(model: LoadedModel) -> NetworkApplier:
        """The model's own; it lives and dies with it."""
        from modules.models.master import FileMaster
        from modules.models.precision import ComputeMode
        from modules.networks.applying import NetworkApplier
        from modules.networks.targets import TargetTable

        if model.networks is None:
            parts = {
                part.name: (part.module, part.keymap.to_original) for part in model.components if part.name != "vae"
            }
            autocast = model.plan.compute_dtype if model.plan.mode is ComputeMode.AUTOCAST else None
            model.networks = NetworkApplier(TargetTable(parts), FileMaster(model), model.device, autocast)
        applier: NetworkApplier = model.networks
        return applier


def lora_mode(plan: PrecisionPlan) -> LoraMode:
    """Automatic: exact on 8-bit weights, merged on 16-bit ones, where it costs nothing per step."""
    from modules.networks.applying import LoraMode

    if plan.lora_mode not in ("", AUTOMATIC):
        return LoraMode(plan.lora_mode)
    return LoraMode.EXACT if plan.is_low_precision else LoraMode.MERGE


def _find(catalogue: NetworkCatalogue, name: str) -> NetworkInfo | None:
    """The file as it is now; the folders are looked at again for one that is new, has changed, or has gone."""
    info = catalogue.find(name)
    if info is not None and _is_current(info):
        return info
    catalogue.refresh()
    return catalogue.find(name)


def _names(tags: Sequence[NetworkTag], name: str) -> bool:
    """Whether one of the tags is of this network."""
    return any(name_in(tag, name.__eq__)[0] == name for tag in tags)


def _knows(catalogue: NetworkCatalogue, name: str) -> bool:
    return catalogue.find(name) is not None


def _digests(catalogue: NetworkCatalogue, info: NetworkInfo) -> Digests:
    from modules.networks.network_file import NetworkError

    try:
        return catalogue.digests(info)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise NetworkError(f"{info.path.name}: cannot be read ({why}). Refresh the list of networks.") from error


def _is_current(info: NetworkInfo) -> bool:
    try:
        stat = info.path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (info.size_bytes, info.mtime_ns)


def _weak(survival: Survival) -> str:
    name, share = min(survival.networks, key=lambda item: item[1])
    least = f", of {name} {share:.0%}" if len(survival.networks) > 1 else ""
    return (
        f"{survival.retention:.0%} of the networks' effect survived rounding into 8 bits{least} "
        f"(noise {survival.noise:.0%}). "
        "LoRA mode exact keeps all of it."
    )
