"""Images of other programs and sites: whatever the file and the place in it, the same prompts and fields are read."""

import gzip
import json
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo, iTXt

from modules.images.encode import encode_image
from modules.images.infotext import parse_infotext
from modules.images.metadata import encode_user_comment, read_metadata
from modules.images.other_programs import infotext_of_text, usual_infotext
from modules.images.stealth import SIGNATURES, with_hidden_text
from modules.sampling.names import sampler_named
from tests.extensions import built_in
from tests.images.foreign_graphs import Graph, node, random_graph, sampled

MAKE, MODEL, DESCRIPTION, COMMENT, SUB_BLOCK = 0x010F, 0x0110, 0x010E, 0x9286, 0x8769
PLAIN = "a cat\nNegative prompt: dog\nSteps: 20, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x32, Model: toy"
GRAPH = sampled(["text", 0], text=node("CLIPTextEncode", text="a glass bottle", clip=["model", 1]))


@pytest.fixture(scope="module", autouse=True)
def readers() -> None:
    built_in()


def png(**chunks: str) -> bytes:
    """A PNG with tEXt chunks whose bytes are UTF-8, as many programs write them."""
    info, file = PngInfo(), BytesIO()
    for name, text in chunks.items():
        info.add(b"tEXt", name.encode() + b"\0" + text.encode())
    Image.new("RGB", (64, 32)).save(file, "PNG", pnginfo=info)
    return file.getvalue()


def with_exif(extension: str, tags: Mapping[int, Any], comment: bytes | None = None) -> bytes:
    exif, file = Image.Exif(), BytesIO()
    exif.update(tags)
    if comment is not None:
        exif.get_ifd(SUB_BLOCK)[COMMENT] = comment
    Image.new("RGB", (64, 32)).save(file, extension, exif=exif.tobytes())
    return file.getvalue()


def read(data: bytes) -> dict[str, Any]:
    infotext, _ = read_metadata(data)
    return dict(parse_infotext(infotext or ""))


def of_graph(graph: Graph) -> dict[str, Any]:
    return read(png(prompt=json.dumps(graph)))


WORKFLOW = json.dumps({"nodes": [], "links": []})
LAYOUTS: Mapping[str, Callable[[str], bytes]] = {
    "its own WebP": lambda extension: with_exif(
        extension, {MODEL: f"prompt:{json.dumps(GRAPH)}", MAKE: f"workflow:{WORKFLOW}"}
    ),
    "capital and blank": lambda extension: with_exif(
        extension, {MAKE: f"Prompt: {json.dumps(GRAPH)}", DESCRIPTION: f"Workflow: {WORKFLOW}"}
    ),
    "other tags": lambda extension: with_exif(
        extension, {0x0131: f"prompt:{json.dumps(GRAPH)}", 0x013B: f"workflow:{WORKFLOW}"}
    ),
    "a table in the main block": lambda extension: with_exif(
        extension, {COMMENT: encode_user_comment(json.dumps({"prompt": GRAPH, "workflow": json.loads(WORKFLOW)}))}
    ),
    "the graph as user comment": lambda extension: with_exif(extension, {}, encode_user_comment(json.dumps(GRAPH))),
    "plain user comment": lambda extension: with_exif(extension, {}, b"ASCII\0\0\0" + json.dumps(GRAPH).encode()),
}


@pytest.mark.parametrize("extension", ["WEBP", "JPEG"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_graphs_of_comfyui_are_read_from_exif(layout: str, extension: str) -> None:
    fields = read(LAYOUTS[layout](extension))
    assert (fields["Prompt"], fields["Steps"], fields["Seed"]) == ("a glass bottle", "9", "5")
    assert (fields["Size-1"], fields["Model"], fields["Schedule type"]) == ("640", "toy", "Karras")


# -- what graphs say --------------------------------------------------------------------------------------------------


def test_a_condition_that_is_zeroed_is_no_text() -> None:
    for kind in ("ConditioningZeroOut", "Zero Out Conditioning", "ConditioningZeroOutPlus"):
        graph = sampled(["text", 0], ["zero", 0], text=GRAPH["text"], zero=node(kind, conditioning=["text", 0]))
        fields = of_graph(graph)
        assert (fields["Prompt"], fields["Negative prompt"]) == ("a glass bottle", ""), kind


def test_a_guider_with_two_conditions_has_a_prompt_and_a_scale() -> None:
    graph = {
        "s": node(
            "SamplerCustomAdvanced",
            **{"noise": ["n", 0], "guider": ["g", 0], "sampler": ["k", 0], "sigmas": ["b", 0]},
            latent_image=["l", 0],
        ),
        "g": node(
            "DualCFGGuider", cond1=["p", 0], cond2=["q", 0], negative=["r", 0], cfg_conds=5.5, cfg_cond2_negative=1.5
        ),
        "p": node("InstructPixToPixConditioning", positive=["t", 0], negative=["q", 0], pixels=["i", 0]),
        "q": node("CLIPTextEncode", text="blurry"),
        "r": node("CLIPTextEncode", text="worst"),
        "t": node("CLIPTextEncode", text="make it snow"),
        "n": node("RandomNoise", noise_seed=8),
        "k": node("KSamplerSelect", sampler_name="euler"),
        "b": node("BasicScheduler", scheduler="simple", steps=12, denoise=1),
        "l": node("EmptyLatentImage", width=512, height=512, batch_size=1),
    }
    fields = of_graph(graph)
    assert (fields["Prompt"], fields["Negative prompt"]) == ("make it snow", "worst")
    assert (fields["CFG scale"], fields["Steps"]) == ("5.5", "12")


@pytest.mark.parametrize("enhances", [True, False])
def test_a_switch_gives_the_users_text_where_a_model_wrote_the_other(enhances: bool) -> None:
    graph = sampled(
        ["encode", 0],
        encode=node("CLIPTextEncode", text=["outer", 0], clip=["model", 1]),
        outer=node("ComfySwitchNode", switch=["on", 0], on_false=["user", 0], on_true=["shown", 0]),
        on=node("PrimitiveBoolean", value=enhances),
        shown=node("PreviewAny", source=["inner", 0]),
        inner=node("ComfySwitchNode", switch=True, on_false=["user", 0], on_true=["written", 0]),
        user=node("PrimitiveStringMultiline", value="a lighthouse at dusk"),
        written=node("TextGenerate", prompt=["joined", 0], clip=["model", 1]),
        joined=node("StringConcatenate", string_a="Rewrite: ", string_b=["user", 0]),
        latent=node("EmptyLatentImage", width=["size", 0], height=["size", 1], batch_size=1),
        size=node("ResolutionSelector", aspect_ratio="16:9 (Widescreen)", megapixels=1.0),
    )
    fields = of_graph(graph)
    assert fields["Prompt"] == "a lighthouse at dusk"
    assert (fields["Size-1"], fields["Size-2"]) == ("1368", "768")


def test_a_switch_that_chose_an_empty_text_gives_none() -> None:
    graph = sampled(
        ["text", 0],
        ["encode", 0],
        text=GRAPH["text"],
        encode=node("CLIPTextEncode", text=["choice", 0]),
        choice=node("CR Text Input Switch", Input=2, text1="bad hands", text2=["nothing", 0]),
        nothing=node("PrimitiveString", value=""),
    )
    assert of_graph(graph)["Negative prompt"] == ""


def test_all_texts_of_areas_are_joined_and_named() -> None:
    texts = {f"t{at}": node("CLIPTextEncode", text=text) for at, text in enumerate(("night", "evening", "a street"))}
    areas = {f"a{at}": node("ConditioningSetArea", conditioning=[f"t{at}", 0], width=64, x=0) for at in range(2)}
    inner = node("ConditioningCombine", conditioning_1=["a0", 0], conditioning_2=["a1", 0])
    outer = node("ConditioningCombine", conditioning_1=["inner", 0], conditioning_2=["t2", 0])
    infotext, _ = read_metadata(png(prompt=json.dumps(sampled(["o", 0], inner=inner, o=outer, **texts, **areas))))
    assert parse_infotext(infotext or "")["Prompt"] == "night AND evening AND a street"
    assert "ComfyUI prompts joined by ConditioningCombine" in (infotext or "")


def test_names_of_inputs_count_whatever_their_case_and_a_size_may_be_a_text() -> None:
    graph = sampled(
        ["encode", 0],
        encode=node("CLIPTextEncode", text=["box", 0]),
        box=node("DF_Text_Box", Text="an owl"),
        latent=node("SDXL Empty Latent Image (rgthree)", dimensions="1216 x 832  (landscape)", batch_size=1),
    )
    fields = of_graph(graph)
    assert (fields["Prompt"], fields["Size-1"], fields["Size-2"]) == ("an owl", "1216", "832")


def test_a_pipe_of_a_loader_leads_to_prompts_and_size() -> None:
    graph = {
        "1": node(
            "easy fullLoader",
            **{"ckpt_name": "x.safetensors", "positive": "a barn", "negative": "fog", "empty_latent_width": 768},
            **{"empty_latent_height": 512, "positive_token_normalization": "none", "lora_name": "None"},
        ),
        "2": node("easy kSampler", pipe=["1", 0], seed=3, steps=8, cfg=2, sampler_name="dpmpp_2m", scheduler="normal"),
    }
    fields = of_graph(graph)
    assert (fields["Prompt"], fields["Negative prompt"], fields["Size-1"]) == ("a barn", "fog", "768")


def test_numbers_come_through_switches_and_reroutes() -> None:
    graph = sampled(["text", 0], text=GRAPH["text"])
    graph["sampler"]["inputs"]["steps"] = ["way", 0]
    graph |= {
        "way": node("Reroute", source=["choice", 0]),
        "choice": node("ComfySwitchNode", switch=True, on_false=["few", 0], on_true=["many", 0]),
        "few": node("PrimitiveInt", value=4),
        "many": node("PrimitiveInt", value=40),
    }
    assert of_graph(graph)["Steps"] == "40"


def test_random_graphs_give_the_text_that_their_sampler_got() -> None:
    for seed in range(150):
        graph, said = random_graph(seed)
        assert parse_infotext(infotext_of_text(json.dumps(graph)) or "")["Prompt"] == said, seed


def test_ten_thousand_nodes_and_rings_are_read_soon() -> None:
    ring = {
        f"r{n}": node("StringConcatenate", **{f"string_{x}": [f"r{(n + 1) % 9}", 0] for x in "abcd"}) for n in range(9)
    }
    switches = {
        f"w{n}": node("ComfySwitchNode", switch=[f"w{n}", 0], on_false=[f"w{n}", 0], on_true=["r0", 0])
        for n in range(9)
    }
    filler = {
        f"n{n}": node("Math", a=[f"n{(n + 1) % 10_000}", 0], b=[f"n{(n * 7) % 10_000}", 0]) for n in range(10_000)
    }
    graph = sampled(["text", 0], ["w0", 0], text=GRAPH["text"], **ring, **switches, **filler)
    graph["sampler"]["inputs"]["cfg"] = ["n0", 0]
    text = json.dumps(graph)
    begun = time.process_time()
    infotext = infotext_of_text(text)
    assert time.process_time() - begun < 3
    assert infotext is not None and infotext.startswith("a glass bottle\n")


# -- sites and other programs -----------------------------------------------------------------------------------------


CIVITAI_EXTRA = {
    **{"prompt": "a fox", "negativePrompt": "blurry", "steps": 25, "cfgScale": 4, "sampler": "Euler a", "seed": 77},
    **{"workflowId": "txt2img", "clipSkip": 2},
}


@pytest.mark.parametrize("has_sampler", [True, False])
def test_the_generator_of_civitai_is_read(has_sampler: bool) -> None:
    graph = (
        dict(GRAPH) if has_sampler else {"1": node("LoadImage", image="x"), "2": node("ImageUpscale", image=["1", 0])}
    )
    if has_sampler:
        graph["model"] = node("CheckpointLoaderSimple", ckpt_name="urn:air:sdxl:checkpoint:civitai:1@2")
    given = {**graph, "extra": {"airs": ["urn:air:x"]}, "extraMetadata": json.dumps(CIVITAI_EXTRA)}
    fields = read(with_exif("JPEG", {}, encode_user_comment(json.dumps(given))))
    assert (fields["Prompt"], fields["Negative prompt"]) == ("a fox", "blurry")
    assert (fields["Steps"], fields["Sampler"], fields["Seed"]) == ("25", "Euler a", "77")
    assert "Model" not in fields
    assert fields.get("Size-1") == ("640" if has_sampler else None)


NOVELAI = {
    **{"Software": "NovelAI", "Source": "NovelAI Diffusion V4.5", "Title": "NovelAI generated image"},
    "Description": "\0\0\0\x001girl, rain",
    "Comment": json.dumps(
        {
            **{"prompt": "1girl, rain", "steps": 28, "height": 1216, "width": 832, "scale": 5.0, "seed": 7},
            **{"sampler": "k_dpmpp_2m", "noise_schedule": "karras", "uc": "lowres"},
        }
    ),
}


def test_novelai_is_read_from_webp() -> None:
    fields = read(with_exif("WEBP", {}, b"ASCII\0\0\0" + json.dumps(NOVELAI).encode()))
    assert (fields["Prompt"], fields["Negative prompt"]) == ("1girl, rain", "lowres")
    assert (fields["Sampler"], fields["Schedule type"], fields["Size-1"]) == ("DPM++ 2M", "Karras", "832")


SPACE = {
    **{"prompt": "1girl", "negative_prompt": "lowres", "resolution": "832 x 1216", "guidance_scale": 7.0},
    **{"num_inference_steps": 28, "seed": 12, "sampler": "DPM++ 2M Karras", "Model": "Animagine XL 3.1"},
    **{"Model hash": "e3c47aedb0", "use_upscaler": None},
}


def test_parameters_as_json_of_a_space_are_read() -> None:
    fields = read(png(parameters=json.dumps(SPACE)))
    assert (fields["Prompt"], fields["Negative prompt"], fields["Steps"]) == ("1girl", "lowres", "28")
    assert (fields["Sampler"], fields["Schedule type"]) == ("DPM++ 2M", "Karras")
    assert (fields["Size-1"], fields["Size-2"]) == ("832", "1216")
    assert (fields["Model"], fields["Model hash"]) == ("Animagine XL 3.1", "e3c47aedb0")


@pytest.mark.parametrize(
    "text",
    ['{"a": 1}', '[{"a": [1, 2]}]', '{"prompt": "x"}', '{"version": "1", "cut": "off', "[]", '{\n  "k": {"z": 0'],
)
def test_unknown_json_is_no_prompt(text: str) -> None:
    assert usual_infotext(text) == ""
    assert read_metadata(png(parameters=text)) == (None, {"parameters": text})
    assert read_metadata(with_exif("JPEG", {}, encode_user_comment(text)))[0] is None


@pytest.mark.parametrize(
    "text", ["{red|blue} cat", "[[dim]] hall", "[cat:dog:5] x", '{"quoted" a cat}', f'{{"x": 1}} {PLAIN}']
)
def test_prompts_that_begin_with_brackets_stay(text: str) -> None:
    written = text if "Steps" in text else f"{text}\nSteps: 20, Sampler: Euler, Seed: 1"
    assert usual_infotext(written) == written


def test_text_chunks_with_utf_8_are_read_and_latin_1_stays() -> None:
    fields = read(png(parameters=PLAIN.replace("a cat", "#テスト\r\né"), **{"parameters-json": '{"a": 1}'}))
    assert fields["Prompt"] == "#テスト\né"
    for prompt in ("über", "Ã©", "é猫"):
        text = PLAIN.replace("a cat", prompt)
        assert read_metadata(encode_image(Image.new("RGB", (64, 32)), "png", text))[0] == text


def test_a_file_that_says_unknown_is_read_from_its_graph() -> None:
    unknown = (
        "unknown\nNegative prompt: unknown\nSteps: 9, Sampler: euler, CFG Scale: 8.0, Seed: 0, Size: 64x32, Model: toy"
    )
    fields = read(png(parameters=unknown, prompt=json.dumps(GRAPH)))
    assert (fields["Prompt"], fields["Seed"], fields["CFG scale"]) == ("a glass bottle", "5", "3.5")
    assert parse_infotext(unknown)["CFG scale"] == "8.0"
    assert read(png(parameters=PLAIN, prompt=json.dumps(GRAPH)))["Prompt"] == "a cat"


def test_a_model_that_is_a_number_has_the_name_that_the_file_says_elsewhere() -> None:
    more = {
        **{"prompt": "a cat", "steps": 20, "cfgScale": 7, "seed": "1"},
        "baseModel": {"modelFileName": "Illustrious-16", "hash": "ABCDEF12"},
    }
    written = PLAIN.replace("Model: toy", "Model hash: 99, Model: EMS-1401459-EMS, Clip skip: 2")
    fields = read(png(parameters=written, generation_data=json.dumps(more) + "\0"))
    assert (fields["Model"], fields["Model hash"], fields["Sampler"]) == ("Illustrious-16", "ABCDEF12", "Euler")


def test_what_an_editor_wrote_is_no_prompt() -> None:
    file = BytesIO()
    Image.new("RGB", (64, 32)).save(file, "JPEG", comment="GIMPで再保存しただけ".encode())
    infotext, items = read_metadata(file.getvalue())
    assert infotext is None
    assert items["comment"] == "GIMPで再保存しただけ"


def test_sd_next_says_its_schedule_in_its_own_words() -> None:
    text = "a cat\nSteps: 20, Sampler: DPM++ 2M, Sampler sigma: karras, CFG scale: 7, Seed: 1, App: SD.Next"
    assert parse_infotext(usual_infotext(text))["Schedule type"] == "karras"


def test_samplers_of_other_programs_have_names_here() -> None:
    for theirs, ours in (
        *(("uni_pc_bh2", "UniPC"), ("sample_dpmpp_2m", "DPM++ 2M"), ("sample_dpmpp_sde", "DPM++ SDE")),
        *(("EulerAncestralDiscreteScheduler", "Euler a"), ("dpmpp_2m_sde_gpu", "DPM++ 2M SDE")),
        *(("DPMSolverMultistepScheduler", "DPM++ 2M"), ("ddim_cfg_pp", "DDIM CFG++")),
    ):
        assert sampler_named(theirs) == ours


# -- pixels -----------------------------------------------------------------------------------------------------------


def painted(size: tuple[int, int] = (90, 70)) -> Image.Image:
    pixels = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    pixels[:, :, 3] = 255
    return Image.fromarray(pixels)


def hidden_by_hand(text: str, place: str, is_packed: bool) -> Image.Image:
    """An image with a text in its pixels, written bit by bit."""
    image = painted()
    data = gzip.compress(text.encode()) if is_packed else text.encode()
    written = SIGNATURES[place][is_packed] + (8 * len(data)).to_bytes(4, "big") + data
    bits = "".join(f"{byte:08b}" for byte in written)
    if place == "rgb":
        image = image.convert("RGB")
    at = 0
    for x in range(image.width):
        for y in range(image.height):
            pixel = list(image.getpixel((x, y)))  # type: ignore[arg-type]
            for channel in (3,) if place == "alpha" else (0, 1, 2):
                if at < len(bits):
                    pixel[channel] = pixel[channel] & 0xFE | int(bits[at])
                    at += 1
            image.putpixel((x, y), tuple(pixel))
    return image


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("place", ["alpha", "rgb"])
def test_text_in_pixels_is_read(place: str, is_packed: bool) -> None:
    file = BytesIO()
    hidden_by_hand(PLAIN, place, is_packed).save(file, "PNG")
    infotext, items = read_metadata(file.getvalue())
    assert infotext == PLAIN
    assert items == {"stealth PNG info": PLAIN}


@pytest.mark.parametrize("place", ["alpha", "rgb"])
def test_text_is_written_into_pixels_that_change_by_one_at_most(place: str) -> None:
    image = painted()
    hidden = with_hidden_text(image, PLAIN, place)
    assert read_metadata(encode_image(hidden, "png"))[0] == PLAIN
    before, after = (np.asarray(one.convert("RGBA")).astype(int) for one in (image, hidden))
    assert np.abs(before - after).max() == 1
    assert with_hidden_text(painted((4, 4)), PLAIN, place).size == (4, 4)


def test_novelai_is_read_from_pixels_and_pixels_that_were_changed_are_no_error() -> None:
    hidden = hidden_by_hand(json.dumps(NOVELAI), "alpha", True)
    file = BytesIO()
    hidden.save(file, "PNG")
    assert read(file.getvalue())["Prompt"] == "1girl, rain"
    hidden.putalpha(hidden.getchannel("A").point(lambda value: value, "L"))
    pixels = np.array(hidden)
    pixels[30:, :, 3] ^= 1
    for broken in (pixels, pixels[:, :3]):
        file = BytesIO()
        Image.fromarray(np.ascontiguousarray(broken)).save(file, "PNG")
        assert read_metadata(file.getvalue())[0] is None


def test_itxt_chunks_are_taken_as_they_are() -> None:
    info, file = PngInfo(), BytesIO()
    info.add_itxt("parameters", PLAIN.replace("a cat", "Ã©"))
    Image.new("RGB", (64, 32)).save(file, "PNG", pnginfo=info)
    assert isinstance(Image.open(BytesIO(file.getvalue())).info["parameters"], iTXt)
    assert read(file.getvalue())["Prompt"] == "Ã©"
