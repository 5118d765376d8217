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


def test_a_folder_as_input_is_refused_with_what_to_do_instead(client: TestClient) -> None:
    payload = with_files(CASES["form/legacy-guidance"]["payload"])
    for mode, said in (
        ("batch", "Send a request for each"),
        ("InputMode.MERGE", "in image, as a list"),
        ("x", "simple"),
    ):
        unit = {"module": "canny", "model": "None", "input_mode": mode, "batch_images": "/pictures"}
        reply = client.post("/sdapi/v1/txt2img", json={**payload, "alwayson_scripts": {"ControlNet": {"args": [unit]}}})
        assert reply.status_code == 422 and said in reply.json()["errors"], reply.text


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
