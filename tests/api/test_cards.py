"""The routes of the cards: what they list, what they hand out, and what they refuse."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from modules.api.generation.requests import request_from
from modules.api.schema.schemas import Txt2ImgBody
from modules.processing.engine.adapter_files import EffectKept
from modules.processing.request.request import GenerationRequest
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.ui.form.form import form_values, pasted_fields
from modules.ui.routes.card_replies import CardListReply
from modules.ui.routes.card_routes import CARD_SETTINGS
from modules.ui.routes.routes import page_routes
from modules.ui.tabs.extra_networks import ordered_pages
from tests.fakes import fake_services, settings_kept, whole_api
from tests.model_cards.test_cards import adapter, image
from tests.recordings import TINY

ROUTE = "/internal/extra-networks"
ASSETS = Path(__file__).parents[2] / "modules" / "ui" / "assets"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    data = tmp_path_factory.mktemp("data")
    (data / "models" / "Stable-diffusion").mkdir(parents=True)
    shutil.copy(TINY, data / "models" / "Stable-diffusion" / "second.safetensors")
    services = fake_services(data)
    yield services
    services.dispatcher.close()


@pytest.fixture
def services(own: Services) -> Iterator[Services]:
    """The program of this file with two adapters and settings as in the beginning."""
    lora = own.paths.lora_dirs[0]
    adapter(lora / "styles" / "ink.safetensors", {"ss_output_name": "Ink", "ss_tag_frequency": '{"a": {"ink": 3}}'})
    image(lora / "styles" / "ink.png")
    adapter(lora / "plain.safetensors")
    with settings_kept(own):
        yield own
    shutil.rmtree(lora)


@pytest.fixture(scope="module")
def own_client(own: Services) -> Iterator[TestClient]:
    app = whole_api(own)
    app.include_router(page_routes(own))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(own_client: TestClient, services: Services) -> TestClient:
    return own_client


def cards(client: TestClient, page: str = "lora") -> dict[str, dict[str, Any]]:
    return {card["key"]: card for card in client.get(ROUTE, params={"page": page}).json()["cards"]}


INK = {"page": "lora", "key": "0/styles/ink.safetensors"}


def test_the_list_has_the_shape_that_is_described(client: TestClient) -> None:
    reply = client.get(ROUTE, params={"page": "lora"}).json()
    assert CardListReply.model_validate(reply).model_dump() == reply
    assert set(reply["settings"]) == set(CARD_SETTINGS)
    assert client.get(f"{ROUTE}/details", params=INK).json()["versions"] == ["Unknown", "SD1", "SD2", "SDXL"]


def test_a_list_that_is_the_same_is_not_sent_again(client: TestClient, services: Services) -> None:
    first = client.get(ROUTE, params={"page": "lora"})
    tag = first.headers["etag"]
    again = client.get(ROUTE, params={"page": "lora"}, headers={"If-None-Match": f'"other", W/{tag}'})
    assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == tag
    adapter(services.paths.lora_dirs[0] / "new.safetensors")
    assert client.get(ROUTE, params={"page": "lora"}, headers={"If-None-Match": tag}).status_code == 200
    services.settings.update({"extra_networks_default_multiplier": 0.5})
    assert cards(client)["0/plain.safetensors"]["prompt"] == "<lora:plain:0.5>"


def test_a_preview_is_sent_once(client: TestClient, services: Services) -> None:
    reply = client.get(f"{ROUTE}/preview", params=INK)
    assert reply.headers["content-type"] == "image/png" and reply.headers["x-content-type-options"] == "nosniff"
    assert reply.content == (services.paths.lora_dirs[0] / "styles" / "ink.png").read_bytes()
    tag = {"If-None-Match": reply.headers["etag"]}
    assert client.get(f"{ROUTE}/preview", params=INK, headers=tag).status_code == 304


@pytest.mark.parametrize("key", ["../config.json", "0/../../config.json", "/etc/passwd", "0/styles/ink.png", "", "0"])
def test_no_path_can_be_asked_for(key: str, client: TestClient) -> None:
    for route in ("preview", "details"):
        reply = client.get(f"{ROUTE}/{route}", params={"page": "lora", "key": key})
        assert reply.status_code == 404 and "Refresh the cards" in reply.json()["errors"]
    body = {"page": "lora", "key": key, "changes": {"notes": "x"}}
    assert client.post(f"{ROUTE}/notes", json=body).status_code == 404


def test_a_link_out_of_the_folders_is_no_preview(client: TestClient, services: Services, tmp_path: Path) -> None:
    secret = image(tmp_path / "private" / "secret.png")
    (services.paths.lora_dirs[0] / "plain.png").symlink_to(secret)
    assert cards(client)["0/plain.safetensors"]["stamp"] == "0"
    reply = client.get(f"{ROUTE}/preview", params={"page": "lora", "key": "0/plain.safetensors"})
    assert reply.status_code == 404


def test_a_preview_that_became_a_link_is_refused(client: TestClient, services: Services, tmp_path: Path) -> None:
    cards(client)
    file = services.paths.lora_dirs[0] / "styles" / "ink.png"
    file.unlink()
    file.symlink_to(image(tmp_path / "private" / "secret.png"))
    assert client.get(f"{ROUTE}/preview", params=INK).status_code == 404


def test_a_page_that_is_not_there(client: TestClient) -> None:
    reply = client.get(ROUTE, params={"page": "styles"})
    assert reply.status_code == 404 and "Known: textual_inversion, hypernetworks" in reply.json()["errors"]
    assert client.get(ROUTE).status_code == 422


def test_details_hold_what_the_file_says(client: TestClient) -> None:
    details = client.get(f"{ROUTE}/details", params=INK).json()
    assert details["tags"] == [["ink", 3]] and details["metadata"]["ss_tag_frequency"] == {"a": {"ink": 3}}
    assert details["facts"]["Output name"] == "Ink" and len(details["facts"]["Hash"]) == 12
    for page in ("checkpoints", "textual_inversion", "hypernetworks"):
        for key in cards(client, page):
            reply = client.get(f"{ROUTE}/details", params={"page": page, "key": key})
            assert reply.status_code == 200 and Path(reply.json()["path"]).is_file()


def test_notes_are_kept_beside_the_file(client: TestClient, services: Services) -> None:
    changes = {"activation text": "inked", "preferred weight": 0.6, "description": "<b>bold</b>"}
    card = client.post(f"{ROUTE}/notes", json={**INK, "changes": changes}).json()
    assert card["prompt"] == "<lora:Ink:0.6>" and card["activation"] == "inked"
    file = services.paths.lora_dirs[0] / "styles" / "ink.json"
    assert json.loads(file.read_text(encoding="utf-8")) == changes
    assert cards(client)[INK["key"]] == card


@pytest.mark.parametrize("changes", [{"unknown": 1}, {"preferred weight": 9}, {"notes": []}])
def test_notes_that_cannot_be(changes: dict[str, Any], client: TestClient) -> None:
    reply = client.post(f"{ROUTE}/notes", json={**INK, "changes": changes})
    assert reply.status_code == 422 and reply.json()["errors"].endswith(".")


def test_an_image_becomes_the_preview(client: TestClient, services: Services) -> None:
    request = GenerationRequest(prompt="ink", width=64, height=64, steps=1, sampler="Euler", seed=3)
    services.queue.submit(request, task_id="task(preview)")
    assert services.queue.known.get("task(preview)").wait(120)
    before = cards(client)[INK["key"]]
    card = client.post(f"{ROUTE}/preview", json={**INK, "id_task": "task(preview)", "index": 0}).json()
    assert card["stamp"] != before["stamp"]
    file = services.paths.lora_dirs[0] / "styles" / "ink.preview.png"
    with Image.open(file) as image:
        assert image.info["parameters"].startswith("ink\nSteps: 1")
    assert client.get(f"{ROUTE}/preview", params=INK).content == file.read_bytes()
    for body in ({"id_task": "task(none)"}, {"id_task": "task(preview)", "index": 4}):
        assert client.post(f"{ROUTE}/preview", json={**INK, **body}).status_code == 404


def test_a_checkpoint_is_chosen(client: TestClient, services: Services) -> None:
    key = next(key for key in cards(client, "checkpoints") if key.endswith("second.safetensors"))
    reply = client.post(f"{ROUTE}/checkpoint", json={"page": "checkpoints", "key": key})
    assert reply.json()["title"].startswith("second.safetensors")
    assert services.settings.current.stable_diffusion.sd_model_checkpoint.startswith("second.safetensors")
    assert client.post(f"{ROUTE}/checkpoint", json=INK).status_code == 404


def test_loras_say_how_much_of_them_arrived(client: TestClient, services: Services) -> None:
    adapters = services.engine.adapters.files
    ink = next(info for info in adapters.catalogue.entries if info.name == "ink")
    adapters.effect_kept[ink.path] = EffectKept(0.998, "merge into fp8", 0.02, (("mid.to_q", 0.9),))
    found = {item["name"]: item["retention"] for item in client.get("/sdapi/v1/loras").json()}
    said = {"retention": 0.998, "mode": "merge into fp8", "noise": 0.02, "worst": [["mid.to_q", 0.9]]}
    assert found == {"ink": said, "plain": None, "balloon": None, "blueprint": None}  # two are bundled


def test_a_renamed_lora_of_an_infotext_is_found_by_its_hash(services: Services) -> None:
    catalogue = services.engine.adapters.files.catalogue
    ink = next(info for info in catalogue.entries if info.name == "ink")
    digest = catalogue.digests(ink).tensors[:12]
    text = f"a cat <lora:quill:0.5>\nSteps: 2, Sampler: Euler, Seed: 1, Size: 64x64, Lora hashes: quill: {digest}"
    body = Txt2ImgBody.model_validate({"infotext": text})
    assert request_from(body, services).prompt == "a cat <lora:ink:0.5>"
    assert form_values(pasted_fields(text, services), services)["prompt"] == "a cat <lora:ink:0.5>"


def test_the_order_of_the_tabs(services: Services) -> None:
    settings = services.settings.current
    pages = services.cards.pages.values()
    ids = [page.id for page in ordered_pages(pages, settings)]
    assert ids == ["textual_inversion", "hypernetworks", "checkpoints", "lora"]
    moved = settings.changed(ui_extra_networks_tab_reorder="Lora, checkpoints, unknown")
    ids = [page.id for page in ordered_pages(pages, moved)]
    assert ids == ["lora", "checkpoints", "textual_inversion", "hypernetworks"]


def test_which_cards_are_for_other_models_is_the_pages_to_say(client: TestClient, services: Services) -> None:
    def others(page: str = "lora") -> dict[str, Any]:
        found: dict[str, Any] = client.get(ROUTE, params={"page": page}).json()["others"]
        return found

    assert others() == {"hides": True, "without_unknown": []}
    assert others("hypernetworks") == {"hides": False, "without_unknown": []}
    services.settings.update({"lora_hide_unknown_for_versions": ["SD2"]})
    assert others() == {"hides": True, "without_unknown": ["SD2"]}
    services.settings.update({"lora_show_all": True})
    assert not others()["hides"]


@pytest.mark.parametrize("key", CARD_SETTINGS)
def test_the_script_reads_every_setting_of_the_cards(key: str) -> None:
    assert any(key in file.read_text(encoding="utf-8") for file in ASSETS.glob("card*.js"))
    assert not SETTINGS.get(key).hidden
