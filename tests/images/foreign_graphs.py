"""Graphs of ComfyUI for tests, and the texts that an independent walk finds in them."""

import random
from collections.abc import Mapping
from typing import Any

Graph = dict[str, dict[str, Any]]


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def sampled(positive: object, negative: object = None, **nodes: Any) -> Graph:
    """A graph whose sampler takes these conditions; None: an empty text."""
    return {
        "sampler": node(
            "KSampler",
            **{"seed": 5, "steps": 9, "cfg": 3.5, "sampler_name": "euler", "scheduler": "karras", "denoise": 1},
            **{"positive": positive, "negative": negative or ["empty", 0], "latent_image": ["latent", 0]},
            model=["model", 0],
        ),
        "latent": node("EmptyLatentImage", width=640, height=512, batch_size=1),
        "model": node("CheckpointLoaderSimple", ckpt_name="toy.safetensors"),
        "empty": node("CLIPTextEncode", text="", clip=["model", 1]),
        **nodes,
    }


def random_graph(seed: int) -> tuple[Graph, str]:
    """A graph of joins, switches and reroutes at random, and the prompt that its sampler gets."""
    drawn = random.Random(seed)
    nodes: Graph = {}

    def made(kind: str, **inputs: Any) -> list[Any]:
        name = str(len(nodes) + 10)
        nodes[name] = node(kind, **inputs)
        return [name, 0]

    def text(depth: int) -> tuple[Any, str]:
        way = drawn.choice(("text", "text", "join", "switch", "index", "reroute", "preview")) if depth < 5 else "text"
        if way == "text":
            said = f"word{drawn.randrange(10**6)}"
            return made(drawn.choice(("PrimitiveString", "PrimitiveStringMultiline")), value=said), said
        first, said = text(depth + 1)
        if way == "join":
            second, more = text(depth + 1)
            between = drawn.choice((" ", ", ", " and "))
            return made("StringConcatenate", string_a=first, string_b=second, delimiter=between), said + between + more
        if way == "switch":
            other, also = text(depth + 1)
            chosen = drawn.random() < 0.5
            switch = chosen if drawn.random() < 0.5 else made("PrimitiveBoolean", value=chosen)
            link = made("ComfySwitchNode", switch=switch, on_false=other, on_true=first)
            return link, said if chosen else also
        if way == "index":
            others = [text(depth + 1) for _ in range(2)]
            links, texts = [first, *(link for link, _ in others)], [said, *(more for _, more in others)]
            chosen_at = drawn.randrange(3)
            named = {f"input{at + 1}": link for at, link in enumerate(links)}
            return made("ImpactSwitch", select=chosen_at + 1, **named), texts[chosen_at]
        return made("Reroute" if way == "reroute" else "PreviewAny", **{"source": first}), said

    link, said = text(0)
    positive = made("CLIPTextEncode", text=link, clip=["model", 1])
    for _ in range(drawn.randrange(3)):
        positive = made(drawn.choice(("FluxGuidance", "Reroute")), conditioning=positive)
    graph = sampled(positive, **nodes)
    names = list(graph)
    drawn.shuffle(names)
    return {name: graph[name] for name in names}, said


def without(graph: Mapping[str, Any], name: str) -> Graph:
    return {key: value for key, value in graph.items() if key != name}
