"""Images of ComfyUI: the graph that made them, in the PNG chunks `prompt` (as it ran) and `workflow` (as it was drawn).

A graph may do anything; what is read is its first sampler and what leads to it: prompts, size, model, LoRAs.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from modules.bounded import joined
from modules.images.foreign.record import MAX_VALUE_CHARS, ForeignRecord, size_of, stem

MAX_NODES = 5000
MAX_LINKS = 50_000
MAX_DEPTH = 60
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

TEXTS = ("text", "text_g", "t5xxl", "prompt", "string", "value", "clip_l")
SECOND_TEXTS = {"text_l": "text_g", "clip_l": "t5xxl"}
"""Texts of a second encoder, with that of the first: a form has one prompt for both."""
JOINED_TEXTS = re.compile(r"(?:string|text)_?[a-d1-4]")
"""Of nodes that join several, such as StringConcatenate's `string_a` and `string_b`."""
MAX_JOINED = 4
MAX_JOINED_CHARS = 200_000
CONDITIONS = ("conditioning", "conditioning_1", "conditioning_to")
PARTS = frozenset({"clip", "model", "vae", "control_net", "image", "pixels", "mask", "style_model"})
"""Inputs that never lead to a text."""
NONE = frozenset({"None", "Baked VAE"})
"""In place of a file's name where a loader for several files loads none."""
_NO_KEY = re.compile(r"[^\w -]+")
NOT_TAKEN = ("ControlNet", "IPAdapter", "T2IAdapter", "StyleModel", "Upscale", "Inpaint", "Detailer", "LoadImage")
"""Parts of the names of nodes that change the image and that a form has no field for."""

Node = Mapping[str, Any]


def is_graph(given: object) -> bool:
    """Whether JSON is a graph as it ran."""
    return (
        isinstance(given, dict)
        and 0 < len(given) <= MAX_NODES
        and all(isinstance(node, dict) and isinstance(node.get("inputs"), dict) for node in given.values())
        and any("class_type" in node for node in given.values())
    )


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
        names = WIDGETS.get(kind, ())
        inputs = (
            {name: value for name, value in zip(names, values, strict=False) if name}
            if isinstance(values, list)
            else {}
        )
        entries = node.get("inputs")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and _is_known(entry.get("link"), origins):
                inputs[str(entry.get("name"))] = origins[entry["link"]]
        graph[str(node.get("id"))] = {"class_type": kind, "inputs": inputs}
    return graph


def comfyui_record(graph: Mapping[str, Node]) -> ForeignRecord | None:
    """Read what the first sampler of a graph did; None for a graph without a sampler."""
    found = [node for node in graph.values() if _is_sampler(node)]
    if not found:
        return None
    samplers = sorted(found, key=lambda node: not _starts_from_noise(graph, node))
    sampler, record = samplers[0], ForeignRecord("ComfyUI")
    values = _values_before(graph, sampler)
    for theirs, ours in (
        *(("seed", "Seed"), ("noise_seed", "Seed"), ("steps", "Steps"), ("cfg", "CFG scale")),
        *(("sampler_name", "Sampler"), ("scheduler", "Schedule type"), ("guidance", "Distilled CFG Scale")),
    ):
        record.take(values, {theirs: ours})
    if values.get("denoise") not in (None, 1, 1.0):
        record.fields["Denoising strength"] = values["denoise"]
    inputs = sampler["inputs"]
    record.prompt = _Texts(graph, "positive").at(inputs.get("positive") or inputs.get("guider"))
    record.negative_prompt = _Texts(graph, "negative").at(inputs.get("negative") or inputs.get("guider"))
    record.fields["Size"] = _size(graph, sampler, values)
    for name in ("ckpt_name", "unet_name"):
        if isinstance(values.get(name), str):
            record.fields.setdefault("Model", stem(values[name]))
    layer = values.get("stop_at_clip_layer")
    if isinstance(layer, int) and layer < -1:
        record.fields["Clip skip"] = -layer
    for node in graph.values():
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
    for kind, count in Counter(str(node.get("class_type")) for node in graph.values()).items():
        if any(part in kind for part in NOT_TAKEN):
            record.fields[f"ComfyUI node {_NO_KEY.sub(' ', kind).strip()[:MAX_VALUE_CHARS]}"] = count
    if len(samplers) > 1:
        record.fields["ComfyUI samplers after the first"] = len(samplers) - 1
    return record


def _is_file(name: object) -> bool:
    return isinstance(name, str) and name not in NONE


def _size(graph: Mapping[str, Node], sampler: Node, values: Mapping[str, Any]) -> str | None:
    """Read the size of the latents that the sampler begins with. Nodes of conditions have sizes of their own: the size
    that SDXL is told, or that for which Flux shifts its sigmas."""
    start = _linked(graph, sampler["inputs"].get("latent_image"))
    found = {} if start is None else _values_before(graph, start)
    for width, height in (("width", "height"), ("empty_latent_width", "empty_latent_height")):
        if found.get(width) is not None:
            return size_of(found[width], found.get(height))
    return size_of(values.get("width"), values.get("height"))


def _is_sampler(node: Node) -> bool:
    inputs = node["inputs"]
    return "latent_image" in inputs and ("positive" in inputs or "guider" in inputs)


def _starts_from_noise(graph: Mapping[str, Node], sampler: Node) -> bool:
    node = _linked(graph, sampler["inputs"].get("latent_image"))
    return node is not None and str(node.get("class_type", "")).startswith("Empty")


def _values_before(graph: Mapping[str, Node], sampler: Node) -> dict[str, Any]:
    """All values of a node and of those that lead to it, the nearest first; those of other samplers not."""
    values: dict[str, Any] = {}
    for node in _before(graph, sampler):
        for name, value in node["inputs"].items():
            if isinstance(value, list):
                other = _linked(graph, value)
                value = _plain_value(other) if other is not None and name in _NUMBERS else None
            if value is not None:
                values.setdefault(name, value)
    return values


_NUMBERS = ("seed", "noise_seed", "steps", "cfg", "width", "height", "denoise", "guidance")


def _plain_value(node: Node) -> Any:
    """The number that a node only holds."""
    return next((value for value in node["inputs"].values() if isinstance(value, int | float)), None)


def _before(graph: Mapping[str, Node], start: Node) -> Iterator[Node]:
    seen, waiting = {id(start)}, [start]
    while waiting:
        node = waiting.pop(0)
        yield node
        for value in node["inputs"].values():
            other = _linked(graph, value)
            if other is not None and id(other) not in seen and not _is_sampler(other):
                seen.add(id(other))
                waiting.append(other)


class _Texts:
    """The texts at the ends of links, each node's once. `side` is "positive" or "negative": a node that has one of the
    two as an input has both, so where the other side's is linked only, there is no text."""

    def __init__(self, graph: Mapping[str, Node], side: str) -> None:
        self._graph, self._side = graph, side
        self._found: dict[int, str] = {}

    def at(self, link: object, depth: int = 0) -> str:
        """The text at the end of a link, through nodes that pass it on; what leads back to itself has none."""
        node = _linked(self._graph, link)
        if node is None or depth > MAX_DEPTH:
            return ""
        if id(node) not in self._found:
            self._found[id(node)] = ""
            self._found[id(node)] = self._of(node, depth)
        return self._found[id(node)]

    def _of(self, node: Node, depth: int) -> str:
        inputs = node["inputs"]
        if self._side in inputs:
            return self._held(inputs[self._side], depth)
        if self._side == "negative" and "guider" in str(node.get("class_type", "")).lower():
            return ""  # a guider without a negative side
        names = sorted(name for name in inputs if JOINED_TEXTS.fullmatch(name))
        if len(names) > 1:
            between = inputs.get("delimiter", inputs.get("separator"))
            texts = (self._held(inputs[name], depth) for name in names[:MAX_JOINED])
            return joined(texts, between if isinstance(between, str) else " ", MAX_JOINED_CHARS)
        for name in (*CONDITIONS, *TEXTS):
            value = inputs.get(name)
            if isinstance(value, str) and value.strip():
                return value
            if _linked(self._graph, value) is not None:
                return self.at(value, depth + 1)
        passed_on = [
            value for name, value in inputs.items() if name not in PARTS and _linked(self._graph, value) is not None
        ]
        return self.at(passed_on[0], depth + 1) if len(passed_on) == 1 else ""

    def _held(self, value: object, depth: int) -> str:
        """A text that is a node's own input or a link to another node."""
        return value if isinstance(value, str) else self.at(value, depth + 1)


def _linked(graph: Mapping[str, Node], value: object) -> Node | None:
    """The node that an input is connected to: ["4", 0]."""
    is_link = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str | int)
    return graph.get(str(value[0])) if is_link and isinstance(value, list) else None


def _is_known(link: object, origins: Mapping[Any, Any]) -> bool:
    return isinstance(link, int | str) and link in origins
