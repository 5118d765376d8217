"""`from modules.scripts import extra_networks`: how an extension adds a type of prompt tag and a page of cards."""

from modules.model_cards.cards import CardPage, ModelFile, OtherVersions
from modules.model_cards.few_steps import FewSteps, adapter_few_steps, few_steps_json
from modules.processing.engine.adapters import AdapterJob
from modules.prompting.cache import AdapterUse
from modules.prompting.extra_networks import PromptTag
from modules.scripts.adapters import ExtraNetwork
from modules.scripts.loading import register_extra_network, register_page

__all__ = [
    "AdapterJob",
    "AdapterUse",
    "CardPage",
    "ExtraNetwork",
    "FewSteps",
    "ModelFile",
    "OtherVersions",
    "PromptTag",
    "adapter_few_steps",
    "few_steps_json",
    "register_extra_network",
    "register_page",
]
