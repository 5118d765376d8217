"""Images of ComfyUI: the graph that made them, in the PNG chunks `prompt` (as it ran) and `workflow` (as it was drawn).

A graph may do anything; what is read is its first sampler and what leads to it: prompts, size, model, LoRAs.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lib_foreign_infotexts.comfy_graph import Graph, Node, Texts, is_sampler
from lib_foreign_infotexts.record import MAX_VALUE_CHARS, ForeignRecord, listed, stem

MAX_NODES = 20_000
SECOND_TEXTS = {"text_l": "text_g", "clip_l": "t5xxl"}
"""Texts of a second encoder, with that of the first: a form has one prompt for both."""
VALUES = (
    *(("seed", "Seed"), ("noise_seed", "Seed"), ("steps", "Steps"), ("cfg", "CFG scale"), ("cfg_conds", "CFG scale")),
    *(("sampler_name", "Sampler"), ("scheduler", "Schedule type"), ("guidance", "Distilled CFG Scale")),
)
"""Inputs of nodes before a sampler, and the fields that they are."""
MODELS = ("ckpt_name", "unet_name", "model_path")
OTHER_VALUES = ("denoise", *MODELS, "stop_at_clip_layer", "clip_skip")
ROOTS = ("guider", "basic_pipe", "pipe")
"""Inputs of a sampler that lead to the prompts of both sides."""
AIR = "urn:air:"
"""How Civitai's site names files: by number, which says nothing to a folder of models."""
NONE = frozenset({"None", "Baked VAE"})
"""In place of a file's name where a loader for several files loads none."""
_LORA = re.compile(r"lora_(?:name_?)?(\d{0,2})(?:_name)?")
"""Inputs with the file of a LoRA: of a node for one, and of nodes for several."""
LORA_WEIGHTS = (
    *("strength_model{}", "strength{}", "lora_wt{}", "model_str{}", "model_weight{}", "lora_model_strength{}"),
    *("lora{}_strength", "lora{}_model_strength"),
)
"""Inputs with the weight of one, with its number for {}."""
_NO_KEY = re.compile(r"[^\w -]+")
NOT_TAKEN = ("ControlNet", "IPAdapter", "T2IAdapter", "StyleModel", "Upscale", "Inpaint", "Detailer", "LoadImage")
"""Parts of the names of nodes that change the image and that a form has no field for."""


def nodes_in(given: object) -> dict[str, Node]:
    """Return the nodes of JSON that is a graph as it ran; none for other JSON. Sites put entries of their own next to
    them."""
    if not isinstance(given, dict) or len(given) > MAX_NODES:
        return {}
    return {
        str(name): node
        for name, node in given.items()
        if isinstance(node, dict) and isinstance(node.get("inputs"), dict) and "class_type" in node
    }


def comfyui_record(nodes: Mapping[str, Node]) -> ForeignRecord | None:
    """Read what the first sampler of a graph did; None for a graph without a sampler."""
    graph, found = Graph(nodes), [node for node in nodes.values() if is_sampler(node)]
    if not found:
        return None
    samplers = sorted(found, key=lambda node: ("latent_image" not in node["inputs"], not _from_noise(graph, node)))
    sampler, record = samplers[0], ForeignRecord("ComfyUI")
    values = graph.values_before(sampler, (*(theirs for theirs, _ in VALUES), *OTHER_VALUES))
    for theirs, ours in VALUES:
        record.take(values, {theirs: ours})
    if values.get("denoise") not in (None, 1, 1.0):
        record.fields["Denoising strength"] = values["denoise"]
    record.prompt, merged = _text(graph, sampler, "positive")
    record.negative_prompt, also_merged = _text(graph, sampler, "negative")
    for kind in {**merged, **also_merged}:
        record.fields[f"ComfyUI prompts joined by {_word(kind)}"] = "all of them, without their areas"
    record.fields["Size"] = graph.size(sampler)
    for name in MODELS:
        if _is_file(values.get(name)):
            record.fields.setdefault("Model", stem(values[name]))
    layer = values.get("stop_at_clip_layer", values.get("clip_skip"))
    if isinstance(layer, int) and layer < -1:
        record.fields["Clip skip"] = -layer
    for node in nodes.values():
        inputs = node["inputs"]
        if _is_file(inputs.get("vae_name")):
            record.fields.setdefault("VAE", stem(inputs["vae_name"]))
        record.loras += _loras_of(graph, inputs)
        for second, first in SECOND_TEXTS.items():
            text = inputs.get(second)
            if isinstance(text, str) and text.strip() and text != inputs.get(first):
                record.fields.setdefault(f"ComfyUI {second}", text[:MAX_VALUE_CHARS])
    for kind, count in Counter(str(node.get("class_type")) for node in nodes.values()).items():
        if any(part in kind for part in NOT_TAKEN):
            record.fields[f"ComfyUI node {_word(kind)}"] = count
    others = sum("latent_image" in node["inputs"] for node in samplers[1:])
    if others:
        record.fields["ComfyUI samplers after the first"] = others
    return record


def _text(graph: Graph, sampler: Node, side: str) -> tuple[str, dict[str, None]]:
    """The text of one side of a sampler, and the nodes that put several into one; where a model wrote the text, what
    it was asked."""
    for asks_models in (False, True):
        texts = Texts(graph, side, asks_models=asks_models)
        inputs = sampler["inputs"]
        roots = [inputs[name] for name in (side, *ROOTS) if name in inputs]
        found = next((text for root in roots if (text := texts.at(root)) is not None), None)
        if found is not None:
            return found, texts.merged
    return "", {}


def _loras_of(graph: Graph, inputs: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the LoRAs that a node loads, with their weights: one or several by numbered inputs, rows that can be off
    (rgthree), files with a preview (pysssss), lists (LoRA Manager)."""
    for name, value in inputs.items():
        rows = [value, *listed(value, "__value__")] if isinstance(value, dict) else []
        for row in rows:
            file = row.get("lora", row.get("name")) if isinstance(row, dict) else None
            if _is_file(file) and row.get("on", row.get("active", True)):
                yield str(file), row.get("strength", 1)
        match = _LORA.fullmatch(name)
        file = value.get("content") if isinstance(value, dict) else value
        if match is None or not _is_file(file):
            continue
        number = f"_{match[1]}" if match[1] else ""
        count = inputs.get("lora_count")
        is_off = str(inputs.get(f"switch{number}")).lower() == "off"
        if is_off or (number and isinstance(count, int) and int(match[1]) > count):
            continue
        keys = [key.format(number) for key in LORA_WEIGHTS]
        weight = next((graph.value(inputs[key], key) for key in keys if key in inputs), 1)
        yield str(file), 1 if weight is None else weight


def _word(kind: str) -> str:
    """The name of a type of node as a field's key holds it."""
    return _NO_KEY.sub(" ", kind).strip()[:MAX_VALUE_CHARS]


def _is_file(name: object) -> bool:
    return isinstance(name, str) and name not in NONE and not name.startswith(AIR)


def _from_noise(graph: Graph, sampler: Node) -> bool:
    start = graph.linked(sampler["inputs"].get("latent_image"))
    if start is None or is_sampler(start):
        return False
    return any("Empty" in str(node.get("class_type", "")) for node in graph.before(start))
