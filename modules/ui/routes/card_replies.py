"""Answers of the routes of model cards: models that type, document and exemplify a reply at once."""

from typing import Any

from pydantic import Field

from modules.api.schema.reply_models import FewStepsItem, Reply


class CardReply(Reply):
    """One card, as the page's script shows it, finds it and adds it to the prompt."""

    key: str = Field(examples=["0/styles/ink.safetensors"])
    name: str = Field(examples=["ink"])
    folder: str = Field(examples=["styles"])
    description: str = Field(examples=["ink drawings"])
    prompt: str = Field(description="what a click puts into the prompt", examples=["<lora:ink-v2:0.8>"])
    tag: str = Field(description="how the tag begins that uses the file", examples=["<lora:ink-v2:"])
    tag_types: list[str] = Field(description="the types of tags that use the file", examples=[["lora", "lyco"]])
    activation: str = Field(examples=["ink drawing"])
    negative: str = Field(examples=[""])
    version: str = Field(description='which models it is for, "" where nothing is known', examples=["SD1"])
    few_steps: FewStepsItem | None = Field(description="what it asks for if it needs few steps", examples=[None])
    stamp: str = Field(description="changes with the preview", examples=["1767225600000000000"])
    created: float = Field(examples=[1767225600.0])
    modified: float = Field(examples=[1767225600.0])
    search: str = Field(description="words that find it, one per line", examples=["ink\nink.safetensors\nink drawings"])


class OtherVersionsReply(Reply):
    """Which cards are hidden at first next to the loaded model."""

    hides: bool = Field(examples=[True])
    without_unknown: list[str] = Field(examples=[["SDXL"]])


class CardListReply(Reply):
    """A page of cards."""

    page: str = Field(examples=["lora"])
    version: str = Field(description="of the loaded model", examples=["SD1"])
    others: OtherVersionsReply
    folders: list[str] = Field(examples=[["models/Lora"]])
    suffixes: list[str] = Field(examples=[[".safetensors"]])
    tiny_vaes: list[str] = Field(description="the tiny decoders that are here", examples=[["taesd"]])
    settings: dict[str, Any] = Field(examples=[{"extra_networks_card_width": 0}])
    cards: list[CardReply]


class CardDetailsReply(Reply):
    """Facts of one file: its metadata, the words it was trained on, what the user noted."""

    name: str = Field(examples=["ink"])
    path: str = Field(examples=["models/Lora/styles/ink.safetensors"])
    facts: dict[str, str] = Field(examples=[{"Size": "18.1 MB", "Rank": "8"}])
    tags: list[list[str | int]] = Field(description="words of the captions with their counts", examples=[[["ink", 40]]])
    metadata: dict[str, Any] = Field(examples=[{"ss_network_dim": "8"}])
    fields: list[str] = Field(description="what can be noted", examples=[["description", "sd version", "notes"]])
    notes: dict[str, Any] = Field(examples=[{"activation text": "ink drawing", "preferred weight": 0.8}])
    vaes: list[str] = Field(examples=[["Automatic", "None"]])
    versions: list[str] = Field(description="what a file may be noted to be for", examples=[["Unknown", "SD1", "SD2"]])


class ChosenCheckpointReply(Reply):
    """The checkpoint that will be loaded."""

    title: str = Field(examples=["ink.safetensors [5fe1d58aba]"])
