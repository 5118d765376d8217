"""The history over HTTP: what Generate made is found, marked, deleted, compared and made again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from modules.services import Services
from tests.fakes import fake_services, whole_api
from tests.history.test_history import png

ROUTE = "/featherweight/v1/history"
INFOTEXT = "a {}\nSteps: 5, Sampler: Euler, CFG scale: 7.0, Seed: {}, Size: 64x64, Model: tiny"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    services = replace(services, history_folders=(services.paths.data_dir,))
    yield services
    services.dispatcher.close()
    services.history.close()


@pytest.fixture(scope="module")
def client(services: Services) -> Iterator[TestClient]:
    with TestClient(whole_api(services), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def folder(services: Services) -> Path:
    folder = services.paths.data_dir / "old"
    for number, name in enumerate(("dot", "line", "cat")):
        png(folder / f"{number}.png", (number * 40, 0, 0), INFOTEXT.format(name, number))
    return folder


@pytest.fixture(scope="module")
def ids(client: TestClient, services: Services, folder: Path) -> list[int]:
    imported = client.post(f"{ROUTE}/import", json={"folder": str(folder)})
    assert imported.status_code == 200
    assert services.history.importer.wait(120)
    (state,) = client.get(f"{ROUTE}/imports").json()
    assert (state["state"], state["counts"]["added"]) == ("done", 3)
    return sorted((item["id"] for item in found(client)), reverse=True)


def found(client: TestClient, text: str = "", **parameters: Any) -> list[dict[str, Any]]:
    reply = client.get(ROUTE, params={"q": text, **parameters})
    assert reply.status_code == 200, reply.text
    images: list[dict[str, Any]] = reply.json()["images"]
    return images


def test_images_are_searched_and_paged(client: TestClient, ids: list[int]) -> None:
    assert [item["name"] for item in found(client, "cat seed:2")] == ["2.png"]
    assert client.get(ROUTE, params={"limit": 2}).json()["more"] is True
    assert len(found(client, before=ids[1], limit=2)) == 1
    assert client.get(f"{ROUTE}/count", params={"q": "model:tiny"}).json() == 3
    assert client.get(f"{ROUTE}/values", params={"key": "sampler"}).json() == ["Euler"]
    assert client.get(ROUTE, params={"q": "date:never"}).status_code == 422


def test_thumbnails_and_files_are_sent(client: TestClient, ids: list[int], folder: Path) -> None:
    small = client.get(f"{ROUTE}/thumbnail", params={"id": ids[0]})
    assert small.headers["content-type"] == "image/jpeg" and small.content.startswith(b"\xff\xd8")
    name = client.get(f"{ROUTE}/one", params={"id": ids[0]}).json()["name"]
    assert client.get(f"{ROUTE}/image", params={"id": ids[0]}).content == (folder / name).read_bytes()
    assert client.get(f"{ROUTE}/image", params={"id": 7}).status_code == 404


def test_images_are_starred_tagged_deleted_and_restored(client: TestClient, ids: list[int]) -> None:
    client.post(f"{ROUTE}/star", json={"ids": ids[:2]})
    client.post(f"{ROUTE}/tags", json={"ids": ids[:1], "tags": ["night"]})
    assert [item["id"] for item in found(client, "is:starred")] == ids[:2]
    assert [item["tags"] for item in found(client, "tag:night")] == [["night"]]
    client.post(f"{ROUTE}/star", json={"ids": ids[:2], "starred": False})
    (gone,) = client.post(f"{ROUTE}/delete", json={"ids": ids[:1]}).json()
    assert "trash" in gone["path"] and len(found(client)) == 2
    assert client.post(f"{ROUTE}/restore", json={"ids": ids[:1]}).json()[0]["trashed"] is False
    assert len(found(client)) == 3
    assert client.post(f"{ROUTE}/star", json={"ids": [5]}).status_code == 404
    shown = client.post(f"{ROUTE}/show", json={"id": ids[0]}).json()
    assert shown["folder"].endswith("old") and shown["opened"] is False


def test_two_images_are_compared(client: TestClient, ids: list[int]) -> None:
    numbers = client.get(f"{ROUTE}/compare", params={"first": ids[0], "second": ids[1]}).json()
    assert numbers["largest_level"] == 40 and 20 < numbers["psnr_db"] < 22
    assert client.get(f"{ROUTE}/compare", params={"first": ids[0], "second": ids[0]}).json()["psnr_db"] is None
    image = client.get(f"{ROUTE}/difference", params={"first": ids[0], "second": ids[1]})
    assert image.headers["content-type"] == "image/png"


def test_an_image_is_made_again_in_another_precision(client: TestClient, ids: list[int], services: Services) -> None:
    (item,) = found(client, "cat")
    task_id = client.post(f"{ROUTE}/again", json={"id": item["id"], "precision": "int8_row"}).json()["task_id"]
    request = services.queue.known.get(task_id).request
    optimizations = request.settings.optimizations
    assert (optimizations.fp8_storage, optimizations.fp8_format) == ("Enable", "int8_row")
    assert (request.seed, request.steps, request.prompt, request.size_px) == (2, 5, "a cat", (64, 64))
    assert services.settings.current.optimizations.fp8_storage == "Disable"
    in_blocks = client.post(f"{ROUTE}/again", json={"id": item["id"], "precision": "code4"})
    assert in_blocks.status_code == 200, in_blocks.text
    refused = client.post(f"{ROUTE}/again", json={"id": item["id"], "precision": "fp9"})
    assert refused.status_code == 404 and "fp16" in refused.json()["errors"]


def test_folders_outside_of_the_allowed_ones_are_not_imported(client: TestClient) -> None:
    assert client.post(f"{ROUTE}/import", json={"folder": "/etc"}).status_code == 422
    assert client.post(f"{ROUTE}/stop-import").status_code == 200


def test_a_file_that_is_gone_is_said_and_found_again_elsewhere(
    client: TestClient, ids: list[int], folder: Path, services: Services
) -> None:
    (item,) = found(client, "line")
    path = Path(item["path"])
    path.rename(folder / "moved.png")
    missing = client.get(f"{ROUTE}/image", params={"id": item["id"]})
    assert missing.status_code == 404 and "no longer" in missing.json()["errors"]
    assert [entry["id"] for entry in found(client, "is:missing")] == [item["id"]]
    client.post(f"{ROUTE}/import", json={"folder": str(folder)})
    assert services.history.importer.wait(120)
    assert Path(found(client, "line")[0]["path"]).name == "moved.png" and found(client, "is:missing") == []


def test_boards_are_made_filled_and_removed(client: TestClient, ids: list[int]) -> None:
    made = client.post(f"{ROUTE}/boards", json={"name": "Portraits"}).json()
    assert client.post(f"{ROUTE}/boards", json={"name": "portraits"}).status_code == 422
    put = client.post(f"{ROUTE}/boards/put", json={"ids": ids[:1], "board": made["id"]}).json()
    assert [(item["id"], item["board"]) for item in put] == [(ids[0], made["id"])]
    (board,) = client.get(f"{ROUTE}/boards").json()
    assert (board["images"], board["newest"]) == (1, ids[0])
    assert [item["id"] for item in found(client, board=made["id"])] == ids[:1]
    assert ids[0] not in {item["id"] for item in found(client, board=0)}
    assert client.get(f"{ROUTE}/count", params={"board": made["id"]}).json() == 1
    assert client.post(f"{ROUTE}/boards/rename", json={"id": made["id"], "name": "Faces"}).json()["name"] == "Faces"
    client.post(f"{ROUTE}/delete", json={"ids": ids[:1]})
    assert client.get(f"{ROUTE}/boards").json()[0]["images"] == 0
    client.post(f"{ROUTE}/restore", json={"ids": ids[:1]})
    assert client.get(f"{ROUTE}/boards").json()[0]["images"] == 1
    assert client.post(f"{ROUTE}/boards/put", json={"ids": [7], "board": made["id"]}).status_code == 404
    assert client.post(f"{ROUTE}/boards/put", json={"ids": ids[:1], "board": 99}).status_code == 404
    assert client.post(f"{ROUTE}/boards/remove", json={"id": made["id"]}).json() == []
    assert client.get(f"{ROUTE}/one", params={"id": ids[0]}).json()["board"] is None


def test_an_image_is_made_again_with_other_parameters(client: TestClient, ids: list[int], services: Services) -> None:
    items = {one["name"]: one for one in client.get(f"{ROUTE}/parameters", params={"id": ids[0]}).json()}
    assert (items["steps"]["value"], items["steps"]["type"], items["steps"]["maximum"]) == (5, "number", 1000)
    assert items["sampler_name"]["value"] == "Euler" and ["DPM++ 2M"] * 2 in items["sampler_name"]["choices"]
    assert items["CLIP_stop_at_last_layers"]["group"] == "Settings" and "styles" not in items
    changes = [{"steps": 7}, {"sampler_name": "DPM++ 2M", "override_settings": {"CLIP_stop_at_last_layers": 2}}]
    services.queue.pause()
    try:
        reply = client.post(f"{ROUTE}/again-with", json={"id": ids[0], "changes": changes})
        jobs = [services.queue.known.find(task_id) for task_id in reply.json()["task_ids"]]
        first, second = (job.request for job in jobs if job is not None)
        assert (first.steps, first.sampler, first.seed) == (7, "Euler", 2)
        assert (second.steps, second.sampler) == (5, "DPM++ 2M")
        assert second.settings.stable_diffusion.CLIP_stop_at_last_layers == 2
        refused = [{"steps": 7}, {"steps": 0}]
        assert client.post(f"{ROUTE}/again-with", json={"id": ids[0], "changes": refused}).status_code == 422
        assert services.queue.waiting_count() == 2
        for wrong in (
            [],
            [{"nosuch": 1}],
            [{"steps": "many"}],
            [{"override_settings": 3}],
            [{"override_settings": {"x": 1}}],
        ):
            reply = client.post(f"{ROUTE}/again-with", json={"id": ids[0], "changes": wrong})
            assert reply.status_code in (404, 422) and reply.json()["errors"]
    finally:
        services.queue.clear()
        services.queue.pause(False)


def test_what_differs_between_two_images(client: TestClient, ids: list[int]) -> None:
    reply = client.get(f"{ROUTE}/differing", params={"first": ids[0], "second": ids[1]}).json()
    assert [(one["key"], one["first"], one["second"]) for one in reply] == [
        ("Prompt", "a cat", "a line"),
        ("Seed", "2", "1"),
    ]
