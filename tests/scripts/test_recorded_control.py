"""ControlNet: recorded requests of the reference UI, made here through the API, and the replies of its routes."""

import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from modules.api.app import build_api
from modules.api.extensions import add_extension_routes
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


INPUT = CONTROL / "inputs" / "ctl64.png"
UNIT = {"module": "none", "model": "tiny_canny", "save_detected_map": False}


def text_of(pixels: Any, mode: str | None = None) -> str:
    content = io.BytesIO()
    Image.fromarray(pixels, mode).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode()


def canvas(*shape: int) -> Any:
    return np.zeros((64, 64, *shape), np.uint8)


def two_images() -> list[str]:
    pixels = np.asarray(Image.open(INPUT).convert("RGB"))
    return [text_of(pixels), text_of(np.ascontiguousarray(pixels[::-1, :, ::-1]))]


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


def without_bundled(value: Any) -> Any:
    """A reply without the control net that is in the box, which comes last in every list."""
    if isinstance(value, dict):
        return {key: without_bundled(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    bundled = [item for item in value if isinstance(item, str) and item.startswith("featherweight-scenes_")]
    assert value[len(value) - len(bundled) :] == bundled
    return value[: len(value) - len(bundled)]


@pytest.mark.parametrize("file", sorted((CONTROL / "get").glob("*.json")), ids=lambda file: file.stem)
def test_a_list_is_as_recorded(file: Path, client: TestClient) -> None:
    route, _, query = file.stem.partition("__")
    reply = client.get(f"/controlnet/{route}?{query.replace('-', '=')}")
    assert without_bundled(reply.json()) == json.loads(file.read_text(encoding="utf-8"))
