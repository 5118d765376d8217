"""VAE files over HTTP, and among the choices of the settings page."""

from fastapi.testclient import TestClient

from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.ui.settings_form import choices_of


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
