"""The npm clients `node-sd-webui`, `stable-diffusion-api` and `a1111-webui-api`, unmodified, against a real server."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from modules.images.encode import decode_base64
from modules.images.metadata import read_metadata
from modules.services import Services

HERE = Path(__file__).parent
NODE, NPM = shutil.which("node"), shutil.which("npm")
INSTALL_S, DRIVE_S = 180, 60

pytestmark = pytest.mark.skipif(
    NODE is None or NPM is None, reason="Node.js is not installed (apt-get install nodejs npm)"
)


@pytest.fixture(scope="module")
def packages() -> None:
    """The clients in node_modules beside this file, as the lock file pins them."""
    if (HERE / "node_modules" / ".package-lock.json").exists():
        return
    # No scripts: the clients' old `sharp` would fetch a build; the pinned one comes as a package.
    words = [str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode != 0:
        pytest.skip(f"npm could not install the clients (no network?): {done.stderr.strip()[-300:]}")


def drive(script: str, *words: str) -> Any:
    """What a script in `drive/` prints, as an object."""
    done = subprocess.run(
        [str(NODE), str(HERE / "drive" / script), *words], cwd=HERE, capture_output=True, text=True, timeout=DRIVE_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_node_sd_webui(packages: None, port: int) -> None:
    seen = drive("node_sd_webui.mjs", f"http://127.0.0.1:{port}")
    info = json.loads(seen["plain"]["info"])
    assert (info["seed"], info["sampler_name"], info["steps"], info["cfg_scale"]) == (3, "DPM++ 2M", 2, 5)
    infotext, _ = read_metadata(decode_base64(seen["plain"]["images"][0]))
    assert infotext is not None and "Schedule type: Karras" in infotext
    # The client reads by position what comes after the sampler, as it stood years ago: only these are right.
    read = {key: seen["read"][key] for key in ("prompt", "negativePrompt", "steps", "samplingMethod")}
    assert read == {"prompt": "a cat", "negativePrompt": "ugly", "steps": 2, "samplingMethod": "DPM++ 2M"}
    assert seen["hires"] == 1


@pytest.mark.parametrize("name", ["stable-diffusion-api", "a1111-webui-api"])
def test_stable_diffusion_api(packages: None, port: int, services: Services, name: str) -> None:
    seen = drive("stable_diffusion_api.mjs", name, "127.0.0.1", str(port))
    check(seen)
    assert services.settings.current["CLIP_stop_at_last_layers"] == seen["restored"]


@pytest.mark.parametrize("name", ["stable-diffusion-api", "a1111-webui-api"])
def test_with_a_password(packages: None, guarded_port: int, name: str) -> None:
    check(drive("stable_diffusion_api.mjs", name, "127.0.0.1", str(guarded_port), "me", "secret"))


def check(seen: Any) -> None:
    assert seen["images"] >= 2 and seen["size"][0] >= 64
    assert json.loads(seen["info"])["seed"] == 3
    assert seen["infotext"] == {}  # the client sends the image newly encoded by `sharp`, which drops all texts
    assert (seen["changed"], seen["restored"]) == (2, 1)
    assert "tiny-sd1" in seen["model"]
    assert seen["progress"]["progress"] == 0 and seen["progress"]["state"]["job_count"] == 0
    assert "secret" not in json.dumps(seen["flags"])
    lists = seen["lists"]
    assert "Euler" in [sampler["name"] for sampler in lists["samplers"]] and lists["upscalers"]
    assert lists["realesrgan"] == lists["hypernetworks"] == []
    assert "GFPGAN" in [restorer["name"] for restorer in lists["faceRestorers"]]
