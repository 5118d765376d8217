"""A server that other machines reach needs something that keeps strangers out, or a word that it is meant so."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from modules.access import access_of, check_protected, is_loopback
from modules.api.app import build_api
from modules.errors import InvalidValueError, OutputError
from modules.flags.flags import parse_flags
from modules.images.saving import check_folder
from tests.fakes import fake_services


@pytest.mark.parametrize(
    "words", ["--listen", "--server-name 192.168.1.5", "--server-name ::", "--listen --api-auth a:b"]
)
def test_an_open_server_is_refused_and_told_the_ways_on(words: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        check_protected(parse_flags(words.split()))
    assert all(way in str(error.value) for way in ("--gradio-auth", "--access-token", "--i-know-this-is-open"))


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--server-name localhost",
        "--server-name ::1",
        "--listen --gradio-auth a:b",
        "--listen --nowebui --api-auth a:b",
        "--listen --access-token",
        "--listen --access-token secret",
        "--listen --i-know-this-is-open",
    ],
)
def test_these_are_not(words: str) -> None:
    check_protected(parse_flags(words.split()))


def test_an_open_server_says_so() -> None:
    assert "--i-know-this-is-open" in access_of(parse_flags(["--listen", "--i-know-this-is-open"])).notices[0]
    assert access_of(parse_flags(["--listen", "--access-token"])).notices == ()
    assert access_of(parse_flags([])).notices == ()


@pytest.mark.parametrize(
    ("host", "answer"), [("127.0.0.1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_loopback(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


def test_a_server_for_others_keeps_its_outputs_in_its_folders(tmp_path: Path) -> None:
    data, extra, outside = tmp_path / "data", tmp_path / "extra", tmp_path / "outside"
    flags = {"listen": True, "gradio_auth": "a:b", "gradio_allowed_path": (str(extra),)}
    services = fake_services(data, start=False, **flags)
    with TestClient(build_api(services), headers={"Authorization": "Basic YTpi"}) as client:

        def choose(folder: Path | str) -> int:
            return client.post("/sdapi/v1/options", json={"outdir_samples": str(folder)}).status_code

        assert choose(extra / "deep") == 200
        assert choose("outputs/mine") == 200
        for folder in (outside, "../outside", "/etc"):
            assert choose(folder) == 507
            assert services.settings.current.saving_paths.outdir_samples == "outputs/mine"
    services.dispatcher.close()


def test_a_server_for_this_machine_saves_anywhere(tmp_path: Path) -> None:
    services = fake_services(tmp_path / "data", start=False)
    services.settings.update({"outdir_samples": str(tmp_path / "elsewhere")})
    services.dispatcher.close()


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    check_folder(inside / "new", (inside,))
    check_folder(outside, None)
    with pytest.raises(OutputError, match="--gradio-allowed-path"):
        check_folder(inside / "link" / "x", (inside,))
