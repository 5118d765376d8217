"""POST /sdapi/v1/plan, and the same on the command line."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from modules.cli import plan as cli
from modules.services import Services
from tests.recordings import TINY

BODY = {"prompt": "a cat", "width": 64, "height": 64}


def test_a_body_and_its_plan(client: TestClient, services: Services) -> None:
    reply = client.post("/sdapi/v1/plan", json=BODY)
    assert reply.status_code == 200
    plan = reply.json()
    assert plan["fits"] and plan["proposals"] == [] and plan["device"] == "CPU"
    digits = 0 if plan["available"] >= 10e9 else 1
    assert plan["needs"] == max(stage["needs"] for stage in plan["stages"])
    assert plan["line"] == f"needs {plan['needs'] / 1e9:.1f} of {plan['available'] / 1e9:.{digits}f} GB"
    assert services.queue.pending() == ()


def test_what_would_make_it_fit(client: TestClient) -> None:
    free = client.post("/sdapi/v1/plan", json=BODY).json()
    little = free["needs"] / 1e9 - 0.001
    plan = client.post("/sdapi/v1/plan", params={"available_gb": little}, json=BODY).json()
    assert not plan["fits"] and plan["proposals"]
    first = plan["proposals"][0]
    assert first["settings"] or first["fields"]
    changed = {**BODY, **first["fields"], "override_settings": first["settings"]}
    again = client.post("/sdapi/v1/plan", params={"available_gb": little}, json=changed).json()
    assert again["needs"] == first["needs"] and again["fits"] == first["fits"]


def test_where_nothing_would_make_it_fit_it_says_why(client: TestClient) -> None:
    plan = client.post("/sdapi/v1/plan", params={"available_gb": 0.001}, json=BODY).json()
    assert plan["proposals"] == [] and not plan["fits"]
    assert "no smaller size or saving setting was found" in plan["nothing_fits"]


@pytest.mark.parametrize(
    ("body", "query", "status", "said"),
    [
        ({"width": 9}, {}, 422, "width is 9"),
        ({"override_settings": {"sd_model_checkpoint": "gone"}}, {}, 404, "gone"),
        (BODY, {"available_gb": 0}, 422, "available_gb"),
        (BODY, {"available_gb": "much"}, 422, "available_gb"),
        (BODY, {"available_gb": "inf"}, 422, "available_gb"),
        (BODY, {"available_gb": "nan"}, 422, "available_gb"),
        ({"sampler_name": "none such"}, {}, 404, "none such"),
    ],
)
def test_bad_input_is_a_sentence(
    body: dict[str, object], query: dict[str, str | float], status: int, said: str, client: TestClient
) -> None:
    reply = client.post("/sdapi/v1/plan", params=query, json=body)
    assert reply.status_code == status and said in reply.json()["errors"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--use-cpu", "all", "--data-dir", str(tmp_path), "--ckpt", str(TINY), "--no-hashing"]
    assert cli.main([*common, "--width", "64", "--height", "64"]) == 0
    shown = capsys.readouterr().out
    assert "needs" in shown and "denoise" in shown and "An estimate" in shown
    assert "per step" in shown and "for 20 steps at 64x64" in shown
    assert cli.main([*common, "--width", "64", "--height", "64", "--available-gb", "0.1", "--json"]) == 2
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] is False and plan["time"] is None
    assert cli.main([*common, "--width", "9"]) == 1
    for wrong in ("nan", "inf", "-1"):
        assert cli.main([*common, "--available-gb", wrong]) == 1
    assert cli.main([*common, "--vram", "4", "--width", "64", "--height", "64", "--set", "compute_dtype=fp32"]) == 0
    assert "a GPU with 4 GB: needs" in capsys.readouterr().out
    assert cli.main([*common, "--vram", "0.55"]) == 2
    assert "It does not fit" in capsys.readouterr().out
    for wrong in ("nan", "0"):
        assert cli.main([*common, "--vram", wrong]) == 1
    assert cli.main([*common, "--always", 'ControlNet={"model": "x"}']) == 1
    assert "write TITLE=JSON with a list" in capsys.readouterr().err
    assert cli.main([*common, "--always", 'ControlNet=[{"model": "no such"}]', "--vram", "4"]) == 0
    assert cli.main([*common, "--set", "vae_tile_size"]) == 1
    assert "write KEY=VALUE" in capsys.readouterr().err
