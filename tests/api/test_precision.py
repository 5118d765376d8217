"""Reports, comparisons and conversions over HTTP: tasks, what they leave behind, and what is refused."""

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest
from fastapi.testclient import TestClient
from safetensors import safe_open

from modules.services import Services
from tests.recordings import TINY

BASE = "/featherweight/v1"


def outcome_of(client: TestClient, services: Services, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = client.post(f"{BASE}/{path}", json=body)
    assert reply.status_code == 200, reply.text
    task = services.queue.known.task(reply.json()["id"])
    assert task.wait(120)
    state: dict[str, Any] = client.get(f"{BASE}/tasks/{task.task_id}").json()
    assert state["status"] == "done", state["error"]
    outcome: dict[str, Any] = state["outcome"]
    return outcome


def test_a_report_says_bytes_and_errors(client: TestClient, services: Services) -> None:
    outcome = outcome_of(client, services, "precision-report", {"skip": ["^conv_out$"]})
    assert outcome["bytes_stored"] < 0.8 * outcome["bytes_16"]
    assert 0.01 < outcome["mean_error"] < 0.04
    assert {part["component"] for part in outcome["components"]} == {"unet", "vae", "text_encoder"}
    assert outcome["worst"][0]["error"] >= outcome["worst"][-1]["error"]
    every = json.loads(client.get(f"{BASE}/reports/{outcome['json']}").text)
    assert len(every["tensors"]) == sum(part["stored"] + part["stays"] for part in outcome["components"])


def test_a_conversion_appears_among_the_checkpoints(client: TestClient, services: Services) -> None:
    body = {"checkpoint": TINY.name, "format": "int8_row", "name": "small one"}
    outcome = outcome_of(client, services, "convert", body)
    assert outcome["file"] == "small one.safetensors"
    path = services.paths.checkpoint_dirs[0] / outcome["file"]
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["featherweight"])["storage"] == "int8_row"
    assert "small one" in {model["model_name"] for model in client.get("/sdapi/v1/sd-models").json()}
    again = client.post(f"{BASE}/convert", json=body)
    assert again.status_code == 422 and "is there already" in again.json()["errors"]


def test_a_report_and_a_file_within_a_budget(client: TestClient, services: Services) -> None:
    whole = outcome_of(client, services, "precision-report", {"format": "code4"})
    budget = (whole["bytes_16"] + whole["bytes_stored"]) / 2e9
    outcome = outcome_of(client, services, "precision-report", {"budget_gb": budget})
    assert whole["bytes_stored"] < outcome["bytes_stored"] <= budget * 1e9
    assert "sum of the squared relative errors" in outcome["notices"][0]
    assert outcome["storage"].startswith("mixed formats within 0.0")
    body = {"checkpoint": TINY.name, "format": "gguf_q8_0", "name": "small.gguf"}
    saved = outcome_of(client, services, "convert", body)
    assert (services.paths.checkpoint_dirs[0] / saved["file"]).read_bytes()[:4] == b"GGUF"
    assert "small" in {model["model_name"] for model in client.get("/sdapi/v1/sd-models").json()}
    for wrong in ({"budget_gb": -1}, {"budget_gb": 2000}):
        reply = client.post(f"{BASE}/precision-report", json=wrong)
        assert reply.status_code == 422 and "A budget is 0 to 1024 GB" in reply.json()["errors"]
    assert client.post(f"{BASE}/convert", json={**body, "name": "x", "layout": "zip"}).status_code == 404


def test_a_comparison_leaves_a_page_and_numbers(client: TestClient, services: Services) -> None:
    body = {"prompts": ["a <b>red</b> cat"], "formats": ["16 bit", "int8_row"], "steps": 2, "width": 64, "height": 64}
    outcome = outcome_of(client, services, "precision-comparison", {**body, "seed": 3})
    assert "int8 row comes closest to" in outcome["verdict"]
    assert outcome["formats"][1]["psnr_db"][0] > 20
    page = client.get(f"{BASE}/reports/{outcome['page']}")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    digest = sha256(page.text.split("<script>")[1].split("</script>")[0].encode()).digest()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{b64encode(digest).decode()}'" in policy
    assert "a &lt;b&gt;red&lt;/b&gt; cat" in page.text and "seed 3" in page.text
    names = [entry["name"] for entry in client.get(f"{BASE}/reports").json()]
    assert {outcome["page"], outcome["json"]} <= set(names)


def test_a_stored_checkpoint_that_is_gone_gives_way_to_the_first(client: TestClient, services: Services) -> None:
    before = services.settings.current.stable_diffusion.sd_model_checkpoint
    services.settings.update({"sd_model_checkpoint": "gone.safetensors"})
    try:
        assert outcome_of(client, services, "precision-report", {})["bytes_stored"] > 0
        body = {"prompts": ["a cat"], "formats": ["16 bit", "int8_row"], "steps": 1, "width": 64, "height": 64}
        assert len(outcome_of(client, services, "precision-comparison", body)["formats"]) == 2
    finally:
        services.settings.update({"sd_model_checkpoint": before})


def test_a_cancelled_conversion_leaves_nothing(client: TestClient, services: Services) -> None:
    blocker = client.post(f"{BASE}/precision-report", json={}).json()["id"]
    started = client.post(f"{BASE}/convert", json={"format": "fp16", "name": "never"}).json()
    assert client.post(f"{BASE}/tasks/{started['id']}/cancel").status_code == 200
    task = services.queue.known.task(started["id"])
    assert task.wait(60) and services.queue.known.task(blocker).wait(60)
    assert client.get(f"{BASE}/tasks/{started['id']}").json()["status"] == "interrupted"
    assert not list(services.paths.checkpoint_dirs[0].glob("*never*"))


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("precision-report", {"format": "fp7"}, 404, "Unknown storage format 'fp7'"),
        ("precision-report", {"format": "fp16"}, 404, "Known: fp8_e4m3fn_row"),
        ("precision-report", {"checkpoint": "gone"}, 404, "Unknown checkpoint 'gone'"),
        ("precision-report", {"skip": ["("]}, 422, "is no regular expression"),
        ("convert", {"name": "../up"}, 422, "is no name for a checkpoint"),
        ("convert", {"name": ""}, 422, "is no name for a checkpoint"),
        ("convert", {}, 422, "name"),
        ("precision-comparison", {"prompts": []}, 422, "1 to 16 prompts"),
        ("precision-comparison", {"prompts": ["a"], "formats": ["16 bit"]}, 422, "two or more different formats"),
        ("precision-comparison", {"prompts": ["a"], "formats": ["16 bit", "fp7"]}, 404, "'fp7'"),
        ("precision-comparison", {"prompts": ["a"], "sampler_name": "Oiler"}, 404, "Did you mean 'Euler'"),
        ("precision-comparison", {"prompts": ["a"], "steps": 0}, 422, "steps is 0"),
        ("precision-comparison", {"prompts": ["a\0"]}, 422, "null character"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    client: TestClient, path: str, body: dict[str, Any], status: int, sentence: str
) -> None:
    reply = client.post(f"{BASE}/{path}", json=body)
    assert reply.status_code == status
    assert sentence in reply.json()["errors"]


@pytest.mark.parametrize("name", ["..%2F..%2Fconfig.json", "secret.txt", ".hidden.html", "%2e%2e"])
def test_only_reports_can_be_read(client: TestClient, services: Services, name: str) -> None:
    assert client.get(f"{BASE}/reports/{name}").status_code in (404, 422)


def test_a_report_that_is_not_there(client: TestClient) -> None:
    reply = client.get(f"{BASE}/reports/gone.html")
    assert reply.status_code == 404 and "There is no report 'gone.html'" in reply.json()["errors"]
    assert client.get(f"{BASE}/tasks/gone").status_code == 404
    assert "There is no /featherweight/v1/nothing" in client.get(f"{BASE}/nothing").json()["errors"]
