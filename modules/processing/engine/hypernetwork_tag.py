"""`<hypernet:name:strength>`: the hypernetworks of a prompt on the model."""

from __future__ import annotations

from collections.abc import Sequence

from modules.adapters.tags import added_by_setting, hypernetwork_tags
from modules.processing.engine.tag_types import AdapterJob
from modules.prompting.extra_networks import PromptTag


class HypernetworkTag:
    """The kind of tags; the setting "Add hypernetwork to prompt" counts as one."""

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
                job.notices.append(f"The hypernetwork {tag.name!r} was not found and was left out.")
                continue
            content = job.adapters.digests(files, info).content
            chosen.append((content, read_hypernetwork(info.path), tag.te_strength))
        if model.hypernetworks is None:
            model.hypernetworks = HypernetworkHooks(model.unet)
        model.hypernetworks.apply(chosen)

    def deactivate(self, job: AdapterJob) -> None:
        return
