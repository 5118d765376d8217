"""The PyPI client `webuiapi`, unmodified, against a real server."""

import pytest
import webuiapi

from modules.services import Services


@pytest.fixture(scope="module")
def api(port: int) -> "webuiapi.WebUIApi":
    return webuiapi.WebUIApi(host="127.0.0.1", port=port, sampler="Euler", steps=2)


def test_an_image_is_made(api: "webuiapi.WebUIApi") -> None:
    result = api.txt2img(prompt="a cat", negative_prompt="ugly", seed=3, width=64, height=64, cfg_scale=5, styles=[])
    assert result.image.size == (64, 64)
    assert result.info["seed"] == 3
    assert result.info["infotexts"][0].startswith("a cat\nNegative prompt: ugly")


def test_hires_and_batches(api: "webuiapi.WebUIApi") -> None:
    upscaler = webuiapi.HiResUpscaler.Latent
    result = api.txt2img(
        prompt="x", width=64, height=64, batch_size=2, enable_hr=True, hr_upscaler=upscaler, hr_scale=2
    )
    assert len(result.images) == 2


def test_options_round_trip(api: "webuiapi.WebUIApi", services: Services) -> None:
    options = api.get_options()
    api.set_options({"CLIP_stop_at_last_layers": 2})
    assert services.settings.current["CLIP_stop_at_last_layers"] == 2
    api.set_options(options)
    assert services.settings.current["CLIP_stop_at_last_layers"] == options["CLIP_stop_at_last_layers"]


def test_every_list_is_read(api: "webuiapi.WebUIApi") -> None:
    assert "Euler" in [sampler["name"] for sampler in api.get_samplers()]
    assert "Karras" in [schedule["label"] for schedule in api.get_schedulers()]
    assert api.get_sd_models()[0]["title"]
    assert api.get_latent_upscale_modes() and api.get_upscalers()
    for read in (api.get_sd_vae, api.get_hypernetworks, api.get_realesrgan_models):
        assert read() == []
    assert [found["name"] for found in api.get_face_restorers()] == ["CodeFormer", "GFPGAN", "RestoreFormer"]
    assert api.get_embeddings() == {"loaded": {}, "skipped": {}}
    assert "ram" in api.get_memory()
    assert "nowebui" in api.get_cmd_flags()
    scripts = api.get_scripts()
    assert "x/y/z plot" in scripts["txt2img"] and "sd upscale" in set(scripts["img2img"]) - set(scripts["txt2img"])
    assert {lora["name"] for lora in api.get_loras()} == {"balloon", "blueprint"}  # the bundled ones
    assert isinstance(api.get_prompt_styles(), list)


def test_progress_interrupt_refresh_and_png_info(api: "webuiapi.WebUIApi") -> None:
    assert api.get_progress()["progress"] == 0
    api.interrupt()
    api.skip()
    api.refresh_checkpoints()
    result = api.txt2img(prompt="a cat", width=64, height=64)
    assert "a cat" in api.png_info(result.image).info


def test_a_checkpoint_is_found_by_its_name(api: "webuiapi.WebUIApi", services: Services) -> None:
    api.util_set_model("tiny-sd1")
    assert "tiny-sd1" in str(api.util_get_current_model())
