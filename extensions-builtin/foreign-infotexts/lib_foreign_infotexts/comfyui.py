"""Images of ComfyUI: the graph that made them, in the PNG chunks `prompt` (as it ran) and `workflow` (as it was drawn).

A graph may do anything; what is read is its first sampler and what leads to it: prompts, size, model, LoRAs.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lib_foreign_infotexts.comfy_graph import Graph, Node, Texts, is_sampler
from lib_foreign_infotexts.record import MAX_VALUE_CHARS, ForeignRecord, stem

MAX_NODES = 20_000
MAX_LINKS = 50_000
WIDGETS = {
    "KSampler": ("seed", "", "steps", "cfg", "sampler_name", "scheduler", "denoise"),
    "KSamplerAdvanced": ("add_noise", "noise_seed", "", "steps", "cfg", "sampler_name", "scheduler"),
    "SamplerCustom": ("add_noise", "noise_seed", "", "cfg"),
    "RandomNoise": ("noise_seed",),
    "KSamplerSelect": ("sampler_name",),
    "BasicScheduler": ("scheduler", "steps", "denoise"),
    "CFGGuider": ("cfg",),
    "FluxGuidance": ("guidance",),
    "CLIPTextEncode": ("text",),
    "CLIPTextEncodeSDXL": ("width", "height", "crop_w", "crop_h", "target_width", "target_height", "text_g", "text_l"),
    "CLIPTextEncodeFlux": ("clip_l", "t5xxl", "guidance"),
    "EmptyLatentImage": ("width", "height", "batch_size"),
    "EmptySD3LatentImage": ("width", "height", "batch_size"),
    "CheckpointLoaderSimple": ("ckpt_name",),
    "UNETLoader": ("unet_name", "weight_dtype"),
    "VAELoader": ("vae_name",),
    "LoraLoader": ("lora_name", "strength_model", "strength_clip"),
    "LoraLoaderModelOnly": ("lora_name", "strength_model"),
    "CLIPSetLastLayer": ("stop_at_clip_layer",),
}
"""Values of nodes as a drawn graph lists them; "": what happens to the seed after a run."""

SECOND_TEXTS = {"text_l": "text_g", "clip_l": "t5xxl"}
"""Texts of a second encoder, with that of the first: a form has one prompt for both."""
VALUES = (
    *(("seed", "Seed"), ("noise_seed", "Seed"), ("steps", "Steps"), ("cfg", "CFG scale"), ("cfg_conds", "CFG scale")),
    *(("sampler_name", "Sampler"), ("scheduler", "Schedule type"), ("guidance", "Distilled CFG Scale")),
)
"""Inputs of nodes before a sampler, and the fields that they are."""
OTHER_VALUES = ("denoise", "ckpt_name", "unet_name", "stop_at_clip_layer")
ROOTS = ("guider", "basic_pipe", "pipe")
"""Inputs of a sampler that lead to the prompts of both sides."""
AIR = "urn:air:"
"""How Civitai's site names files: by number, which says nothing to a folder of models."""
NONE = frozenset({"None", "Baked VAE"})
"""In place of a file's name where a loader for several files loads none."""
_HOLDS_VALUE = re.compile(r"primitive|string|text", re.IGNORECASE)
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


def is_workflow(given: object) -> bool:
    """Whether JSON is a graph as it was drawn."""
    return isinstance(given, dict) and isinstance(given.get("nodes"), list) and isinstance(given.get("links"), list)


def graph_of(workflow: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A drawn graph as one that ran, as far as `WIDGETS` has its nodes."""
    origins = {
        link[0]: [str(link[1]), link[2]]
        for link in workflow["links"][:MAX_LINKS]
        if isinstance(link, list) and len(link) > 3 and isinstance(link[0], int | str)
    }
    graph: dict[str, dict[str, Any]] = {}
    for node in workflow["nodes"][:MAX_NODES]:
        if not isinstance(node, dict):
            continue
        kind, values = str(node.get("type")), node.get("widgets_values")
        names = WIDGETS.get(kind, ("value",) if _HOLDS_VALUE.search(kind) else ())
        inputs = (
            {name: value for name, value in values.items() if isinstance(name, str)} if isinstance(values, dict) else {}
        )
        if isinstance(values, list):
            inputs = {name: value for name, value in zip(names, values, strict=False) if name}
        entries = node.get("inputs")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and _is_known(entry.get("link"), origins):
                inputs[str(entry.get("name"))] = origins[entry["link"]]
        graph[str(node.get("id"))] = {"class_type": kind, "inputs": inputs}
    return graph


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
    for name in ("ckpt_name", "unet_name"):
        if _is_file(values.get(name)):
            record.fields.setdefault("Model", stem(values[name]))
    layer = values.get("stop_at_clip_layer")
    if isinstance(layer, int) and layer < -1:
        record.fields["Clip skip"] = -layer
    for node in nodes.values():
        inputs = node["inputs"]
        if _is_file(inputs.get("vae_name")):
            record.fields.setdefault("VAE", stem(inputs["vae_name"]))
        if _is_file(inputs.get("lora_name")):
            weight = inputs.get("strength_model", inputs.get("lora_model_strength", 1))
            record.loras.append((inputs["lora_name"], weight))
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


def _is_known(link: object, origins: Mapping[Any, Any]) -> bool:
    return isinstance(link, int | str) and link in origins
