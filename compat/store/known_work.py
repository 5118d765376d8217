"""Main work of known extensions, as far as it can be tried without a person: a tab, a component of the form, a route
that answers, or a script that changes an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Work:
    """A tab's title, a component's `elem_id`, a route, and a script with arguments under which the image is another
    one."""

    tab: str = ""
    route: str = ""
    element: str = ""
    script: str = ""
    args: tuple[Any, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # of both images


_REGIONS = (True, False, "Matrix", "Columns", "Mask", "Prompt", "1,1", "", False, False, False, "Attention", [False])
_TWO = MappingProxyType({"prompt": "a red circle BREAK a blue star"})
_COUPLE = ("1:1,1:2,1:2", "0:0,0:0,0:1", "0.2,0.8,0.8", 150)
WORK: Mapping[str, Work] = {
    "a1111-sd-webui-haku-img": Work(tab="HakuImg"),
    "a1111-sd-webui-tagcomplete": Work(route="/tacapi/v1/refresh-temp-files"),
    "adetailer": Work(route="/adetailer/v1/version"),
    "config-presets": Work(element="config_preset_txt2img_dropdown"),
    "multidiffusion-upscaler-for-automatic1111": Work(script="Tiled VAE", args=("True", 64, 32, True, True, True)),
    "openoutpaint-webui-extension": Work(tab="openOutpaint"),
    "onebuttonprompt": Work(route="/one_button_prompt/version"),
    "openpose-editor": Work(tab="OpenPose Editor"),
    "sd-dynamic-thresholding": Work(script="Dynamic Thresholding (CFG Scale Fix)", args=(True, 3.0, 90.0)),
    "sd-forge-couple": Work(
        script="Forge Couple",
        args=(True, True, "Basic", "", "Horizontal", "None", 0.5),
        more={"prompt": "a red circle\na blue star"},
    ),
    "sd-model-downloader": Work(tab="Model Downloader"),
    "sd-webui-3d-open-pose-editor": Work(tab="3D Openpose"),
    "sd-webui-agent-scheduler": Work(route="/agent-scheduler/v1/queue"),
    "sd-webui-ar": Work(element="txt2img_container_aspect_ratio"),
    "sd-webui-cd-tuner": Work(script="CD Tuner", args=(True, 5.0)),
    "sd-webui-controlnet": Work(route="/controlnet/version"),
    "sd-webui-cutoff": Work(
        script="Cutoff",
        args=(True, "red, blue", 0.9, True, True, "", "Lerp"),
        more={"prompt": "a red circle, a blue star"},
    ),
    "sd-webui-deforum": Work(tab="Deforum"),
    "sd-webui-detail-daemon": Work(
        script="Detail Daemon", args=(True, True, False, "both", 0.0, 1.0, 0.5, 1.0, 1.0, 0.0, 0.0, 0.0, True)
    ),
    "sd-webui-diffusion-cg": Work(script="Diffusion CG", args=(True, 1.0, 0.5)),
    "sd-webui-freeu": Work(script="FreeU", args=(True, 1.2, 1.4, 0.9, 0.2)),
    "sd-webui-incantations": Work(script="Incantations", args=(*[False] * 12, True, 5.0)),
    "sd-webui-infinite-image-browsing": Work(tab="Infinite image browsing", route="/infinite_image_browsing/hello"),
    "sd-webui-kohya-hiresfix": Work(script="Kohya Hires.fix", args=(True,)),
    "sd-webui-lobe-theme": Work(route="/lobe/package"),
    "sd-webui-model-converter": Work(tab="Model Converter"),
    "sd-webui-negpip": Work(script="NegPiP", args=(True,), more={"prompt": "a circle, (red:-1.5)"}),
    "sd-webui-neutral-prompt": Work(script="Neutral Prompt", args=(0.8,)),
    "sd-webui-photopea-embed": Work(tab="Photopea"),
    "sd-webui-prompt-all-in-one": Work(route="/physton_prompt/get_config"),
    "sd-webui-regional-prompter": Work(script="Regional Prompter", args=_REGIONS, more=_TWO),
    "sd-webui-resharpen": Work(script="ReSharpen", args=(True, 0.9, "Flat")),
    "sd-webui-segment-anything": Work(route="/sam/heartbeat"),
    "sd-webui-supermerger": Work(tab="SuperMerger"),
    "sd-webui-vectorscope-cc": Work(script="Vectorscope CC", args=(True, True, 4.0)),
    "sd_civitai_extension": Work(route="/civitai/v1/link-status"),
    "sd_webui_sag": Work(script="Self Attention Guidance", args=(True, 0.75, 0.3)),
    "stable-diffusion-webui-dataset-tag-editor": Work(tab="Dataset Tag Editor"),
    "stable-diffusion-webui-depthmap-script": Work(tab="Depth"),
    "stable-diffusion-webui-images-browser": Work(tab="Image Browser"),
    "stable-diffusion-webui-model-toolkit": Work(tab="Toolkit"),
    "stable-diffusion-webui-promptgen": Work(tab="Promptgen"),
    "stable-diffusion-webui-rembg": Work(route="/rembg"),
    "stable-diffusion-webui-tokenizer": Work(tab="Tokenizer"),
    "sd-webui-weight-helper": Work(route="/whapi/v1/get_metadata"),
    "stable-diffusion-webui-two-shot": Work(
        script="Latent Couple extension",
        args=(True, *_COUPLE),
        more={"prompt": "a red circle AND a blue star AND a green square"},
    ),
    "stable-diffusion-webui-civitai-helper": Work(tab="Civitai Helper"),
    "stable-diffusion-webui-wd14-tagger": Work(tab="Tagger", route="/tagger/v1/interrogators"),
    "styleselectorxl": Work(script="Style Selector for SDXL 1.0", args=(True, False, False, False, "Anime")),
}
