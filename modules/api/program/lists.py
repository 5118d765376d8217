"""Lists to choose from: models, samplers, upscalers, styles; empty where this version has none."""

from fastapi import APIRouter

from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import (
    CheckpointItem,
    EmbeddingsReply,
    FaceRestorerItem,
    FewStepsItem,
    HypernetworkItem,
    LatentModeItem,
    RealesrganItem,
    SamplerItem,
    SchedulerItem,
    ScriptItem,
    ScriptsReply,
    StyleItem,
    UpscalerItem,
    VaeItem,
)
from modules.faces.restorer_types import RESTORERS
from modules.model_cards.few_steps import checkpoint_few_steps, few_steps_json
from modules.processing.request.upscaling import LATENT_UPSCALE_MODES, PIXEL_UPSCALERS
from modules.prompting.styles import StyleBook
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.scripts.library import script_info
from modules.services import Services

UPSCALER_SCALE = 4  # what the reference UI lists for upscalers that work at any scale


def list_routes(services: Services) -> APIRouter:
    """All GET routes that list things, and the refreshes."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["lists"])

    @routes.get("/sd-models")
    def models() -> list[CheckpointItem]:
        """Checkpoints: title, hash and file."""
        return [
            CheckpointItem(
                title=info.title,
                model_name=info.model_name,
                hash=info.shorthash,
                sha256=info.sha256,
                filename=str(info.path),
                config=str(info.config_path) if info.config_path else None,
                few_steps=_few_steps(info.stem),
            )
            for info in services.catalogue.entries
        ]

    @routes.get("/sd-vae")
    def vaes() -> list[VaeItem]:
        """VAE files."""
        return [VaeItem(model_name=info.name, filename=str(info.path)) for info in services.engine.vaes.entries]

    @routes.get("/sd-modules")
    def modules() -> list[VaeItem]:
        """Files with a text encoder or a VAE, for the override setting `forge_additional_modules`."""
        return [
            VaeItem(model_name=info.path.stem, filename=str(info.path)) for info in services.engine.modules.refresh()
        ]

    @routes.get("/samplers")
    def samplers() -> list[SamplerItem]:
        """Samplers with their aliases."""
        return [SamplerItem(name=n, aliases=list(s.aliases), options=s.options) for n, s in SAMPLERS.items()]

    @routes.get("/schedulers")
    def schedulers() -> list[SchedulerItem]:
        """Schedule types."""
        return [SchedulerItem.of(spec, aliases=spec.aliases or None) for _, spec in SCHEDULES.items()]

    @routes.get("/upscalers")
    def upscalers() -> list[UpscalerItem]:
        """Upscalers that work on pixels, those from files after the built-in ones."""
        files = [
            UpscalerItem(
                name=info.name, model_name=info.path.stem, model_path=str(info.path), model_url=None, scale=info.scale
            )
            for info in services.engine.upscalers.catalogue.refresh()
        ]
        return [*(UpscalerItem(name=name, model_url=None, scale=UPSCALER_SCALE) for name in PIXEL_UPSCALERS), *files]

    @routes.get("/realesrgan-models")
    def realesrgan_models() -> list[RealesrganItem]:
        """Upscaler files in the folder RealESRGAN."""
        found = services.engine.upscalers.catalogue.refresh()
        return [
            RealesrganItem(name=info.name, path=str(info.path), scale=info.scale)
            for info in found
            if info.type.folder == "RealESRGAN"
        ]

    @routes.get("/latent-upscale-modes")
    def latent_modes() -> list[LatentModeItem]:
        """Upscalers that work on the latent."""
        return [LatentModeItem(name=name) for name in LATENT_UPSCALE_MODES]

    @routes.get("/prompt-styles")
    def styles() -> list[StyleItem]:
        """Prompt styles of styles.csv."""
        book = StyleBook.read(services.paths.styles_files)
        return [
            StyleItem(name=s.name, prompt=s.prompt, negative_prompt=s.negative_prompt) for s in book.styles.values()
        ]

    @routes.get("/hypernetworks")
    def hypernetworks() -> list[HypernetworkItem]:
        """Hypernetworks."""
        entries = services.engine.adapters.files.hypernetworks.entries
        return [HypernetworkItem(name=info.name, path=str(info.path)) for info in entries]

    @routes.get("/embeddings")
    def embeddings() -> EmbeddingsReply:
        """Embeddings that fit the loaded model (all, while none is loaded), and why the others are skipped."""
        return EmbeddingsReply.model_validate(services.models.list_embeddings())

    library = services.scripts

    @routes.get("/scripts")
    def scripts() -> ScriptsReply:
        """Scripts by title in lower case, those that take part in every job first."""
        titles = [
            [script.title().lower() for script in (*library.alwayson_of(tab), *library.selectable_of(tab))]
            for tab in (False, True)
        ]
        return ScriptsReply(txt2img=titles[0], img2img=titles[1])

    @routes.get("/script-info")
    def script_information() -> list[ScriptItem]:
        """Every script with its arguments, those of txt2img first."""
        return [
            ScriptItem.model_validate(found)
            for is_img2img in (False, True)
            for script in (*library.alwayson_of(is_img2img), *library.selectable_of(is_img2img))
            if (found := script_info(script, is_img2img)) is not None
        ]

    @routes.get("/face-restorers")
    def face_restorers() -> list[FaceRestorerItem]:
        """Face restorers, each with the folder of its file (null: there is no file yet)."""
        found = [(restorer.name, services.engine.faces.file_of(restorer)) for restorer in RESTORERS]
        return [FaceRestorerItem(name=name, cmd_dir=str(path.parent) if path else None) for name, path in found]

    @routes.post("/refresh-checkpoints", **documented())
    def refresh_checkpoints() -> None:
        """Look for checkpoints again."""
        services.catalogue.refresh()

    @routes.post("/refresh-embeddings", **documented())
    def refresh_embeddings() -> None:
        """Look for embeddings again."""
        services.models.list_embeddings()

    @routes.post("/refresh-vae", **documented())
    def refresh_vae() -> None:
        """Look for VAE files again."""
        services.engine.vaes.refresh()

    return routes


def _few_steps(name: str) -> FewStepsItem | None:
    found = few_steps_json(checkpoint_few_steps(name))
    return None if found is None else FewStepsItem.model_validate(found)
