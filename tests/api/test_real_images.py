"""Through the API with the tiny model: recorded requests, and images made again from their own infotext."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from modules.api.app import build_api
from modules.assembly import build_services
from modules.flags.flags import Flags
from tests.processing.recorded import levels_apart
from tests.recordings import REFERENCE, TINY, cases

SMALL = {"prompt": "a cat", "steps": 3, "width": 64, "height": 64, "sampler_name": "Euler", "seed": 5}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    styles = str(REFERENCE / "models" / "styles.csv")
    flags = Flags(
        data_dir=str(tmp_path_factory.mktemp("data")),
        ckpt=str(TINY),
        no_half=True,
        use_cpu=("all",),
        styles_file=(styles,),
    )
    services = build_services(flags)
    services.dispatcher.start()
    with TestClient(build_api(services)) as client:
        yield client
    services.dispatcher.close()
    torch.set_num_threads(threads)


def make(client: TestClient, body: dict[str, Any]) -> tuple[list[Image.Image], list[str]]:
    reply = client.post("/sdapi/v1/txt2img", json=body)
    assert reply.status_code == 200, reply.text
    images: list[Image.Image] = [Image.open(io.BytesIO(base64.b64decode(text))) for text in reply.json()["images"]]
    return images, json.loads(reply.json()["info"])["infotexts"]


@pytest.mark.parametrize("name", ["styles/one", "infotext/only", "eta/0.5-ddim", "seed/batch2-sde", "hires/hr-sampler"])
def test_recorded_requests_give_the_recorded_images(client: TestClient, name: str) -> None:
    case = next(case for case in cases() if case["id"] == name)
    images, infotexts = make(client, case["payload"])
    for image, infotext, recorded, text in zip(
        images, infotexts, case["images"], case["info"]["infotexts"], strict=True
    ):
        apart = levels_apart(image, recorded["file"])
        assert apart.max() <= 8 and (apart <= 2).mean() >= 0.995
        assert infotext.rsplit(", Version", 1)[0] == text.rsplit(", Version", 1)[0]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sampler_name": "DPM++ 2M SDE", "scheduler": "Karras", "cfg_scale": 3.5},
        {"subseed": 8, "subseed_strength": 0.4, "negative_prompt": "blurry, (ugly:1.2)"},
        {"sampler_name": "Euler a", "eta": 0.4, "override_settings": {"eta_noise_seed_delta": 31337}},
        {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent (nearest)", "denoising_strength": 0.5},
        {"override_settings": {"CLIP_stop_at_last_layers": 2, "randn_source": "NV", "s_min_uncond": 2.0}},
        {"prompt": "a (red:1.3) cat", "override_settings": {"emphasis": "No norm"}, "tiling": True},
        {"sampler_name": "DPM2", "override_settings": {"s_churn": 5.0, "s_tmax": 20.0}},
        {"scheduler": "Polyexponential", "override_settings": {"sigma_min": 0.1, "sigma_max": 10.0, "rho": 2.0}},
        {"scheduler": "Beta", "override_settings": {"beta_dist_alpha": 0.7, "beta_dist_beta": 0.5}},
        {"sampler_name": "UniPC", "override_settings": {"uni_pc_order": 2, "uni_pc_variant": "bh2"}},
        {"seed_resize_from_w": 96, "seed_resize_from_h": 96},
        {"override_settings": {"sd_noise_schedule": "Zero Terminal SNR", "skip_early_cond": 0.4}},
    ],
    ids=lambda body: ",".join(body) or "plain",
)
def test_an_infotext_sent_back_reproduces_the_image(client: TestClient, body: dict[str, Any]) -> None:
    (first,), (infotext,) = make(client, {**SMALL, **body})
    (again,), (second,) = make(client, {"infotext": infotext})
    assert second == infotext
    assert again.tobytes() == first.tobytes()


def test_saved_images_lie_where_the_settings_say(client: TestClient) -> None:
    folder = Path(client.get("/sdapi/v1/cmd-flags").json()["data_dir"]) / "outputs" / "txt2img-images"
    before = set(folder.rglob("*.png"))
    images, infotexts = make(client, {**SMALL, "save_images": True})
    (path,) = set(folder.rglob("*.png")) - before
    assert path.name == f"{len(before):05}-5.png"
    with Image.open(path) as saved:
        assert saved.info["parameters"] == infotexts[0]
        assert saved.tobytes() == images[0].tobytes()


@pytest.mark.parametrize("saves", [False, True])
def test_a_grid_comes_only_with_saved_images(client: TestClient, saves: bool) -> None:
    """As in the reference UI: clients that save nothing show the first image of a batch, which must be no grid."""
    images, infotexts = make(client, {**SMALL, "batch_size": 2, "save_images": saves})
    assert [image.size for image in images] == [(128, 64), (64, 64), (64, 64)][0 if saves else 1 :]
    assert len(infotexts) == len(images)


def test_urls_of_images_lead_to_the_saved_files(client: TestClient) -> None:
    """Clients of dall-e read the URL without asking for it."""
    body = {"prompt": "a cat", "model": "dall-e-3", "n": 2, "size": "64x64", "steps": 1, "seed": 5}
    reply = client.post("/v1/images/generations", json=body)
    assert reply.status_code == 200, reply.text
    for number, one in enumerate(reply.json()["data"]):
        assert set(one) == {"url"} and one["url"].startswith(str(client.base_url))
        with Image.open(io.BytesIO(client.get(one["url"]).content)) as image:
            assert f"Seed: {5 + number}," in image.info["parameters"] and image.size == (64, 64)
