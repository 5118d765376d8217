"""`<lora:name:te:unet:dyn=N>`, also written `<lyco:...>`: networks of the LoRA family on the model of a job."""

from __future__ import annotations

from collections.abc import Sequence

from modules import extra_networks
from modules.adapters.tags import added_by_setting, lora_tags


class LoraTags(extra_networks.ExtraNetwork):
    """The kind of tags; the setting "Add network to prompt" counts as one."""

    def activate(self, job: extra_networks.AdapterJob, tags: Sequence[extra_networks.PromptTag]) -> None:
        settings = job.settings
        strength = settings.number("extra_networks_default_multiplier")
        added = added_by_setting(tags, settings.text("sd_lora"), strength)
        job.record_added(self.name, [tag for tag in added if job.adapters.knows(tag.items[0])])
        wanted, problems = lora_tags({self.name: [*tags, *added]}, job.adapters.knows)
        found = job.adapters.put_on(job.model, wanted)
        job.notices += problems
        job.notices += [
            f"The network {name!r} was not found and was left out. Refresh the list of networks."
            for name in found.missing
        ]
        job.notices += found.notices
        job.uses += found.uses
        job.mode, job.retention = found.mode, found.retention
        job.embeddings |= found.embeddings
        if not settings.flag("lora_bundled_ti_to_infotext"):
            job.unrecorded |= set(found.embeddings)
        if found.hashes and settings.flag("lora_add_hashes_to_infotext"):
            job.fields["Lora hashes"] = ", ".join(f"{name}: {short}" for name, short in found.hashes.items())
        if found.mode_matters:
            job.fields["LoRA mode"] = found.mode


extra_networks.register_extra_network(LoraTags("lora", aliases=("lyco",)))
