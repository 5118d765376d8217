"""From results to the reference UI's reply shapes."""

import json
from typing import Any
from urllib.parse import quote

from modules.api.schema.reply_models import Txt2ImgReply
from modules.api.schema.schemas import GenerationBody
from modules.images.encode import Quality, to_base64
from modules.processing.request.result import GeneratedImage, ImageRole, Result
from modules.settings.values import Settings

REPLY_FORMATS = ("png", "jpg", "jpeg", "webp")  # what clients decode; other formats are sent as PNG


def txt2img_reply(result: Result, body: GenerationBody, settings: Settings) -> Txt2ImgReply:
    """images (base64, grid first), parameters (the request echoed), info (a JSON text)."""
    faces = settings.face_restoration
    images = [image_text(image, settings) for image in (result.images if body.value("send_images") else ())]
    info = info_of(result) | {
        "restore_faces": faces.face_restoration,
        "face_restoration_model": faces.face_restoration_model if faces.face_restoration else None,
    }
    return Txt2ImgReply(images=images, parameters=body.model_dump(), info=json.dumps(info))


def image_text(image: GeneratedImage, settings: Settings) -> str:
    """An image as base64 text, in the format that images are saved in and with its infotext, as the settings say."""
    extension = settings.saving.samples_format.lower()
    infotext = image.infotext if settings.infotext.enable_pnginfo else None
    return to_base64(image.image, extension if extension in REPLY_FORMATS else "png", infotext, Quality.of(settings))


def info_of(result: Result) -> dict[str, Any]:
    """The `info` object with the reference UI's keys, and `notices` of ours where there are any."""
    info = result.info
    first = next((i for i, image in enumerate(result.images) if image.role is ImageRole.SAMPLE), 0)
    reply: dict[str, Any] = {
        "prompt": info.prompts[0],
        "all_prompts": list(info.prompts),
        "negative_prompt": info.negative_prompts[0],
        "all_negative_prompts": list(info.negative_prompts),
        "seed": info.seeds[0],
        "all_seeds": list(info.seeds),
        "subseed": info.subseeds[0],
        "all_subseeds": list(info.subseeds),
        "subseed_strength": info.subseed_strength,
        "width": info.width,
        "height": info.height,
        "sampler_name": info.sampler,
        "cfg_scale": info.cfg_scale,
        "steps": info.steps,
        "batch_size": info.batch_size,
        "restore_faces": False,
        "face_restoration_model": None,
        "sd_model_name": info.checkpoint_name,
        "sd_model_hash": info.checkpoint_hash,
        "sd_vae_name": info.vae_name,
        "sd_vae_hash": info.vae_hash,
        "seed_resize_from_w": info.seed_resize_from_width or -1,
        "seed_resize_from_h": info.seed_resize_from_height or -1,
        "denoising_strength": info.denoising_strength,
        "extra_generation_params": dict(info.extra_params),
        "index_of_first_image": first,
        "infotexts": list(info.infotexts),
        "styles": list(info.styles),
        "job_timestamp": info.job_timestamp,
        "clip_skip": info.clip_skip,
        "is_using_inpainting_conditioning": False,
        "version": info.version,
    }
    if result.adapter_retention is not None:
        reply["adapter_retention"] = dict(result.adapter_retention)
    if result.notices:
        reply["notices"] = list(result.notices)
    return reply


def shown_as(name: str) -> str:
    """A Content-Disposition header that shows a file and names it for saving, in any script (RFC 6266, RFC 5987).

    Headers are Latin-1: `filename` has what ASCII can say of the name, `filename*` all of it.
    """
    return f"inline; {_named(name)}"


def attached_as(name: str) -> str:
    """The headers of a file that the browser saves instead of showing it."""
    return f"attachment; {_named(name)}"


def _named(name: str) -> str:
    plain = "".join(sign if sign.isascii() and sign.isprintable() and sign not in '"\\%' else "_" for sign in name)
    return f"filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
