"""Forms in which programs write how an image was made, as their images hold it: nodes that hold several LoRAs, drawn
graphs with graphs inside, lines of text, XMP, texts of unnamed encodings, JSON under a name of its own."""

import json
from collections.abc import Mapping
from html import escape
from io import BytesIO
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.images.infotext import parse_infotext
from modules.images.metadata import decode_user_comment, encode_user_comment
from modules.images.other_programs import usual_infotext
from tests.extensions import built_in
from tests.images.foreign_graphs import node, sampled
from tests.images.test_foreign_images import DESCRIPTION, of_graph, png, read, with_exif

LINE = "a cat\nSteps: 20, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x32"


@pytest.fixture(scope="module", autouse=True)
def readers() -> None:
    built_in()


def said(fields: Mapping[str, Any], *names: str) -> list[Any]:
    return [fields.get(name) for name in names]


# -- ComfyUI: nodes of others ------------------------------------------------------------------------------------------

LORA_NODES: Mapping[str, dict[str, Any]] = {
    "rgthree, rows": node(
        "Power Lora Loader (rgthree)",
        PowerLoraLoaderHeaderWidget={"type": "PowerLoraLoaderHeaderWidget"},
        lora_1={"on": True, "lora": "kin/style.safetensors", "strength": 0.6},
        lora_2={"on": False, "lora": "off.safetensors", "strength": 1},
    ),
    "rgthree, stack": node(
        "Lora Loader Stack (rgthree)", lora_01="style.safetensors", strength_01=0.6, lora_02="None", strength_02=1
    ),
    "Efficiency": node(
        "LoRA Stacker",
        **{"input_mode": "simple", "lora_count": 1, "lora_name_1": "style.safetensors", "lora_wt_1": 0.6},
        **{"lora_name_2": "beyond the count.safetensors", "lora_wt_2": 1},
    ),
    "Comfyroll": node(
        "CR LoRA Stack",
        **{"switch_1": "On", "lora_name_1": "style.safetensors", "model_weight_1": 0.6, "clip_weight_1": 1},
        **{"switch_2": "Off", "lora_name_2": "off.safetensors", "model_weight_2": 1},
    ),
    "Easy Use": node("easy loraStack", lora_1_name="style.safetensors", lora_1_strength=0.6, lora_2_name="None"),
    "pysssss": node(
        "LoraLoader|pysssss", lora_name={"content": "style.safetensors", "image": None}, strength_model=0.6
    ),
    "LoRA Manager": node(
        "Lora Loader (LoraManager)",
        loras={
            "__value__": [
                {"name": "style", "strength": 0.6, "active": True},
                {"name": "off", "strength": 1, "active": False},
            ]
        },
    ),
}


@pytest.mark.parametrize("name", LORA_NODES)
def test_loras_of_nodes_for_several_become_tags(name: str) -> None:
    graph = sampled(["text", 0], text=node("CLIPTextEncode", text="a cat", clip=["model", 1]), lora=LORA_NODES[name])
    assert of_graph(graph)["Prompt"] == "a cat <lora:style:0.6>"


def test_loaders_that_hold_prompts_and_size_are_read() -> None:
    graph = {
        "1": node(
            "Efficient Loader",
            **{"ckpt_name": "toy.safetensors", "vae_name": "Baked VAE", "clip_skip": -2, "lora_name": "None"},
            **{"positive": "a dog", "negative": "bad", "empty_latent_width": 640, "empty_latent_height": 512},
        ),
        "2": node(
            "KSampler (Efficient)",
            **{"seed": 7, "steps": 20, "cfg": 6, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 1},
            **{"model": ["1", 0], "positive": ["1", 1], "negative": ["1", 2], "latent_image": ["1", 3]},
        ),
    }
    fields = of_graph(graph)
    assert said(fields, "Prompt", "Negative prompt", "Size-1", "Clip skip") == ["a dog", "bad", "640", "2"]


@pytest.mark.parametrize(("kind", "name"), [("UnetLoaderGGUF", "unet_name"), ("NunchakuFluxDiTLoader", "model_path")])
def test_loaders_of_other_formats_name_the_model(kind: str, name: str) -> None:
    text = node("CLIPTextEncode", text="a cat", clip=["model", 1])
    assert of_graph(sampled(["text", 0], text=text, model=node(kind, **{name: "some/flux.gguf"})))["Model"] == "flux"


# -- ComfyUI: drawn graphs ---------------------------------------------------------------------------------------------

Inputs = tuple[tuple[str, str, int | None], ...]


def drawn(number: int, kind: str, values: tuple[Any, ...] = (), inputs: Inputs = (), **more: Any) -> dict[str, Any]:
    """A node as it is drawn; inputs are (name, type, link)."""
    entries = [{"name": name, "type": of, "link": link} for name, of, link in inputs]
    return {"id": number, "type": kind, "widgets_values": list(values), "inputs": entries, "mode": 0, **more}


SAMPLER: Inputs = (
    *(("model", "MODEL", 53), ("positive", "CONDITIONING", 54)),
    *(("negative", "CONDITIONING", 55), ("latent_image", "LATENT", 56)),
)
NODES = (
    drawn(10, "CheckpointLoaderSimple", ("toy.safetensors",)),
    drawn(11, "CLIPTextEncode", ("inner text",), (("clip", "CLIP", 51), ("text", "STRING", 50))),
    drawn(12, "CLIPTextEncode", ("bad",), (("clip", "CLIP", 52),)),
    drawn(13, "EmptyLatentImage", (512, 768, 1)),
    drawn(14, "KSampler", (5, "fixed", 12, 4, "euler", "simple", 1), SAMPLER),
)
LINKS = (
    *((51, 10, 1, 11, 0), (52, 10, 1, 12, 0), (53, 10, 0, 14, 0)),
    *((54, 11, 0, 14, 1), (55, 12, 0, 14, 2), (56, 13, 0, 14, 3)),
)
KEYS = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
SUBGRAPH = {
    "id": "3fa85f64-5717",
    "nodes": list(NODES),
    "links": [dict(zip(KEYS, link, strict=True)) for link in (*LINKS, (50, -10, 0, 11, 1), (60, 14, 0, -20, 0))],
}


def of_workflow(*nodes: dict[str, Any], links: tuple[tuple[int, ...], ...] = (), **more: Any) -> dict[str, Any]:
    whole = {"nodes": list(nodes), "links": [[*link, "ANY"] for link in links], **more}
    return read(png(workflow=json.dumps(whole)))


def test_nodes_inside_of_a_subgraph_are_read() -> None:
    definitions = {"subgraphs": [SUBGRAPH]}
    fields = of_workflow(
        drawn(2, "3fa85f64-5717", (), (("text", "STRING", 1),)),
        drawn(1, "PrimitiveStringMultiline", ("a red boat",)),
        links=((1, 1, 0, 2, 0),),
        definitions=definitions,
    )
    assert said(fields, "Prompt", "Negative prompt", "Steps", "Size-2") == ["a red boat", "bad", "12", "768"]
    alone = of_workflow(drawn(2, "3fa85f64-5717", (), (("text", "STRING", None),)), definitions=definitions)
    assert alone["Prompt"] == "inner text", "what is not linked stands in the node inside"
    field = drawn(2, "3fa85f64-5717", ("a green boat",), (("text", "STRING", None),))
    field["inputs"][0]["widget"] = {"name": "text"}
    assert of_workflow(field, definitions=definitions)["Prompt"] == "a green boat"


def test_what_a_subgraph_gives_is_followed() -> None:
    text = {
        "id": "of-text",
        "nodes": [drawn(1, "PrimitiveString", ("a hill",))],
        "links": [dict(zip(KEYS, (9, 1, 0, -20, 0), strict=True))],
    }
    links = (*LINKS, (50, 3, 0, 11, 1))
    fields = of_workflow(*NODES, drawn(3, "of-text"), links=links, definitions={"subgraphs": [text]})
    assert fields["Prompt"] == "a hill"


def test_rings_of_subgraphs_end() -> None:
    ring = {"id": "ring", "nodes": [drawn(1, "ring"), drawn(2, "ring")], "links": []}
    assert of_workflow(drawn(1, "ring"), *NODES, links=LINKS, definitions={"subgraphs": [ring]})["Steps"] == "12"
    pairs = [(f"nest{number}", f"nest{number + 1}") for number in range(40)]
    nests = [{"id": name, "nodes": [drawn(1, inner), drawn(2, inner)], "links": []} for name, inner in pairs]
    assert of_workflow(*NODES, drawn(1, "nest0"), links=LINKS, definitions={"subgraphs": nests})["Steps"] == "12"


def test_nodes_in_a_group_node_have_the_values_of_the_group() -> None:
    inside = [{**one, "id": -1} for one in NODES]
    at = {10: 0, 11: 1, 12: 2, 13: 3, 14: 4}
    links = [[at[start], slot, at[end], into, 1, "ANY"] for _, start, slot, end, into in LINKS]
    group = {"nodes": inside, "links": links, "external": []}
    values = ("toy.safetensors", "a lake", "bad", 512, 768, 1, 33, "fixed", 15, 5, "euler", "normal", 1)
    fields = of_workflow(drawn(1, "workflow>mine", values), extra={"groupNodes": {"mine": group}})
    assert said(fields, "Prompt", "Steps", "Seed") == ["a lake", "15", "33"]


def test_nodes_that_are_off_are_left_out_and_passed_through() -> None:
    muted = {**drawn(9, "KSampler", (111, "fixed", 5, 1, "euler", "normal", 1), SAMPLER), "mode": 2}
    bypassed = drawn(6, "ControlNetApply", (1,), (("conditioning", "CONDITIONING", 70), ("image", "IMAGE", None)))
    bypassed |= {"mode": 4, "outputs": [{"type": "CONDITIONING"}]}
    links = (*(link for link in LINKS if link[0] != 54), (70, 11, 0, 6, 0), (54, 6, 0, 14, 1))
    fields = of_workflow(muted, bypassed, *NODES, links=links)
    assert said(fields, "Prompt", "Steps", "Seed") == ["inner text", "12", "5"]


# -- lines of text -----------------------------------------------------------------------------------------------------

KOBOLD = (
    "Prompt: a cat | NegativePrompt: bad | Steps: 20 | CFGScale: 7 | Guidance: 3.5 | Seed: 42 | Size: 512x768 | "
    "Sampler: euler_a karras | Clip skip: -1 | Model: toy | Version: KoboldCpp"
)
MOCHI = (
    "Include in Image: a cat; Exclude from Image: bad; Model: toy; Steps: 20; Guidance Scale: 7; Seed: 42; Size: "
    "512x768; Scheduler: DPM-Solver++; ML Compute Unit: CPU & Neural Engine; Generator: Mochi Diffusion 3.1"
)
CPP = (
    "a cat\nNegative prompt: bad\nSteps: 20, CFG scale: 7, Guidance: 3.5, Eta: 0, Seed: 42, Size: 512x768, Model: toy, "
    "RNG: cuda, Sampler: dpm++2m karras, Version: stable-diffusion.cpp"
)
MAIN = ("Prompt", "Negative prompt", "Steps", "CFG scale", "Seed", "Size-1", "Size-2", "Model")


@pytest.mark.parametrize(
    "text", [KOBOLD, MOCHI, MOCHI.replace("; ", "\n"), CPP], ids=["KoboldCpp", "Mochi", "2", "cpp"]
)
def test_lines_of_programs_are_read_where_infotexts_stand_and_as_pasted_text(text: str) -> None:
    for fields in (read(png(parameters=text)), dict(parse_infotext(usual_infotext(text)))):
        assert said(fields, *MAIN) == ["a cat", "bad", "20", "7", "42", "512", "768", "toy"]
    assert fields["Sampler"] in ("Euler a", "DPM++ 2M", "dpm++2m karras")
    if text is CPP:
        assert said(fields, "RNG", "Distilled CFG Scale") == ["NV", "3.5"]


def test_midjourney_says_a_prompt_and_its_options() -> None:
    job = "Job ID: 123e4567-e89b-12d3-a456-426614174000"
    for options in ("--ar 16:9 --no people --seed 1234 --v 6.1", f"--no people --seed 1234 --tile {job}"):
        fields = read(png(Description=f"a castle, oil painting {options}", Author="someone"))
        assert said(fields, "Prompt", "Negative prompt", "Seed") == ["a castle, oil painting", "people", "1234"]
    assert read(png(Description="a castle -- in the clouds")).get("Prompt", "") == ""


def test_resources_of_civitai_name_the_model() -> None:
    resources = [
        {"type": "checkpoint", "modelVersionId": 1, "modelName": "Toy, XL", "modelVersionName": "v0.1"},
        {"type": "lora", "weight": 0.8, "modelVersionId": 2, "modelName": "Style"},
    ]
    end = f"Civitai resources: {json.dumps(resources, separators=(',', ':'))}, Civitai metadata: {{}}"
    for text in (f"{LINE}, {end}", f"{LINE}, {end.partition(', Civitai metadata')[0]}"):
        fields = read(with_exif("JPEG", {}, encode_user_comment(text)))
        assert said(fields, "Prompt", "Model", "Civitai lora 1") == ["a cat", "Toy, XL", "Style 0.8"]


# -- places and encodings ----------------------------------------------------------------------------------------------


def xmp(name: str, text: str, extension: str = "PNG") -> bytes:
    """An image with a text in its XMP."""
    block = (
        f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description><{name}><rdf:Alt>'
        f'<rdf:li xml:lang="x-default">{escape(text)}</rdf:li></rdf:Alt></{name}></rdf:Description></rdf:RDF>'
        "</x:xmpmeta>"
    )
    info, file, image = PngInfo(), BytesIO(), Image.new("RGB", (64, 32))
    info.add_itxt("XML:com.adobe.xmp", block)
    image.save(file, extension, **({"pnginfo": info} if extension == "PNG" else {"xmp": block.encode()}))
    return file.getvalue()


DRAW_THINGS = json.dumps({"c": "a cat", "uc": "bad", "steps": 20, "scale": 7, "seed": 42, "size": "512x768"})


@pytest.mark.parametrize("extension", ["PNG", "JPEG"])
@pytest.mark.parametrize(
    ("name", "text"), [("exif:UserComment", DRAW_THINGS), ("dc:description", MOCHI), ("dc:description", LINE)]
)
def test_texts_in_xmp_are_read(name: str, text: str, extension: str) -> None:
    assert said(read(xmp(name, text, extension)), "Prompt", "Steps") == ["a cat", "20"]
    assert read(xmp(name, "a photograph of a cat", extension)).get("Prompt", "") == ""


def test_the_description_of_exif_is_read() -> None:
    assert read(with_exif("JPEG", {DESCRIPTION: MOCHI}))["Prompt"] == "a cat"
    assert read(with_exif("JPEG", {DESCRIPTION: "a photograph"})).get("Prompt", "") == ""


@pytest.mark.parametrize("head", [b"", b"\0" * 8, b"UNICODE\0"])
@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_utf_16_is_read_whatever_stands_before_it(head: bytes, order: str, mark: str) -> None:
    assert decode_user_comment(head + f"{mark}{LINE}".encode(order)) == LINE


def test_json_is_read_under_any_name() -> None:
    given = {"prompt": "a cat", "negative_prompt": "bad", "steps": 20, "seed": 4, "cfg_scale": 7, "w": 64, "h": 96}
    for text in (given, {**given, "prompts": given["prompt"], "prompt": None}):
        fields = read(png(generation_info=json.dumps(text)))
        assert said(fields, "Prompt", "Steps", "Size-2") == ["a cat", "20", "96"]
    skipped = {**given, "clip_skip": True}
    assert read(with_exif("JPEG", {}, encode_user_comment(json.dumps(skipped))))["Clip skip"] == "2"
