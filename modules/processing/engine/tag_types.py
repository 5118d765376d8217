"""Kinds of tags `<kind:...>` in a prompt and what they do to a job. Processing calls them and owns the protocol;
extensions register theirs with `modules.extra_networks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from modules.prompting.cache import AdapterUse
from modules.prompting.extra_networks import PromptTag
from modules.settings.values import Settings

if TYPE_CHECKING:
    from modules.adapters.applying import Retention
    from modules.adapters.embeddings import Embedding
    from modules.models.loaded import LoadedModel
    from modules.processing.engine.adapters import Adapters


@dataclass(frozen=True)
class ActiveAdapters:
    """What is on the model for a job: for the conditioning cache, the infotext and the user."""

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
    """A job while its adapters are put on the model: what a kind of tags may look at, and where it says what it did.

    `uses` and `mode` are part of what keys the cache of encoded prompts; the tags themselves are so without being
    named here. `fields` go into the infotext, `notices` alongside the image, `embeddings` are words for this job.
    `added_tags` are tags that the prompt has not, because they come from settings: they are recorded at its end.
    """

    model: LoadedModel
    settings: Settings
    adapters: Adapters
    uses: list[AdapterUse] = field(default_factory=list)
    mode: str = ""
    fields: dict[str, object] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    retention: Retention | None = None
    embeddings: dict[str, Embedding] = field(default_factory=dict)
    unrecorded: set[str] = field(default_factory=set)
    added_tags: list[str] = field(default_factory=list)

    def record_added(self, kind: str, tags: Sequence[PromptTag]) -> None:
        """Have tags that come from settings stand at the end of the recorded prompt, so that the image can be made
        again from what it says."""
        self.added_tags += [f"<{kind}:{':'.join(tag.items)}>" for tag in tags]

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
    """What is done with the tags of one kind. `aliases` are other names of the same kind."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    def activate(self, job: AdapterJob, tags: Sequence[PromptTag]) -> None:
        """Bring the model to where exactly these tags hold on it; with none, to where it was without any. Called with
        the engine's lock held, before each batch's prompts are encoded and whenever another model takes its turn."""

    def deactivate(self, job: AdapterJob) -> None:
        """`job.model` has done its part in the job. What can stay on it for the next one may."""
