"""VAE files over HTTP, and among the choices of the settings page."""

from fastapi.testclient import TestClient

from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.ui.tabs.settings_form import choices_of


def test_vae_files_are_listed_after_a_refresh(client: TestClient, services: Services) -> None:
    path = services.paths.vae_dirs[0] / "bright.pt"
    path.write_bytes(b"")
    assert client.get("/sdapi/v1/sd-vae").json() == []
    assert client.post("/sdapi/v1/refresh-vae").status_code == 200
    assert client.get("/sdapi/v1/sd-vae").json() == [{"model_name": "bright.pt", "filename": str(path)}]
    assert choices_of(SETTINGS.get("sd_vae"), services) == ["Automatic", "None", "bright.pt"]
    path.unlink()
    client.post("/sdapi/v1/refresh-vae")
    assert client.get("/sdapi/v1/sd-vae").json() == []


def test_files_with_parts_of_a_model_are_listed(client: TestClient, services: Services) -> None:
    path = services.paths.module_dirs[0] / "encoder.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    assert {"model_name": "encoder", "filename": str(path)} in client.get("/sdapi/v1/sd-modules").json()
    assert "encoder.safetensors" in choices_of(SETTINGS.get("forge_additional_modules"), services)
    path.unlink()
