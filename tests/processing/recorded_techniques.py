"""Recorded requests of the reference UI with its extensions for regions, tiles and guidance, made through our API."""

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi.testclient import TestClient
from PIL import Image

from modules.api.app import build_api
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.images.infotext import parse_infotext
from tests.recordings import REFERENCE, TINY

TECHNIQUES = REFERENCE / "techniques"


@cache
def technique_cases() -> dict[str, dict[str, Any]]:
    """By id."""
    found = json.loads((TECHNIQUES / "cases.json").read_text(encoding="utf-8"))["cases"]
    return {str(case["id"]): case for case in found}


def with_files(value: Any) -> Any:
    """A payload with base64 instead of names of files."""
    if isinstance(value, dict):
        if "$file" in value:
            return base64.b64encode((TECHNIQUES / value["$file"]).read_bytes()).decode()
        return {key: with_files(item) for key, item in value.items()}
    return [with_files(item) for item in value] if isinstance(value, list) else value


@contextmanager
def api(folder: Path) -> Iterator[TestClient]:
    """The whole program's API on the tiny checkpoint, in fp32 on one thread, as the recordings were made."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    services = build_services(Flags(data_dir=str(folder), ckpt=str(TINY), no_half=True, use_cpu=("all",)))
    services.dispatcher.start()
    try:
        with TestClient(build_api(services)) as client:
            yield client
    finally:
        services.dispatcher.close()
        torch.set_num_threads(threads)


def make(client: TestClient, endpoint: str, body: dict[str, Any]) -> tuple[list[Image.Image], list[str]]:
    """Images and infotexts of a request."""
    reply = client.post(endpoint, json=body)
    assert reply.status_code == 200, reply.text
    images: list[Image.Image] = [Image.open(io.BytesIO(base64.b64decode(text))) for text in reply.json()["images"]]
    return images, json.loads(reply.json()["info"])["infotexts"]


def apart(image: Image.Image, file: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The largest difference of each pixel's channels to a recorded image, in levels, [height, width]."""
    recorded = np.asarray(Image.open(TECHNIQUES / file).convert("RGB")).astype(int)
    ours = np.asarray(image.convert("RGB")).astype(int)
    assert ours.shape == recorded.shape
    found: np.ndarray[Any, np.dtype[np.int64]] = np.abs(ours - recorded).max(axis=2)
    return found


def fields_of(infotext: str) -> dict[str, Any]:
    """The fields of an infotext, numbers as numbers, without the version."""
    found = parse_infotext(infotext)
    return {key: _number(value) for key, value in found.items() if key != "Version"}


def _number(text: Any) -> Any:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text
