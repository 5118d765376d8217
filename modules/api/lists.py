"""What there is to choose from: models, samplers, upscalers, styles; empty lists where this version has none."""

from typing import Any

from fastapi import APIRouter

from modules.api import examples
from modules.api.documentation import documented
from modules.processing.pipeline.upscaling import LATENT_UPSCALE_MODES, PIXEL_UPSCALERS
from modules.prompting.styles import StyleBook
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.scripts.library import script_info
from modules.services import Services

UPSCALER_SCALE = 4  # what the reference UI lists for upscalers that work at any scale
EMPTY_LISTS = {"face-restorers": "Face restorers", "extensions": "Extensions that were installed from a repository"}


def list_routes(services: Services) -> APIRouter:
    """All GET routes that list things, and the refreshes."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["lists"])

    @routes.get("/sd-models", **documented(examples.MODELS))
    def models() -> list[dict[str, Any]]:
        """Checkpoints: title, hash and file."""
        return [
            {
                "title": info.title,
                "model_name": info.model_name,
                "hash": info.shorthash,
                "sha256": info.sha256,
                "filename": str(info.path),
                "config": str(info.config_path) if info.config_path else None,
            }
            for info in services.catalogue.entries
        ]

    @routes.get("/sd-vae", **documented(examples.VAES))
    def vaes() -> list[dict[str, Any]]:
        """VAE files."""
        return [{"model_name": info.name, "filename": str(info.path)} for info in services.engine.vaes.entries]

    @routes.get("/samplers", **documented(examples.SAMPLERS))
    def samplers() -> list[dict[str, Any]]:
        """Samplers with their aliases."""
        return [{"name": n, "aliases": list(s.aliases), "options": s.options} for n, s in SAMPLERS.items()]

    @routes.get("/schedulers", **documented(examples.SCHEDULERS))
    def schedulers() -> list[dict[str, Any]]:
        """Schedule types."""
        return [
            {
                "name": spec.name,
                "label": spec.label,
                "aliases": list(spec.aliases) or None,
                "default_rho": spec.default_rho,
                "need_inner_model": spec.need_inner_model,
            }
            for _, spec in SCHEDULES.items()
        ]

    @routes.get("/upscalers", **documented(examples.UPSCALERS))
    def upscalers() -> list[dict[str, Any]]:
        """Upscalers that work on pixels, those from files after the built-in ones."""
        empty = {"model_name": None, "model_path": None, "model_url": None}
        files = [
            {"name": i.name, "model_name": i.path.stem, "model_path": str(i.path), "model_url": None, "scale": i.scale}
            for i in services.engine.upscalers.catalogue.refresh()
        ]
        return [*({"name": name, **empty, "scale": UPSCALER_SCALE} for name in PIXEL_UPSCALERS), *files]

    @routes.get("/realesrgan-models", **documented(examples.REALESRGAN))
    def realesrgan_models() -> list[dict[str, Any]]:
        """Upscaler files in the folder RealESRGAN."""
        found = services.engine.upscalers.catalogue.refresh()
        return [
            {"name": info.name, "path": str(info.path), "scale": info.scale}
            for info in found
            if info.kind.folder == "RealESRGAN"
        ]

    @routes.get("/latent-upscale-modes", **documented(examples.LATENT_MODES))
    def latent_modes() -> list[dict[str, Any]]:
        """Upscalers that work on the latent."""
        return [{"name": name} for name in LATENT_UPSCALE_MODES]

    @routes.get("/prompt-styles", **documented(examples.STYLES))
    def styles() -> list[dict[str, Any]]:
        """Prompt styles of styles.csv."""
        book = StyleBook.read(services.paths.styles_files)
        return [
            {"name": s.name, "prompt": s.prompt, "negative_prompt": s.negative_prompt} for s in book.styles.values()
        ]

    @routes.get("/hypernetworks", **documented(examples.HYPERNETWORKS))
    def hypernetworks() -> list[dict[str, Any]]:
        """Hypernetworks."""
        entries = services.engine.adapters.hypernetworks.entries
        return [{"name": info.name, "path": str(info.path)} for info in entries]

    @routes.get("/embeddings", **documented(examples.EMBEDDINGS))
    def embeddings() -> dict[str, Any]:
        """Embeddings that fit the loaded model (all, while none is loaded), and why the others are skipped."""
        return services.engine.list_embeddings()

    @routes.get("/scripts", **documented(examples.SCRIPTS))
    def scripts() -> dict[str, Any]:
        """Scripts by title in lower case, those that take part in every job first."""
        found = [*services.scripts.alwayson, *services.scripts.selectable]
        return {"txt2img": [script.title().lower() for script in found], "img2img": []}

    @routes.get("/script-info", **documented(examples.SCRIPT_INFO))
    def script_information() -> list[dict[str, Any]]:
        """Every script with its arguments."""
        return [script_info(script) for script in (*services.scripts.alwayson, *services.scripts.selectable)]

    for name, what in EMPTY_LISTS.items():
        routes.get(f"/{name}", name=name, description=f"{what}: this version has none.", **documented([]))(_nothing)

    @routes.post("/refresh-checkpoints", **documented())
    def refresh_checkpoints() -> None:
        """Look for checkpoints again."""
        services.catalogue.refresh()

    @routes.post("/refresh-embeddings", **documented())
    def refresh_embeddings() -> None:
        """Look for embeddings again."""
        services.engine.adapters.embeddings.refresh()

    @routes.post("/refresh-vae", **documented())
    def refresh_vae() -> None:
        """Look for VAE files again."""
        services.engine.vaes.refresh()

    return routes


def _nothing() -> list[dict[str, Any]]:
    """This version has none."""
    return []
