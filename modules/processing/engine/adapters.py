"""The tags in a prompt: what each type `<type:...>` does to the model of a job, and what the image says about it.

Processing owns the protocol; extensions register types of their own with `modules.extra_networks`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from modules.adapters.tags import added_by_setting, hypernetwork_tags
from modules.errors import FeatherweightError, InvalidValueError
from modules.processing.engine.adapter_files import AdapterFiles
from modules.prompting.cache import AdapterUse
from modules.prompting.extra_networks import PromptTag, PromptTags
from modules.settings.values import Settings
from modules.system.texts import page_text

if TYPE_CHECKING:
    from modules.adapters.applying import Retention
    from modules.adapters.embeddings import Embedding
    from modules.models.loading.loaded import LoadedModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActiveAdapters:
    """The adapters on the model for a job: for the conditioning cache, the infotext and the user."""

    uses: tuple[AdapterUse, ...] = ()
    mode: str = ""
    fields: dict[str, object] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    retention: Retention | None = None
    embeddings: dict[str, Embedding] = field(default_factory=dict)
    unrecorded: frozenset[str] = frozenset()  # of these embeddings, those whose hashes are not written
    added_tags: str = ""  # what the settings add to every prompt, as it would be typed


@dataclass
class AdapterJob:
    """A job while its adapters are put on the model: what a type of tags may look at, and where it says what it did.

    `uses` and `mode` are part of what keys the cache of encoded prompts; the tags themselves are so without being
    named here. `fields` go into the infotext, `notices` next to the image, `embeddings` are words for this job.
    `added_tags` are tags that the prompt has not, because they come from settings: they are recorded at its end.
    """

    model: LoadedModel
    settings: Settings
    adapters: AdapterFiles
    uses: list[AdapterUse] = field(default_factory=list)
    mode: str = ""
    fields: dict[str, object] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    retention: Retention | None = None
    embeddings: dict[str, Embedding] = field(default_factory=dict)
    unrecorded: set[str] = field(default_factory=set)
    added_tags: list[str] = field(default_factory=list)

    def record_added(self, tag_type: str, tags: Sequence[PromptTag]) -> None:
        """Have tags that come from settings stand at the end of the recorded prompt, so that the image can be made
        again from what it says."""
        self.added_tags += [f"<{tag_type}:{':'.join(tag.items)}>" for tag in tags]

    def active(self) -> ActiveAdapters:
        """All of it, frozen."""
        return ActiveAdapters(
            tuple(self.uses),
            self.mode,
            dict(self.fields),
            tuple(self.notices),
            self.retention,
            dict(self.embeddings),
            frozenset(self.unrecorded),
            "".join(self.added_tags),
        )


class TagType(Protocol):
    """A type of tag in prompts, and what is done with its tags. `aliases` are other names of the type."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    def activate(self, job: AdapterJob, tags: Sequence[PromptTag]) -> None:
        """Bring the model to where exactly these tags hold on it; with none, to where it was without any. Called with
        the engine's lock held, before each batch's prompts are encoded and whenever another model takes its turn."""

    def deactivate(self, job: AdapterJob) -> None:
        """`job.model` has done its part in the job. What can stay on it for the next one may."""


class HypernetworkTag:
    """`<hypernet:name:strength>`: hypernetworks; the setting "Add hypernetwork to prompt" counts as one."""

    name = "hypernet"
    aliases: tuple[str, ...] = ()

    def activate(self, job: AdapterJob, tags: Sequence[PromptTag]) -> None:
        from modules.adapters.hypernetworks import HypernetworkHooks, read_hypernetwork

        model, settings, files = job.model, job.settings, job.adapters.hypernetworks
        strength = settings.extra_networks.extra_networks_default_multiplier
        added = added_by_setting(tags, settings.extra_networks.sd_hypernetwork, strength)
        job.record_added(self.name, [tag for tag in added if files.find(tag.items[0]) is not None])
        wanted, problems = hypernetwork_tags({self.name: [*tags, *added]}, lambda name: files.find(name) is not None)
        job.notices += problems
        chosen = []
        for tag in wanted:
            info = files.find_current(tag.name)
            if info is None:
                job.notices.append(page_text(f"The hypernetwork {tag.name!r} was not found and was left out."))
                continue
            content = job.adapters.digests(files, info).content
            job.uses.append(AdapterUse(name=info.name, file_hash=content, unet_multiplier=tag.te_strength))
            chosen.append((content, read_hypernetwork(info.path), tag.te_strength))
        if model.hypernetworks is None:
            model.hypernetworks = HypernetworkHooks(model.unet)
        model.hypernetworks.apply(chosen)

    def deactivate(self, job: AdapterJob) -> None:
        return


class Adapters:
    """Kinds of tags, and the files of adapters. One for the program; call `activate` with the engine's lock held."""

    def __init__(
        self,
        folders: tuple[Path, ...] = (),
        embeddings: Path | Iterable[Path] | None = None,
        hypernetworks: Path | Iterable[Path] | None = None,
        types: Iterable[TagType] = (),
    ) -> None:
        """Folders as those of `AdapterFiles`; types of tags besides that of hypernetworks."""
        self.files = AdapterFiles(folders, embeddings, hypernetworks)
        self._types: list[TagType] = [HypernetworkTag(), *types]

    def add_types(self, types: Iterable[TagType]) -> None:
        """Have the tags of these types do something."""
        self._types += types

    def activate(self, model: LoadedModel, tags: PromptTags, settings: Settings) -> ActiveAdapters:
        """Put exactly the adapters of these tags on the model; what is there already stays.

        A tag of a type that nobody knows is left out with a notice. Raises `FeatherweightError` where a type with tags
        in the prompt fails; one without tags that fails costs a notice and nothing else.
        """
        job = AdapterJob(model, settings, self.files)
        known: set[str] = set()
        for tag_type in self._types:
            names = (tag_type.name, *tag_type.aliases)
            known.update(names)
            wanted = [tag for name in names for tag in tags.get(name, ())]
            said = len(job.uses)
            self._activate_type(tag_type, job, wanted)
            if len(job.uses) == said:  # then what is encoded may depend on anything in the tags
                job.uses += [
                    AdapterUse(name=f"<{tag_type.name}:{':'.join(tag.items)}>", file_hash="") for tag in wanted
                ]
        unknown = [f"<{name}:...>" for name in tags if name not in known]
        if unknown:
            job.notices.append(page_text(f"No type of adapter is called {', '.join(unknown)}; it was left out."))
        return job.active()

    def deactivate(self, model: LoadedModel, settings: Settings) -> None:
        """The model has done its part in a job."""
        job = AdapterJob(model, settings, self.files)
        for tag_type in self._types:
            try:
                tag_type.deactivate(job)
            except Exception:  # somebody else's code must not cost the images that are made
                log.exception("The end of <%s:...> failed", tag_type.name)

    @staticmethod
    def _activate_type(tag_type: TagType, job: AdapterJob, tags: list[PromptTag]) -> None:
        from modules.memory.recovery import is_out_of_memory

        try:
            tag_type.activate(job, tags)
        except FeatherweightError:
            raise
        except Exception as error:  # an extension may do anything
            if is_out_of_memory(error):
                raise
            log.exception("<%s:...> failed", tag_type.name)
            if tags:
                raise InvalidValueError(
                    f"<{tag_type.name}:...> failed ({type(error).__name__}: {error}). Take the tag out of the prompt, "
                    "or switch off the extension that brings it."
                ) from error
            job.notices.append(f"<{tag_type.name}:...>, which the prompt does not use, failed ({error}).")
