"""`from modules import extra_networks`: how an extension adds a kind of prompt tag and a page of cards."""

from modules.model_cards.cards import CardPage, ModelFile, OtherVersions
from modules.processing.engine.tag_types import NetworkJob
from modules.prompting.cache import NetworkUse
from modules.prompting.extra_networks import NetworkTag
from modules.scripts.networks import ExtraNetwork, register_extra_network, register_page

__all__ = [
    "CardPage",
    "ExtraNetwork",
    "ModelFile",
    "NetworkJob",
    "NetworkTag",
    "NetworkUse",
    "OtherVersions",
    "register_extra_network",
    "register_page",
]
