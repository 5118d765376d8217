"""ControlNet: recorded requests of the reference UI, made here through the API, and the replies of its routes."""

import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from modules.api.app import build_api
from modules.api.program.extensions import add_extension_routes
from modules.assembly import build_services
from modules.flags.flags import Flags
from tests.processing.recorded_techniques import fields_of
from tests.recordings import REFERENCE, TINY
from tests.scripts.test_control_nets import library, random_weights
from tests.thorough import usually

CONTROL = REFERENCE / "control"
CASES: dict[str, dict[str, Any]] = {
    str(case["id"]): case for case in json.loads((CONTROL / "cases.json").read_text(encoding="utf-8"))["cases"]
}
USUAL = (
    *("form/legacy-guidance", "kind/tiny_diffusers", "kind/controllora-with-lora", "kind/tiny_t2i_gray-128x96"),
    *("mode/controlnet", "mode/my-reference", "time/0.25-0.75", "weight/advanced-13", "pixel/res-out-of-range"),
    *("module/recolor_luminance", "module/shuffle-net", "mask/region-wide", "inpaint/inpaint_only", "hires/t2i"),
    *(
        "ip/ip-adapter_sd15-clip-mask",
        "ip/ip-adapter-plus_sd15-advanced",
        "ip/img2img-own",
        "openpose/render-hand-face",
    ),
    *("ip/input-tensor", "with/save_detected_map-false", "resize/int-2", "img2img/own-image-canny"),
)


def usual(name: str) -> bool:
    """Whether it is made by default: one of each kind."""
    return name in USUAL or name.startswith(("bad/", "detect/"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("control")
    models = folder / "models"
    shutil.copytree(CONTROL / "models", models)
    shutil.copy(models / "ControlNet" / "tiny_canny.safetensors", models / "ControlNet" / "tiny_shuffle.safetensors")
    shutil.copytree(REFERENCE / "models" / "Lora", models / "Lora")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    services = build_services(Flags(data_dir=str(folder), ckpt=str(TINY), no_half=True, use_cpu=("all",)))
    services.dispatcher.start()
    try:
        app = build_api(services)
        add_extension_routes(app, services.scripts.callbacks, None)
        with TestClient(app) as found:
            yield found
    finally:
        services.dispatcher.close()
        torch.set_num_threads(threads)


def with_files(value: Any) -> Any:
    """A payload with what names of files stand for."""
    if isinstance(value, list):
        return [with_files(item) for item in value]
    if not isinstance(value, dict):
        return value
    for key, beginning in (("$file", ""), ("$dataurl", "data:image/png;base64,")):
        if key in value:
            return beginning + base64.b64encode((CONTROL / value[key]).read_bytes()).decode()
    return {key: with_files(item) for key, item in value.items()}


def parts_of(entry: str) -> dict[str, Any]:
    """An infotext's entry of a unit, numbers as numbers, without the model's hash."""
    found: dict[str, Any] = {}
    for part in entry.split(", "):
        name, _, value = part.partition(": ")
        value = value.partition(" [")[0]
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = value
    return found


@pytest.mark.parametrize("name", usually(CASES, usual))
def test_a_recorded_request(name: str, client: TestClient) -> None:
    case = CASES[name]
    reply = client.post(case["endpoint"], json=with_files(case["payload"]))
    if name.startswith("bad/"):
        assert 400 <= reply.status_code < 500 and reply.json()["errors"].strip()
        return
    assert reply.status_code == 200, reply.text
    wanted = CASES[case["same_as"]] if case.get("same_as") else case
    images = [Image.open(io.BytesIO(base64.b64decode(text))) for text in reply.json()["images"]]
    assert len(images) == len(wanted["images"])
    for image, recorded in zip(images, wanted["images"], strict=True):
        ours = np.asarray(image).astype(int)
        theirs = np.asarray(Image.open(CONTROL / recorded["file"])).astype(int)
        assert ours.shape == theirs.shape
        assert (np.abs(ours - theirs).max(axis=-1) > 2).mean() <= 0.005
    if not wanted.get("info"):
        return
    found = fields_of(json.loads(reply.json()["info"])["infotexts"][0])
    for key, entry in fields_of(wanted["info"]["infotexts"][0]).items():
        if key.startswith("ControlNet"):
            assert parts_of(str(found[key])) == parts_of(str(entry))


def test_the_route_of_old_callers_makes_the_same_image(client: TestClient) -> None:
    """Units are a list of their own there, with old names."""
    payload = with_files(CASES["form/legacy-guidance"]["payload"])
    wanted = client.post("/sdapi/v1/txt2img", json=payload).json()
    (unit,) = payload.pop("alwayson_scripts")["ControlNet"]["args"]
    reply = client.post("/controlnet/txt2img", json={**payload, "controlnet_units": [unit]})
    assert reply.status_code == 200 and reply.json()["images"] == wanted["images"]
    refused = client.post("/controlnet/txt2img", json={**payload, "controlnet_units": "canny"})
    assert refused.status_code == 422 and "list of units" in refused.json()["errors"]


def images_of(reply: Any) -> list[Any]:
    """The images of a reply as arrays."""
    assert reply.status_code == 200, reply.text
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))).astype(int) for text in reply.json()["images"]]


def asked(client: TestClient, *units: dict[str, Any], **more: Any) -> Any:
    """The reply to a small request with these units."""
    payload = {**with_files(CASES["form/legacy-guidance"]["payload"]), "steps": 1, **more}
    return client.post("/sdapi/v1/txt2img", json={**payload, "alwayson_scripts": {"ControlNet": {"args": list(units)}}})


INPUT, MASK = CONTROL / "inputs" / "ctl64.png", CONTROL / "inputs" / "mask64.png"
UNIT = {"module": "none", "model": "tiny_canny", "save_detected_map": False}


def text_of(pixels: Any, mode: str | None = None) -> str:
    content = io.BytesIO()
    Image.fromarray(pixels, mode).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode()


def file_text(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def canvas(*shape: int) -> Any:
    return np.zeros((64, 64, *shape), np.uint8)


def two_images() -> list[str]:
    pixels = np.asarray(Image.open(INPUT).convert("RGB"))
    return [text_of(pixels), text_of(np.ascontiguousarray(pixels[::-1, :, ::-1]))]


HIRES = {"enable_hr": True, "hr_scale": 2, "hr_upscaler": "Latent", "denoising_strength": 0.7, "steps": 2}
SILENT = {**UNIT, "advanced_weighting": [0.0] * 13}
"""A unit whose network adds nothing: what its module does by itself is left."""


def fields_of_reply(reply: Any) -> dict[str, Any]:
    return fields_of(json.loads(reply.json()["info"])["infotexts"][0])


@pytest.mark.parametrize("option", ["Both", "Low res only", "High res only"])
def test_a_unit_has_a_map_for_each_pass_whichever_it_takes_part_in(option: str, client: TestClient) -> None:
    unit = {**UNIT, "image": file_text(INPUT), "hr_option": option, "save_detected_map": True}
    reply = asked(client, unit, **HIRES)
    assert [image.shape for image in images_of(reply)] == [(128, 128, 3), (128, 128, 3), (64, 64, 3)]
    found = fields_of_reply(reply)
    assert "Hr Option" not in parts_of(found["ControlNet 0"])
    assert found.get("ControlNet 0 Hr Option", "Both") == option
    program: Any = SimpleNamespace(folders=lambda name: (CONTROL / "models" / name,))
    units = library("page").pasted_units(program, False, found)
    assert "give unit 0 its own" in " ".join(units.sentences)
    pasted = json.loads(units.value)
    assert pasted[0].get("hr_option", "Both") == option and pasted[0]["model"] == "tiny_canny [7425000e]"
    hidden = asked(client, unit, **HIRES, override_settings={"control_net_no_detectmap": True})
    assert [image.tolist() for image in images_of(hidden)] == [images_of(reply)[0].tolist()]


def test_without_a_second_pass_units_of_it_count_too(client: TestClient) -> None:
    unit = {**UNIT, "image": file_text(INPUT)}
    replies = [asked(client, {**unit, "hr_option": option}) for option in ("Both", "High res only")]
    assert images_of(replies[0])[0].tolist() == images_of(replies[1])[0].tolist()
    assert "ControlNet 0 Hr Option" not in fields_of_reply(replies[1])


def test_a_reference_in_the_second_pass_knows_no_negative_prompts(client: TestClient) -> None:
    """So the fidelity, which is theirs alone, changes nothing; with the first pass's encoded prompts it does."""
    unit = {"module": "reference_only", "image": file_text(INPUT), "hr_option": "High res only"}

    def made(fidelity: float, **settings: Any) -> Any:
        reply = asked(client, {**unit, "threshold_a": fidelity}, **HIRES, override_settings=settings)
        return images_of(reply)[0].tolist()

    assert made(0.0) == made(1.0)
    first = {"hires_fix_use_firstpass_conds": True}
    assert made(0.0, **first) != made(1.0, **first)


def test_noise_of_references_follows_what_encodings_have_drawn(client: TestClient) -> None:
    """Each image that is encoded draws once in a job, whatever for. A unit of weight 0 may round one level apart."""
    reference = {"module": "reference_only", "image": file_text(INPUT), "save_detected_map": False}
    tile = {**SILENT, "module": "tile_colorfix", "weight": 0.0}

    def differs(*units: Any) -> int:
        return int(np.abs(np.subtract(images_of(asked(client, *units))[0], alone, dtype=np.int32)).max())

    alone = images_of(asked(client, reference))[0]
    assert differs(reference, {**tile, "image": file_text(INPUT)}) <= 1
    other = file_text(INPUT.with_name("ctl64b.png"))
    assert differs(reference, {**tile, "image": other}) > 10
    seeds = {"seed": 1235}
    second = images_of(asked(client, reference, n_iter=2))[1].tolist()
    assert second != images_of(asked(client, reference, **seeds))[0].tolist()


def test_what_is_kept_is_kept_in_both_passes_by_weight(client: TestClient) -> None:
    unit = {**SILENT, "module": "inpaint_only", "image": file_text(INPUT), "mask": file_text(MASK)}
    options = ("Both", "Low res only", "High res only")
    both, low, high = (images_of(asked(client, {**unit, "hr_option": one}, **HIRES))[0] for one in options)
    assert both.tolist() == low.tolist() == high.tolist()
    weights = (0.0, 0.5, 1.0)
    none, half, whole = (images_of(asked(client, {**unit, "weight": one}))[0] for one in weights)
    plain = images_of(asked(client))[0]
    painted = np.asarray(Image.open(MASK).convert("L")) > 127
    inner = (slice(24, 40), slice(24, 40))
    assert painted[inner].all(), "far from what is pasted back"
    assert none[inner].tolist() == plain[inner].tolist()
    assert (half[inner] != whole[inner]).any() and (half[inner] != none[inner]).any()


def test_the_border_of_what_is_kept_is_as_soft_as_the_setting_says(client: TestClient) -> None:
    """Each size is a square around a pixel: that of 1 takes what is painted as it is."""
    unit = {**SILENT, "module": "inpaint_only", "image": file_text(INPUT), "mask": file_text(MASK)}
    painted = np.asarray(Image.open(MASK).convert("L")) > 127
    kept = np.asarray(Image.open(INPUT).convert("RGB")).astype(int)
    replies = {
        size: asked(client, unit, override_settings={"control_net_inpaint_blur_sigma": size}) for size in (1, 4, 7)
    }
    images = {size: images_of(reply)[0] for size, reply in replies.items()}
    assert images[7].tolist() == images_of(asked(client, unit))[0].tolist()
    changed = {size: np.abs(image - kept).max(axis=2) > 2 for size, image in images.items()}
    assert not (changed[1] & ~painted).any()
    assert changed[1].sum() < changed[4].sum() < changed[7].sum()
    said = [fields_of_reply(replies[size]).get("ControlNet inpaint blur") for size in (4, 7)]
    assert said == [4, None]
    reply = asked(client, unit, override_settings={"control_net_inpaint_blur_sigma": 0})
    assert reply.status_code == 422


def test_colors_are_corrected_before_what_is_kept(client: TestClient) -> None:
    """In whichever order the units stand."""
    kept = {**SILENT, "module": "inpaint_only", "image": file_text(INPUT), "mask": file_text(MASK)}
    tile = {**SILENT, "module": "tile_colorfix", "image": file_text(INPUT.with_name("ctl64b.png"))}
    found = [images_of(asked(client, *units))[0].tolist() for units in ((kept, tile), (tile, kept))]
    assert found[0] == found[1]


def test_in_a_job_with_a_mask_of_its_own_inpaint_only_keeps_nothing(client: TestClient) -> None:
    """Also where the unit has an image and a mask: it is the module without that."""
    payload = with_files(CASES["inpaint/img2img-inpaint_only"]["payload"]) | {"steps": 3, "mask_blur": 4}
    images = []
    for module in ("inpaint_only", "inpaint_global_harmonious"):
        unit = {**UNIT, "module": module, "image": file_text(INPUT), "mask": file_text(MASK)}
        scripts = {"ControlNet": {"args": [unit]}}
        reply = client.post("/sdapi/v1/img2img", json={**payload, "alwayson_scripts": scripts})
        images.append(images_of(reply)[0].tolist())
        assert parts_of(fields_of_reply(reply)["ControlNet 0"])["Module"] == module
    assert images[0] == images[1]


def test_inpaint_maps_are_enlarged_without_rounding() -> None:
    """Beside sharp edges cubic values lie beyond the range of 8 bits; only what callers see is cut off."""
    maps, modes = library("maps"), library("resize_mode").ResizeMode
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8, 4)).astype(np.uint8)
    pixels[:, :, :3] = np.arange(64).reshape(8, 8, 1) % 2 * 255 + np.array([0, 0, 0])
    pixels[0, :, :3] = np.random.default_rng(2).integers(0, 256, (8, 3))
    pixels = np.kron(pixels, np.ones((4, 4, 1), np.uint8))
    pixels[:16, :, :3] = np.random.default_rng(3).integers(0, 256, (16, 32, 3))
    large = maps.ControlMap(pixels, modes.CROP).fitted(64, 64)
    assert large.dtype == np.float32 and large.min() < -1 and large[:, :, :3].max() > 256
    assert set(np.unique(large[:, :, 3])) <= {0.0, 255.0}
    plain = maps.ControlMap(pixels[:, :, :3], modes.CROP).fitted(64, 64)
    assert plain.dtype == np.uint8
    apart = np.abs(large[:, :, :3].clip(0, 255) - plain)
    assert 0.2 < apart.max() <= 0.51
    assert np.asarray(maps.shown(large)).dtype == np.uint8
    same = maps.ControlMap(pixels, modes.CROP).fitted(32, 32)
    assert same[:, :, :3].tolist() == pixels[:, :, :3].astype(float).tolist()


def test_more_units_than_the_page_has_are_all_taken(client: TestClient) -> None:
    """Their outputs are added: five with a fifth of the weight each are one."""
    units = [{**UNIT, "image": file_text(INPUT), "weight": weight} for weight in (0.2,) * 5]
    reply = asked(client, *units)
    (one,) = images_of(asked(client, {**units[0], "weight": 1.0}))
    assert np.abs(images_of(reply)[0] - one).max() <= 1
    assert [key for key in fields_of_reply(reply) if key.startswith("ControlNet")] == [
        f"ControlNet {number}" for number in range(5)
    ]


@pytest.mark.parametrize("given", ["TINY_canny", "tiny_canny [7425000e]", "canny"])
def test_an_infotext_has_the_models_name_as_it_was_given(given: str, client: TestClient) -> None:
    reply = asked(client, {**UNIT, "model": given, "image": file_text(INPUT)})
    entry = str(fields_of_reply(reply)["ControlNet 0"])
    assert f"Model: {given.partition(' ')[0]} [7425000e], " in entry


def test_a_gray_image_has_edges(client: TestClient) -> None:
    """Of every module without weights: what it makes is what it makes of the same image in color."""
    gray = Image.open(INPUT).convert("L")
    images = [text_of(np.asarray(each)) for each in (gray, gray.convert("RGB"))]
    masks = [text_of(np.asarray(Image.open(MASK).convert("L")))]
    for name in library("preprocessors").MODULES:
        module = library("preprocessors").MODULES[name]
        if module.make is None or module.groups or module.detector or name == "shuffle":
            continue
        found = []
        for image in images:
            body = {"controlnet_module": name, "controlnet_input_images": [image]}
            reply = client.post(
                "/controlnet/detect", json={**body, "controlnet_masks": masks if "inpaint" in name else []}
            )
            found.append(images_of(reply)[0].tolist())
        assert found[0] == found[1], name


def test_a_batch_follows_each_image_with_the_same_seeds(client: TestClient) -> None:
    given = two_images()
    alone = [images_of(asked(client, {**UNIT, "image": image}, n_iter=2)) for image in given]
    for count, fields in ((2, {"batch_images": given}), (1, {"image": given}), (1, {"batch_input_gallery": given})):
        reply = asked(client, {**UNIT, "input_mode": "batch", **fields}, n_iter=count)
        wanted = [image.tolist() for images in alone for image in images[:count]]
        assert [image.tolist() for image in images_of(reply)] == wanted
        assert json.loads(reply.json()["info"])["all_seeds"] == [1234, 1235][:count] * 2
    both = asked(
        client,
        {**UNIT, "input_mode": 1, "batch_images": given},
        {**UNIT, "model": "tiny_diffusers", "image": given[0], "save_detected_map": True},
    )
    second = asked(client, {**UNIT, "image": given[1]}, {**UNIT, "model": "tiny_diffusers", "image": given[0]})
    assert images_of(both)[1].tolist() == images_of(second)[0].tolist() and len(both.json()["images"]) == 2


def test_merged_images_share_the_weight_of_their_unit(client: TestClient) -> None:
    given = two_images()
    reply = asked(client, {**UNIT, "input_mode": "InputMode.MERGE", "image": given, "weight": 1.5})
    wanted = asked(client, *({**UNIT, "image": image, "weight": 0.75} for image in given))
    assert images_of(reply)[0].tolist() == images_of(wanted)[0].tolist()
    found = fields_of(json.loads(reply.json()["info"])["infotexts"][0])
    assert [parts_of(str(found[f"ControlNet {number}"]))["Weight"] for number in (0, 1)] == [0.75, 0.75]
    adapter = {"module": "ip-adapter-auto", "model": "ip-adapter_sd15", "save_detected_map": False}
    listed = asked(client, {**adapter, "image": [{"image": image} for image in given]})
    merged = asked(client, {**adapter, "input_mode": "merge", "batch_images": given})
    assert images_of(merged)[0].tolist() == images_of(listed)[0].tolist()


def test_what_is_drawn_on_a_canvas_counts(client: TestClient) -> None:
    """The fields of Forge: a layer that is drawn over the image, and over the mask; a preview as the image."""
    image = text_of(np.asarray(Image.open(INPUT).convert("RGB")))
    drawn, nothing, black = canvas(4), canvas(4), text_of(canvas(3))
    drawn[8:40, 16:48, 3] = 255
    gray = text_of(np.ascontiguousarray(drawn[:, :, 3]))
    pairs: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"image": black, "image_fg": text_of(drawn)}, {"image": gray}),
        ({"image": image, "image_fg": text_of(drawn)}, {"image": image, "mask": gray}),
        ({"image": image, "image_fg": text_of(nothing), "mask_image_fg": text_of(nothing)}, {"image": image}),
        ({"image": image, "mask_image": black, "mask_image_fg": text_of(drawn)}, {"image": image, "mask": gray}),
        ({"image": image, "mask_image": {"image": gray, "mask": None}}, {"image": image, "mask": gray}),
        (
            {"module": "invert", "image": black, "generated_image": gray, "use_preview_as_input": True},
            {"module": "none", "image": gray},
        ),
    )
    for theirs, ours in pairs:
        found, wanted = (asked(client, {**UNIT, **unit, "save_detected_map": True}) for unit in (theirs, ours))
        assert [one.tolist() for one in images_of(found)] == [one.tolist() for one in images_of(wanted)]


def test_what_would_be_ignored_is_refused_by_name(client: TestClient) -> None:
    image = text_of(np.asarray(Image.open(INPUT).convert("RGB")))
    drawn = canvas(4) + 255
    half = text_of(canvas()[:, :32])
    adapter = {"module": "ip-adapter-auto", "model": "ip-adapter_sd15"}
    tensors = with_files(CASES["ip/input-tensor"]["payload"])["alwayson_scripts"]["ControlNet"]["args"][0]
    units: tuple[tuple[dict[str, Any], str], ...] = (
        ({"input_mode": "batch", "batch_images": "/pictures"}, "the files of a folder are not read"),
        ({"image": image, "batch_image_dir": "/pictures"}, "batch_image_dir is '/pictures'"),
        ({"image": image, "batch_images": [image]}, "Set input_mode to batch"),
        ({"input_mode": "batch"}, "there is no image"),
        ({"input_mode": "x", "image": image}, "it takes one of: simple, batch, merge"),
        ({"input_mode": "batch", "image": [image], "batch_mask_gallery": []}, ""),
        ({"input_mode": "batch", "image": [image], "batch_mask_gallery": [image, image]}, "a mask for each of the 1"),
        ({"image": [{"image": image}, {"image": image}]}, "image has 2 images, and none takes one"),
        ({"image": image, "loopback": True}, "loopback is 'True'"),
        ({"image": image, "output_dir": "/pictures"}, "images are saved where the settings say"),
        ({"image": image, "use_preview_as_input": True}, "use_preview_as_input needs the map"),
        ({"image_fg": text_of(drawn)}, "image_fg is drawn over image"),
        ({"image": image, "image_fg": image}, "an image with transparency"),
        ({"mask": image}, "a mask belongs to an image"),
        ({"ipadapter_input": tensors["ipadapter_input"]}, "what an IP-adapter sees of images"),
        ({**tensors, "image": image}, "both image and ipadapter_input"),
        ({"module": "reference_only", "image": image, "effective_region_mask": image}, "counts for control models"),
        ({"module": "reference_only", "image": image, "advanced_weighting": [1.0]}, "set weight instead"),
        ({"image": image, "advanced_weighting": [1.0] * 12}, "has 12 weights, and the model takes 13"),
        ({"image": image, "model": "tiny_t2i", "advanced_weighting": [1.0] * 3}, "the model takes 4"),
        ({**adapter, "image": image, "advanced_weighting": [1.0] * 15}, "the model takes 16"),
        ({**adapter, "image": image, "advanced_weighting": [1.0] * 17}, "the model takes 16"),
        ({"image": image, "input_image": image}, "both image and input_image"),
        ({"image": image, "guidance": 0.5, "guidance_end": 0.7}, "both guidance_end and guidance"),
        ({"image": image, "mask": half}, "the mask has 32x64 pixels, and the image 64x64"),
        ({"image": {"image": image, "mask": half}, "module": "inpaint_only"}, "Give both in the same size"),
    )
    for unit, said in units:
        reply = asked(client, {**UNIT, **unit})
        assert reply.status_code == (422 if said else 200) and said in reply.json().get("errors", ""), reply.text
    batch = {**UNIT, "input_mode": "batch", "image": two_images()}
    reply = asked(client, batch, script_name="prompt matrix", script_args=[])
    assert reply.status_code == 422 and "the script Prompt matrix makes images its own way" in reply.json()["errors"]
    payload = with_files(CASES["form/legacy-guidance"]["payload"])
    scripts = {"ControlNet": {"args": [batch]}, "Dynamic prompts": {"args": [True, True]}}
    reply = client.post(
        "/sdapi/v1/txt2img", json={**payload, "prompt": "a {red|blue|green} cat", "alwayson_scripts": scripts}
    )
    assert reply.status_code == 422 and "asks for 2 batches, and another script" in reply.json()["errors"]


def test_images_of_16_bits_are_not_cut_off(client: TestClient) -> None:
    """Depth is often saved so: the same map in 8 bits is the upper half of the bits."""
    levels = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    images = [text_of(levels), text_of((levels >> 8).astype(np.uint8))]
    replies = [
        client.post("/controlnet/detect", json={"controlnet_module": "invert", "controlnet_input_images": [image]})
        for image in images
    ]
    deep, plain = (images_of(reply)[0].tolist() for reply in replies)
    assert deep == plain and np.unique(deep).size == 256
    content = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.float32)).save(content, "TIFF")
    real = base64.b64encode(content.getvalue()).decode()
    reply = client.post("/controlnet/detect", json={"controlnet_module": "none", "controlnet_input_images": [real]})
    assert reply.status_code == 422 and "floating point" in reply.json()["errors"]


def test_masks_of_the_detect_route_count_as_those_of_a_unit(client: TestClient) -> None:
    image = np.asarray(Image.open(INPUT).convert("RGB"))
    mask = canvas()
    mask[:, :32] = 255
    body = {"controlnet_input_images": [text_of(image)], "controlnet_masks": [text_of(mask)]}
    painted = images_of(client.post("/controlnet/detect", json={**body, "controlnet_module": "inpaint_only"}))[0]
    assert painted[:, :, :3].tolist() == image.tolist()
    assert (painted[:, :32, 3] == 128).all() and (painted[:, 32:, 3] == 255).all()
    for masks in ([], body["controlnet_masks"] * 2):
        reply = client.post(
            "/controlnet/detect", json={**body, "controlnet_module": "inpaint_only", "controlnet_masks": masks}
        )
        assert reply.status_code == 422 and "inpaint_only needs them" in reply.json()["errors"]
    inverted = images_of(client.post("/controlnet/detect", json={**body, "controlnet_module": "invert"}))[0]
    assert inverted[:, :, 0].tolist() == (255 - mask).tolist(), "a module without masks works on the mask itself"


def test_a_module_with_weights_waits_in_line(client: TestClient) -> None:
    """It is a task of what computes images; where its file is missing, nothing is put in line."""
    image = base64.b64encode((CONTROL / "inputs" / "ctl128.png").read_bytes()).decode()
    body = {"controlnet_module": "softedge_pidinet", "controlnet_input_images": [image], "controlnet_processor_res": 64}

    def tasks() -> list[Any]:
        found = client.get("/featherweight/v1/tasks").json()
        return [task["title"] for task in found if task["type"] == "extension"]

    reply = client.post("/controlnet/detect", json=body)
    assert reply.status_code == 422 and "table5_pidinet.pth" in reply.json()["errors"] and tasks() == []
    folder = Path(client.get("/internal/sysinfo").json()["Data path"]) / "models" / "ControlNetPreprocessor"
    folder.mkdir()
    net = random_weights(library("detectors.soft_edges").PidiNet())
    torch.save(net.state_dict(), folder / "table5_pidinet.pth")
    reply = client.post("/controlnet/detect", json=body)
    assert reply.status_code == 200, reply.text
    made = Image.open(io.BytesIO(base64.b64decode(reply.json()["images"][0])))
    assert min(made.size) == 64 and reply.json()["info"] == "Success" and tasks() == ["ControlNet preprocessor"]
    torch.save({"other": torch.zeros(2)}, folder / "table5_pidinet.pth")
    reply = client.post("/controlnet/detect", json=body)
    assert 400 <= reply.status_code < 500 and "another network's file" in reply.json()["errors"]


BAD_POSES: tuple[Any, ...] = ([[]], [{"people": 5}], [{"people": [], "canvas_width": 0, "canvas_height": 8}])


@pytest.mark.parametrize("poses", BAD_POSES, ids=str)
def test_poses_that_are_none_are_a_sentence(client: TestClient, poses: Any) -> None:
    reply = client.post("/controlnet/render_openpose_json", json=poses)
    assert reply.status_code == 422 and "it takes" in reply.json()["errors"]


@pytest.mark.parametrize("file", sorted((CONTROL / "get").glob("*.json")), ids=lambda file: file.stem)
def test_a_list_is_as_recorded(file: Path, client: TestClient) -> None:
    route, _, query = file.stem.partition("__")
    reply = client.get(f"/controlnet/{route}?{query.replace('-', '=')}")
    assert reply.json() == json.loads(file.read_text(encoding="utf-8"))


def test_the_shipped_net_is_listed_last_where_it_is_asked_for(client: TestClient) -> None:
    """The page does so: it lies in the program's own folder, and not among the user's models."""
    listed, every = (client.get(f"/controlnet/model_list{end}").json()["model_list"] for end in ("", "?shipped=true"))
    assert every[:-1] == listed and every[-1].startswith("featherweight-scenes_canny [")


def test_models_are_listed_by_their_files_and_sorted_into_types(tmp_path: Path) -> None:
    names = (
        *("a.safetensors", "a-b.pth", "B.bin", "sub/control_v11p_sd15_canny.pth", "None.pt", "notes.txt"),
        *("sdxl-union-promax.safetensors", "my_sketch.pth", "t2iadapter_depth.pth", "hed_only.pth"),
    )
    for name in names:
        path = tmp_path / "ControlNet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    program: Any = SimpleNamespace(folders=lambda name: (tmp_path / name,))
    models = [model.name for model in library("files").list_models(program)]
    assert models == [
        *("B", "a-b", "a", "control_v11p_sd15_canny", "hed_only", "my_sketch", "sdxl-union-promax"),
        "t2iadapter_depth",
    ]
    type_of = library("routes").type_of
    own = {name: type_of(name, models)["model_list"][1:] for name in library("routes").TYPES[1:]}
    assert own["Canny"] == ["control_v11p_sd15_canny", "sdxl-union-promax"]
    assert own["Scribble"] == ["my_sketch", "sdxl-union-promax"] and own["SoftEdge"] == ["sdxl-union-promax"]
    assert own["Depth"] == ["sdxl-union-promax", "t2iadapter_depth"] and own["T2I-Adapter"] == ["t2iadapter_depth"]
    assert own["Reference"] == [] and own["IP-Adapter"] == []
    assert (
        type_of("Tile", ["a_tile", "control_v11f1e_tile [11]", "c_tile"])["default_model"] == "control_v11f1e_tile [11]"
    )
    assert type_of("Tile", ["a_tile [11]", "b_tile"])["default_model"] == "a_tile [11]"
