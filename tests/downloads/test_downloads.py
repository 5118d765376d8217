"""Downloads from a server of this machine: whole, gone on with, refused; never half a file under a model's name."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.downloads import parts
from modules.downloads.addresses import clean_name, source_of
from modules.downloads.downloads import DownloadRequest, Downloads
from modules.downloads.known import known_models, source_named
from modules.downloads.transport import DownloadError, FileTransport, GoneAwayError, Timeouts, Tokens
from modules.errors import (
    BusyError,
    CheckpointError,
    FeatherweightError,
    InvalidValueError,
    OutputError,
    UnknownNameError,
)
from modules.flags.flags import Flags
from modules.models.files.header import header_length
from modules.system.paths import resolve_paths
from tests.downloads.file_server import Behavior, Handler, safetensors, serving

ROOT = Path(__file__).parents[2]
LORA = safetensors({"lora_unet_a.lora_down.weight": ("F16", [4, 64]), "lora_unet_a.lora_up.weight": ("F16", [64, 4])})
LARGE = safetensors({"model.diffusion_model.x": ("F16", [1024, 1024])})
NAME = "a.safetensors"
CERTIFICATE = Path(__file__).parent / "localhost.pem"


@pytest.fixture
def downloads(tmp_path: Path) -> Iterator[Downloads]:
    paths = resolve_paths(Flags(data_dir=str(tmp_path)), ROOT)
    transport = FileTransport(timeouts=Timeouts(2.0, 0.6))
    yield Downloads(paths, transport, sleep=lambda seconds: None)
    transport.close()


def get(downloads: Downloads, url: str, **values: Any) -> Path:
    return downloads.get(DownloadRequest(url, **values), lambda done, total: None).path


def files_in(downloads: Downloads) -> list[str]:
    """All that lies in the folders of models."""
    return sorted(path.name for path in downloads.paths.data_dir.rglob("*") if path.is_file())


def test_a_file_comes_whole_into_the_folder_of_its_kind(downloads: Downloads) -> None:
    behavior = Behavior(LORA, filename="style.safetensors")
    with serving({"/download": behavior}) as address:
        found = downloads.find(DownloadRequest(f"{address}/download"))
        assert found.kind.what == "a LoRA" and found.name == "style.safetensors"
        assert "fp16, 0.00 B parameters" in found.line
        seen: list[tuple[int, int]] = []
        done = downloads.get(DownloadRequest(f"{address}/download"), lambda *each: seen.append(each))
        assert done.path == downloads.paths.lora_dirs[0] / "style.safetensors" and done.path.read_bytes() == LORA
        assert done.sha256 == hashlib.sha256(LORA).hexdigest() and seen[-1] == (len(LORA), len(LORA))
        assert files_in(downloads) == ["style.safetensors"]
        again = downloads.get(DownloadRequest(f"{address}/download"), lambda done, total: None)
        assert again.was_there and again.path == done.path


def test_https_with_a_certificate_that_is_trusted(downloads: Downloads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust comes from the program's own certificates and SSL_CERT_FILE; the name has to be the certificate's."""
    behavior = Behavior(LORA)
    with serving({f"/{NAME}": behavior}, CERTIFICATE) as address:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(
            DownloadError, match=r"The certificate of 127\.0\.0\.1 is not trusted \(self.signed"
        ) as refusal:
            get(downloads, f"{address}/{NAME}")
        assert "name its file in SSL_CERT_FILE" in str(refusal.value)
        assert files_in(downloads) == [] and not behavior.requests, "nothing was asked for"
        monkeypatch.setenv("SSL_CERT_FILE", str(ROOT / "LICENSE"))
        with pytest.raises(InvalidValueError, match="holds no certificates that can be read"):
            get(downloads, f"{address}/{NAME}")
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert get(downloads, f"{address}/{NAME}").read_bytes() == LORA
        elsewhere = FileTransport(find_addresses=lambda host, port: ["127.0.0.1"])
        with (
            pytest.raises(DownloadError, match=r"certificate of models\.example is not trusted \(Hostname mismatch"),
            elsewhere.get(f"{address}/{NAME}".replace("127.0.0.1", "models.example"), may_be_local=True),
        ):
            pass


def test_a_header_costs_less_than_a_megabyte(downloads: Downloads) -> None:
    behavior = Behavior(safetensors({f"model.diffusion_model.{n}": ("F16", [32, 32]) for n in range(3000)}))
    with serving({f"/{NAME}": behavior}) as address:
        found = downloads.find(DownloadRequest(f"{address}/{NAME}"))
    assert found.header.parameters == 3000 * 1024 and behavior.sent_bytes < 1_000_000 < len(behavior.body)


@pytest.mark.parametrize("tenth", range(10))
def test_a_download_that_was_cut_goes_on_where_it_was(downloads: Downloads, tenth: int) -> None:
    cut = len(LARGE) * tenth // 10

    def stop(done: int, total: int) -> None:
        if done >= cut and done < total:
            raise BusyError("stopped by the test")

    behavior = Behavior(LARGE)
    with serving({f"/{NAME}": behavior}) as address:
        request = DownloadRequest(f"{address}/{NAME}")
        with pytest.raises(BusyError):
            downloads.get(request, stop)
        assert NAME not in files_in(downloads)
        part = downloads.paths.checkpoint_dirs[0] / f".{NAME}.part"
        kept = part.stat().st_size
        assert cut <= kept <= cut + parts.CHUNK_BYTES
        behavior.requests.clear()
        done = get(downloads, f"{address}/{NAME}")
    assert done.read_bytes() == LARGE and files_in(downloads) == [NAME]
    assert kept == 0 or (f"bytes={kept}-", "") in behavior.requests


def test_a_broken_connection_is_made_again_as_long_as_bytes_come(downloads: Downloads) -> None:
    def breaks(handler: Handler, number: int) -> bool:
        if handler.headers.get("Range", "").endswith("-65535"):
            return False  # the look at its beginning
        handler.give(behavior, cut=len(LARGE) // 20)
        return True

    behavior = Behavior(LARGE, fault=breaks)
    with serving({f"/{NAME}": behavior}) as address:
        assert get(downloads, f"{address}/{NAME}").read_bytes() == LARGE
    assert len(behavior.requests) > 20


def test_a_server_without_ranges_begins_again(downloads: Downloads) -> None:
    def breaks_once(handler: Handler, number: int) -> bool:
        if number != 2:
            return False
        handler.give(behavior, cut=len(LARGE) // 2)
        return True

    behavior = Behavior(LARGE, has_ranges=False, fault=breaks_once)
    with serving({f"/{NAME}": behavior}) as address:
        assert get(downloads, f"{address}/{NAME}").read_bytes() == LARGE


def test_a_file_that_changes_between_two_parts_is_not_mixed(downloads: Downloads) -> None:
    other = LARGE[:-8] + b"\1" * 8

    def changes(handler: Handler, number: int) -> bool:
        if not handler.headers.get("Range", "").endswith("-65535") and behavior.body is LARGE:
            handler.give(behavior, cut=len(LARGE) // 2)
            behavior.body, behavior.etag = other, '"v2"'
            return True
        return False

    behavior = Behavior(LARGE, fault=changes)
    with serving({f"/{NAME}": behavior}) as address:
        assert get(downloads, f"{address}/{NAME}").read_bytes() == other


def lies(handler: Handler, number: int, length: int, sent: int) -> bool:
    if handler.headers.get("Range", "").endswith("-65535"):
        return False
    handler.send_response(200)
    if length:
        handler.send_header("Content-Length", str(length))
    handler.end_headers()
    handler.close_connection = True
    try:
        handler.wfile.write(bytes(sent))
    except OSError:
        handler.close_connection = True
    return True


@pytest.mark.parametrize(
    ("fault", "error", "sentence"),
    [
        (lambda h, n: lies(h, n, len(LARGE), 1000), GoneAwayError, "broke off"),
        (lambda h, n: lies(h, n, len(LARGE) * 2, 1000), GoneAwayError, "another size"),
        (lambda h, n: lies(h, n, 0, len(LARGE) * 2), DownloadError, "sends more than"),
    ],
)
def test_a_server_that_sends_less_or_more_leaves_no_file(
    downloads: Downloads, fault: Any, error: type[FeatherweightError], sentence: str
) -> None:
    with serving({f"/{NAME}": Behavior(LARGE, fault=fault)}) as address, pytest.raises(error, match=sentence):
        get(downloads, f"{address}/{NAME}")
    assert NAME not in files_in(downloads)


@pytest.mark.parametrize(
    "said", ["bytes abc", "bytes", "", "bytes 0-65535/" + "9" * 5000, "bytes 0-9/\u00b2", "bytes \u00b2-"]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_server_says_of_parts_is_no_mistake_of_ours(downloads: Downloads, said: str, is_first: bool) -> None:
    """Security finding 14: these ended as internal errors."""

    def lies_about_the_range(handler: Handler, number: int) -> bool:
        if (number == 0) is not is_first:
            return False
        handler.send_response(206)
        handler.send_header("Content-Range", said)
        handler.send_header("Content-Length", "10")
        handler.end_headers()
        handler.wfile.write(bytes(10))
        return True

    behavior = Behavior(LARGE, fault=lies_about_the_range)
    with serving({f"/{NAME}": behavior}) as address:
        try:
            assert get(downloads, f"{address}/{NAME}").read_bytes() == LARGE
        except FeatherweightError as error:
            assert "server" in str(error)
        else:
            assert not is_first


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 50_000,
        b'{"a":' * 50_000,
        b'{"x": {"dtype": "F16", "shape": [1e400]}}',
        b'{"x": {"dtype": "F16", "shape": [NaN]}}',
        b'{"x": {"dtype": "F16", "shape": "12"}}',
        b'{"__metadata__": "x", "x": {"dtype": "F16", "shape": [1]}}',
        b'{"__metadata__": {"x": []}, "x": 5}',
    ],
)
def test_a_header_of_another_shape_is_refused_with_a_sentence(downloads: Downloads, header: bytes) -> None:
    """Security finding 14."""
    behavior = Behavior(len(header).to_bytes(8, "little") + header + bytes(64))
    with serving({f"/{NAME}": behavior}) as address, pytest.raises(CheckpointError, match=NAME):
        get(downloads, f"{address}/{NAME}")
    assert NAME not in files_in(downloads)


def test_a_silent_server_is_given_up(downloads: Downloads) -> None:
    def silent(handler: Handler, number: int) -> bool:
        time.sleep(1.2)
        return True

    with (
        serving({f"/{NAME}": Behavior(LARGE, fault=silent)}) as address,
        pytest.raises(GoneAwayError, match="cannot be reached"),
    ):
        get(downloads, f"{address}/{NAME}")


def test_bytes_that_are_not_those_announced_are_thrown_away(downloads: Downloads) -> None:
    with (
        serving({f"/{NAME}": Behavior(LORA, sha256="0" * 64)}) as address,
        pytest.raises(DownloadError, match="is not what was announced"),
    ):
        get(downloads, f"{address}/{NAME}")
    assert files_in(downloads) == []


@pytest.mark.parametrize(
    ("status", "error", "sentence"),
    [
        (401, DownloadError, "accept its licence"),
        (403, DownloadError, "accept its licence"),
        (404, DownloadError, "no such file"),
        (429, BusyError, "wait for 7 s"),
        (503, BusyError, "asks to wait"),
        (500, DownloadError, "answers 500"),
    ],
)
def test_each_refusal_has_a_sentence(
    downloads: Downloads, status: int, error: type[FeatherweightError], sentence: str
) -> None:
    def refuses(handler: Handler, number: int) -> bool:
        handler.answer(status, b"no", Retry_After="7")
        return True

    with serving({f"/{NAME}": Behavior(LORA, fault=refuses)}) as address, pytest.raises(error, match=sentence):
        get(downloads, f"{address}/{NAME}")


def test_redirects_are_followed_but_not_in_a_ring(downloads: Downloads) -> None:
    ring = {f"/{NAME}": Behavior(b"", redirect="/b"), "/b": Behavior(b"", redirect=f"/{NAME}")}
    with serving(ring) as address, pytest.raises(DownloadError, match="in a ring"):
        get(downloads, f"{address}/{NAME}")
    with serving({f"/{NAME}": Behavior(LORA, redirect="/b"), "/b": Behavior(LORA)}) as address:
        assert get(downloads, f"{address}/{NAME}").read_bytes() == LORA


def test_the_internet_does_not_lead_to_this_machine() -> None:
    def find(host: str, port: int) -> list[str]:
        return {"inside.example": ["10.0.0.7"], "both.example": ["93.184.216.34", "127.0.0.1"]}[host]

    transport = FileTransport(find_addresses=find)
    for url in ("https://inside.example/a", "https://both.example/a"):
        with pytest.raises(InvalidValueError, match="not allowed"), transport.get(url):
            pass
    with pytest.raises(InvalidValueError, match="over http"), transport.get("http://inside.example/a"):
        pass
    transport.close()


def test_without_a_network_it_says_so(downloads: Downloads) -> None:
    def find(host: str, port: int) -> list[str]:
        raise OSError("Temporary failure in name resolution")

    transport = FileTransport(find_addresses=find)
    with pytest.raises(GoneAwayError, match="connected to the Internet"), transport.get("https://example.com/a"):
        pass
    transport.close()


@pytest.mark.parametrize(
    ("body", "content_type", "sentence"),
    [
        (b"<html>", "text/html; charset=utf-8", "is a web page"),
        (b"Rar! something else", "application/octet-stream", "does not begin as"),
        (
            safetensors({"patch_embedding.weight": ("F16", [8, 4, 1, 2, 2])}),
            "application/octet-stream",
            "a video model",
        ),
        (
            safetensors(
                {
                    "model.embed_tokens.weight": ("F16", [9, 96]),
                    "lm_head.weight": ("F16", [9, 96]),
                    "model.layers.0.self_attn.q_proj.weight": ("F16", [96, 96]),
                }
            ),
            "application/octet-stream",
            "a language model",
        ),
        (safetensors({"strange": ("F16", [1])}), "application/octet-stream", "of no known kind"),
    ],
)
def test_what_is_no_model_of_images_is_refused_before_it_comes(
    downloads: Downloads, body: bytes, content_type: str, sentence: str
) -> None:
    behavior = Behavior(body, content_type=content_type)
    with serving({f"/{NAME}": behavior}) as address, pytest.raises(FeatherweightError, match=sentence):
        get(downloads, f"{address}/{NAME}")
    assert files_in(downloads) == []


def test_the_folder_follows_from_the_header(downloads: Downloads) -> None:
    bodies = {
        "vae": (
            {
                "decoder.conv_in.weight": ("F16", [8, 4, 1, 1]),
                "decoder.mid.block_1.conv1.weight": ("F16", [4, 4, 1, 1]),
            },
            "VAE",
        ),
        "encoder": (
            {
                "text_model.embeddings.token_embedding.weight": ("F16", [9, 4]),
                "text_model.final_layer_norm.weight": ("F16", [4]),
            },
            "text_encoder",
        ),
        "control": ({"control_model.input_hint_block.0.weight": ("F16", [4])}, "ControlNet"),
        "flux": (
            {
                "double_blocks.0.img_attn.norm.key_norm.scale": ("F16", [4]),
                "vector_in.in_layer.weight": ("F16", [4, 4]),
            },
            "Stable-diffusion",
        ),
    }
    behaviors = {f"/{name}.safetensors": Behavior(safetensors(tensors)) for name, (tensors, _) in bodies.items()}
    with serving(behaviors) as address:
        for name, (_, folder) in bodies.items():
            assert downloads.find(DownloadRequest(f"{address}/{name}.safetensors")).kind.folder == folder
        chosen = DownloadRequest(f"{address}/vae.safetensors", folder="Lora")
        assert downloads.find(chosen).kind.folder == "Lora"
        with pytest.raises(UnknownNameError, match="folder"):
            downloads.find(DownloadRequest(f"{address}/vae.safetensors", folder="somewhere"))


def test_a_name_that_another_file_has_and_a_full_disk(downloads: Downloads, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = downloads.paths.lora_dirs[0]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(b"mine")
    with serving({f"/{NAME}": Behavior(LORA)}) as address:
        with pytest.raises(InvalidValueError, match="is another file"):
            get(downloads, f"{address}/{NAME}")
        assert (folder / NAME).read_bytes() == b"mine"
        monkeypatch.setattr(parts, "KEPT_FREE_BYTES", 1 << 62)
        with pytest.raises(OutputError, match="GB free"):
            get(downloads, f"{address}/{NAME}", name="b.safetensors")


def test_what_was_stored_in_8_bits_while_it_came_is_refused_and_can_be_cancelled(downloads: Downloads) -> None:
    """Earlier versions did that; their records and what they left of a file say so by a format."""
    folder = downloads.paths.checkpoint_dirs[0]
    folder.mkdir(parents=True)
    with serving({f"/{NAME}": Behavior(LARGE)}) as address:
        url = f"{address}/{NAME}"
        note = {"url": url, "size_bytes": len(LARGE), "version": '"v1"', "sha256": "", "storage": "fp8_e4m3fn_row"}
        for suffix in ("", ".state", ".lock"):
            (folder / f".a-8bit.safetensors.part{suffix}").write_bytes(b"old")
        (folder / ".a-8bit.safetensors.part.json").write_text(json.dumps(note))
        asked = DownloadRequest(url, storage="fp8_e4m3fn_row")
        for request in (asked, DownloadRequest(url, name="a-8bit.safetensors", folder="Stable-diffusion")):
            with pytest.raises(InvalidValueError, match="Files are no longer stored in 8 bits while"):
                downloads.get(request, lambda done, total: None)
        ((place, part),) = downloads.begun(asked)
        assert (place, part.name, part.url) == ("Stable-diffusion", "a-8bit.safetensors", url)
        downloads.discard(place, part.name)
        assert files_in(downloads) == [] and get(downloads, url).read_bytes() == LARGE


def test_tokens_go_to_their_host_only_and_are_read_by_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text("# mine\nexample.com secret-1\n")
    file.chmod(0o644)
    if os.name != "nt":
        with pytest.raises(InvalidValueError, match="chmod 600"):
            Tokens.read(file, {})
    file.chmod(0o600)
    tokens = Tokens.read(file, {"HF_TOKEN": "secret-2"})
    assert tokens.of("files.example.com") == "secret-1" and tokens.of("huggingface.co") == "secret-2"
    assert tokens.of("badexample.com") is None and "secret" not in repr(tokens)
    behavior = Behavior(LORA)
    transport = FileTransport(Tokens({"127.0.0.1": "secret-3"}))
    with serving({f"/{NAME}": behavior}) as address, transport.get(f"{address}/{NAME}", may_be_local=True):
        assert behavior.requests == [("", "")]  # not over http
    transport.close()


def test_a_gated_file_comes_with_its_token_which_no_other_host_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the Hub does it: the file is behind a login, and lies on another host."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    paths = resolve_paths(Flags(data_dir=str(tmp_path)), ROOT)
    stranger, friend = FileTransport(), FileTransport(Tokens({"127.0.0.1": "secret"}))
    gate, store = Behavior(LORA, token="secret"), Behavior(LORA)
    with serving({f"/{NAME}": gate, "/lies/here": store}, CERTIFICATE) as address:
        url = f"{address}/{NAME}"
        with pytest.raises(DownloadError, match=r"known users only \(answer 401\)"):
            Downloads(paths, stranger).find(DownloadRequest(url))
        assert Downloads(paths, friend).find(DownloadRequest(url)).name == NAME
        gate.redirect = address.replace("127.0.0.1", "localhost") + "/lies/here"
        assert Downloads(paths, friend).get(DownloadRequest(url), lambda done, total: None).path.read_bytes() == LORA
    assert gate.requests[-1][1] == "Bearer secret" and {token for _, token in store.requests} == {""}
    for each in (stranger, friend):
        each.close()


@pytest.mark.parametrize(
    ("text", "url", "file"),
    [
        ("owner/repo/dir/a.safetensors", "https://huggingface.co/owner/repo/resolve/main/dir/a.safetensors", NAME),
        ("owner/repo@v2:a.safetensors", "https://huggingface.co/owner/repo/resolve/v2/a.safetensors", NAME),
        (
            "https://huggingface.co/o/r/blob/main/x/a.safetensors",
            "https://huggingface.co/o/r/resolve/main/x/a.safetensors",
            NAME,
        ),
        (
            "owner/some-lora/pytorch_lora_weights.safetensors",
            "https://huggingface.co/owner/some-lora/resolve/main/pytorch_lora_weights.safetensors",
            "some-lora.safetensors",
        ),
        (
            "owner/some-model/model.safetensors",
            "https://huggingface.co/owner/some-model/resolve/main/model.safetensors",
            "some-model.safetensors",
        ),
        ("https://civitai.com/models/12/some?modelVersionId=34", "https://civitai.com/api/download/models/34", ""),
        (
            "https://civitai.com/api/download/models/56?type=Model&fp=fp16",
            "https://civitai.com/api/download/models/56?type=Model&fp=fp16",
            "",
        ),
        ("https://example.com/files/a.safetensors?x=1", "https://example.com/files/a.safetensors?x=1", NAME),
    ],
)
def test_what_a_user_types_is_an_address(text: str, url: str, file: str) -> None:
    source = source_of(text)
    assert (source.url, source.file) == (url, file)


@pytest.mark.parametrize(
    "text", ["", "word", "https://huggingface.co/o/r", "https://civitai.com/models/12", "o/r/../../x.y"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        source_of(text)


def test_names_are_cleaned() -> None:
    assert clean_name("../../etc/a b.safetensors") == "a b.safetensors"
    assert clean_name("C:\\x\\..\\a?.gguf") == "a_.gguf"
    assert clean_name("n" * 500 + ".safetensors") == "n" * 150 + ".safetensors"
    assert clean_name("ü" * 500 + ".gguf") == "ü" * 75 + ".gguf"
    assert clean_name("x\u202esrotesnetefas.gguf") == "xsrotesnetefas.gguf"
    assert clean_name("CON.safetensors") == "_CON.safetensors"
    for name in ("..", "", ".safetensors", "a.exe", "a"):
        with pytest.raises(InvalidValueError):
            clean_name(name)
    with pytest.raises(InvalidValueError, match="pickle"):
        clean_name("a.ckpt")
    assert clean_name("a.ckpt", allows_pickles=True) == "a.ckpt"


def test_the_list_that_ships_is_whole() -> None:
    models = known_models(ROOT / "configs")
    assert {"sd15", "sdxl", "z-image-turbo", "flux1-schnell"} <= set(models)
    for name, model in models.items():
        assert source_named(name.upper(), models) == model.source
        assert model.source.url.startswith("https://huggingface.co/") and model.size_gb > 0 and model.licence
        assert clean_name(model.source.file)


@pytest.mark.parametrize(
    ("plan", "fits", "text", "seconds"),
    [
        (
            {"fits": True, "time": {"seconds": 20.3, "line": "about 20 s per step, 2.7 min for 8 steps at 512x512"}},
            True,
            "It fits: needs 3.1 of 15.8 GB. Here about 20 s per step, 2.7 min for 8 steps at 512x512.",
            20.3,
        ),
        (
            {
                "fits": False,
                "proposals": [{"title": "FP8 weight", "fits": True, "needs": 1_100_000_000}],
                "time": {"seconds": 0.5, "line": "about 0.5 s per step"},
            },
            True,
            "As it is it needs 3.1 of 15.8 GB. It fits with: FP8 weight (1.1 GB). Here about 0.5 s per step.",
            0.5,
        ),
        ({"fits": True, "time": None}, True, "It fits: needs 3.1 of 15.8 GB.", 0.0),
        ({"fits": False, "time": None, "nothing_fits": "It does not fit."}, False, "It does not fit.", 0.0),
        (None, None, "no such family", 0.0),
    ],
)
def test_what_the_planner_said_is_read(
    plan: dict[str, Any] | None,
    fits: bool | None,
    text: str,
    seconds: float,
    downloads: Downloads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = (
        ""
        if plan is None
        else json.dumps({"needs": 3_100_000_000, "available": 15_800_000_000, "proposals": []} | plan)
    )
    done = subprocess.CompletedProcess([], 0, said, "" if plan else "Error: no such family\n")
    monkeypatch.setattr("modules.downloads.verdict.subprocess.run", lambda *args, **kwargs: done)
    source = (ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors").read_bytes()
    with serving({f"/{NAME}": Behavior(source)}) as address:
        verdict = downloads.judged(downloads.find(DownloadRequest(f"{address}/{NAME}")))
    assert (verdict.fits, verdict.text, verdict.step_seconds) == (fits, text, seconds)


@pytest.mark.thorough(held_by="test_what_the_planner_said_is_read")  # which has no process that imports PyTorch
def test_the_planner_is_asked_with_the_header_alone(downloads: Downloads) -> None:
    header = (ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors").read_bytes()
    length = 8 + header_length(header)
    behavior = Behavior(header[:length] + bytes(len(header) - length))
    with serving({f"/{NAME}": behavior}) as address:
        found = downloads.find(DownloadRequest(f"{address}/{NAME}"))
        verdict = downloads.judged(found)
    assert verdict.fits is True and "GB" in verdict.text
    assert verdict.step_seconds > 0 and "per step" in verdict.text


GET = "import sys; from modules.cli.get import main; sys.exit(main(sys.argv[1:]))"


def test_a_killed_download_leaves_no_file_and_is_gone_on_with(tmp_path: Path) -> None:
    def slow(handler: Handler, number: int) -> bool:
        if handler.headers.get("Range", "").endswith("-65535"):
            return False
        time.sleep(0.05)
        handler.give(behavior, cut=len(LARGE) // 4)
        time.sleep(0.3)
        return True

    behavior = Behavior(LARGE, fault=slow)
    with serving({f"/{NAME}": behavior}) as address:
        command = [sys.executable, "-c", GET, f"{address}/{NAME}", "--data-dir", str(tmp_path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part = tmp_path / "models" / "Stable-diffusion" / f".{NAME}.part"
        limit = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and time.monotonic() < limit:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not part.with_name(NAME).exists() and 0 < part.stat().st_size < len(LARGE)
        behavior.fault = lambda handler, number: False
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert part.with_name(NAME).read_bytes() == LARGE and not part.exists()
