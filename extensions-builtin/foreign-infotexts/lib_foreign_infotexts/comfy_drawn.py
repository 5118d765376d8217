"""Graphs of ComfyUI as they were drawn, made into graphs as they run: values by name, nodes that are off left out, and
the nodes inside of subgraphs and group nodes in their place."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lib_foreign_infotexts.record import listed

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

_HOLDS_VALUE = re.compile(r"primitive|string|text", re.IGNORECASE)
INPUT, OUTPUT = -10, -20
"""In the links of a subgraph, in place of a node: what comes in, and what goes out."""
MUTED, BYPASSED = 2, 4
Tables = Mapping[str, Mapping[str, Any]]


def is_workflow(given: object) -> bool:
    """Return whether JSON is a graph as it was drawn."""
    return isinstance(given, dict) and isinstance(given.get("nodes"), list) and isinstance(given.get("links"), list)


def graph_of(workflow: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a drawn graph as one that ran, as far as `WIDGETS` has its nodes."""
    definitions, extra = workflow.get("definitions"), workflow.get("extra")
    subgraphs = _tables(definitions, "subgraphs") if isinstance(definitions, dict) else []
    inner = {str(one.get("id")): one for one in subgraphs}
    groups = extra.get("groupNodes") if isinstance(extra, dict) else None
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if isinstance(group, dict):
            inner |= {f"workflow>{name}": group, f"workflow/{name}": group}
    graph: dict[str, dict[str, Any]] = {}
    _draw(workflow, "", {}, inner, graph)
    return graph


def _draw(
    drawn: Mapping[str, Any],
    before: str,
    outside: Mapping[int, object],
    inner: Tables,
    graph: dict[str, dict[str, Any]],
) -> None:
    """Add the nodes of a drawn graph, with `before` in front of their names; `outside` is what its inputs are by
    number. What a node with a graph inside gives is a node of its own for each output."""
    ids = (int, str)
    nodes = {
        node["id"] if isinstance(node.get("id"), ids) and node["id"] != -1 else at: node
        for at, node in enumerate(_tables(drawn, "nodes"))
    }
    links = list(_links(drawn))
    into: dict[object, tuple[Any, Any]] = {(end, slot): origin for _, origin, end, slot in links}
    into |= {number: origin for number, origin, *_ in links if number != ""}

    def origin_of(start: Any, slot: Any) -> object:
        if start == INPUT:
            return outside.get(slot)
        holds = str(nodes.get(start, {}).get("type")) in inner
        return [f"{before}{start}#{slot}" if holds else f"{before}{start}", slot]

    for key, node in nodes.items():
        mode, kind, name = node.get("mode"), str(node.get("type")), f"{before}{key}"
        if mode == MUTED or len(graph) >= MAX_NODES:
            continue
        given: dict[int, tuple[str, object]] = {}
        passed_on = {str(one.get("type")) for one in _tables(node, "outputs")}
        for number, entry in enumerate(_tables(node, "inputs")):
            link = entry.get("link")
            origin = into.get(link if isinstance(link, int | str) else None, into.get((key, number)))
            found = None if origin is None else origin_of(*origin)
            if found is not None and (mode != BYPASSED or str(entry.get("type")) in passed_on):
                given[number] = (str(entry.get("name")), found)
        if kind in inner:
            graph[name] = {"class_type": kind, "inputs": {}}  # so that graphs in graphs without number end
            left = {other: held for other, held in inner.items() if other != kind}
            _draw(_with_values(inner[kind], node), f"{name}:", _inputs_of(node, given), left, graph)
            continue
        inputs = {} if mode == BYPASSED else _values(node, kind)
        graph[name] = {
            "class_type": "Reroute" if mode == BYPASSED else kind,
            "inputs": {**inputs, **dict(given.values())},
        }
    for _, origin, end, slot in links:
        if end == OUTPUT:
            graph[f"{before.removesuffix(':')}#{slot}"] = {
                "class_type": "Reroute",
                "inputs": {"value": origin_of(*origin)},
            }


def _links(drawn: Mapping[str, Any]) -> Iterator[tuple[object, tuple[Any, Any], Any, Any]]:
    """Yield the number of each link, the node and the output that it begins at, the node and the input that it ends
    at. Those of group nodes have no number."""
    for link in listed(drawn, "links")[:MAX_LINKS]:
        match link:
            case {"id": int() as number, "origin_id": start, "origin_slot": slot, "target_id": end, "target_slot": at}:
                pass
            case [int() | str() as number, start, slot, end, at, *_] if "external" not in drawn:
                pass
            case [int() as start, int() as slot, int() as end, int() as at, *_]:
                number = ""
            case _:
                continue
        if all(isinstance(one, int | str) for one in (start, slot, end, at)):
            yield number, (start, slot), end, at


def _inputs_of(node: Mapping[str, Any], given: Mapping[int, tuple[str, object]]) -> dict[int, object]:
    """Return what the inputs of a node with a graph inside are by number: what is linked, or the value of its field."""
    fields = [number for number, entry in enumerate(_tables(node, "inputs")) if isinstance(entry.get("widget"), dict)]
    values = dict(zip(fields, listed(node, "widgets_values"), strict=False))
    return values | {number: found for number, (_, found) in given.items()}


def _with_values(drawn: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the graph in a group node with the values that stand in the node, which has those of all in a row."""
    values, nodes = listed(node, "widgets_values"), _tables(drawn, "nodes")
    if "external" not in drawn or len(values) != sum(len(listed(one, "widgets_values")) for one in nodes):
        return drawn
    left = iter(values)
    return {
        **drawn,
        "nodes": [{**one, "widgets_values": [next(left) for _ in listed(one, "widgets_values")]} for one in nodes],
    }


def _values(node: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the values of a node by the names of its inputs."""
    values = node.get("widgets_values")
    if isinstance(values, dict):
        return {name: value for name, value in values.items() if isinstance(name, str)}
    names = WIDGETS.get(kind, ("value",) if _HOLDS_VALUE.search(kind) else ())
    return {name: value for name, value in zip(names, listed(node, "widgets_values"), strict=False) if name}


def _tables(given: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the tables in the list under a name."""
    return [one for one in listed(given, key)[:MAX_NODES] if isinstance(one, dict)]
