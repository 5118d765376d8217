"""What images of many programs and versions have in them, and what the form of txt2img must have after pasting them.

Written from the formats' facts, with names as users have them. `form` are values of the form, `said` are words of the
note; what neither names must be a setting's chip or a plain fact.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Pasted:
    """One image: its infotext, or the texts in its file."""

    name: str
    text: str = ""
    form: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    items: Mapping[str, str] = field(default_factory=dict)


TAIL = "CFG scale: 7, Seed: 1234567890, Size: 512x768, Model hash: 6ce0161689, Model: v1-5-pruned-emaonly"
MODEL = "Checkpoint 'v1-5-pruned-emaonly' is not here"
PLAIN = {"cfg_scale": 7, "seed": 1234567890, "width": 512, "height": 768}


def a1111(sampler: str, version: str, form: Mapping[str, Any], more: str = "", *said: str, prompt: str = "") -> Pasted:
    """An image of the reference UI, or of a program that writes as it does."""
    text = f"{prompt or 'a portrait of a woman, (detailed:1.2)'}\nNegative prompt: lowres, bad hands\nSteps: 25, "
    text += f"Sampler: {sampler}, {TAIL}{', ' if more else ''}{more}"
    text += f", Version: {version}" if version else ""
    return Pasted(f"{version or 'old'} {sampler} {more[:30]}", text, {"steps": 25, **PLAIN, **form}, (MODEL, *said))


def sampled(sampler: str, scheduler: str) -> dict[str, Any]:
    return {"sampler": sampler, "scheduler": scheduler}


HIRES = {"hires_enabled": True, "hires_scale": 2, "hires_denoising_strength": 0.55}
LATENT = "Upscaler '4x-UltraSharp' is not here: Latent is used."

OF_A1111 = [
    a1111("Euler a", "", sampled("Euler a", "Automatic")),
    a1111("k_euler_a", "", sampled("Euler a", "Automatic")),
    a1111("k_dpmpp_2m_ka", "", sampled("DPM++ 2M", "Karras")),
    a1111("DDIM", "", sampled("DDIM", "Automatic"), "Eta: 0.5"),
    a1111("PLMS", "", sampled("PLMS", "Automatic")),
    a1111("LMS Karras", "", sampled("LMS", "Karras")),
    a1111("DPM fast", "", sampled("DPM fast", "Automatic")),
    a1111("DPM adaptive", "", sampled("DPM adaptive", "Automatic")),
    a1111("DPM2 a Karras", "", sampled("DPM2 a", "Karras"), "ENSD: 31337"),
    a1111("DPM++ 2S a Karras", "", sampled("DPM++ 2S a", "Karras"), "Clip skip: 2, ENSD: 31337"),
    a1111("DPM++ SDE Karras", "v1.3.0", sampled("DPM++ SDE", "Karras"), "Token merging ratio: 0.5"),
    a1111("DPM++ 2M Karras", "v1.4.1", sampled("DPM++ 2M", "Karras"), "Clip skip: 2"),
    a1111("UniPC", "v1.5.1", sampled("UniPC", "Automatic"), "UniPC order: 2"),
    a1111("Heun", "v1.5.2", sampled("Heun", "Automatic"), "Sigma churn: 0.2"),
    a1111("DPM++ 2M SDE Exponential", "v1.6.0", sampled("DPM++ 2M SDE", "Exponential")),
    a1111("DPM++ 3M SDE Karras", "v1.6.0", sampled("DPM++ 3M SDE", "Karras"), "RNG: CPU"),
    a1111("DPM++ 2M SDE Heun Karras", "v1.6.1", sampled("DPM++ 2M SDE Heun", "Karras")),
    a1111("Restart", "v1.7.0", sampled("Restart", "Automatic"), "Schedule type: Automatic"),
    a1111("DPM++ 2M", "v1.7.0", sampled("DPM++ 2M", "Uniform"), "NGMS: 1.5"),
    a1111("LCM", "v1.8.0", sampled("LCM", "Automatic"), "Downcast alphas_cumprod: True"),
    a1111("DPM++ 2M", "v1.9.4", sampled("DPM++ 2M", "Automatic"), "Schedule type: Automatic"),
    a1111("DPM++ 2M", "v1.9.0", sampled("DPM++ 2M", "Karras"), "Schedule type: Karras"),
    a1111("Euler", "v1.10.1", sampled("Euler", "SGM Uniform"), "Schedule type: SGM Uniform, Emphasis: No norm"),
    a1111("DDIM CFG++", "v1.10.0", sampled("DDIM CFG++", "Automatic"), "Skip Early CFG: 0.1"),
    a1111(
        "DPM++ 2M Karras",
        "v1.6.0",
        {**sampled("DPM++ 2M", "Karras"), **HIRES, "hires_upscaler": "Latent", "hires_sampler": "Euler a"},
        "Denoising strength: 0.55, Hires upscale: 2, Hires sampler: Euler a, Hires upscaler: 4x-UltraSharp",
        LATENT,
    ),
    a1111(
        "Euler a",
        "v1.7.0",
        {
            **HIRES,
            "hires_sampler": "DPM++ 2M",
            "hires_scheduler": "Karras",
            "hires_steps": 12,
            "hires_upscaler": "Lanczos",
        },
        "Denoising strength: 0.55, Hires upscale: 2, Hires steps: 12, Hires upscaler: Lanczos, "
        "Hires sampler: DPM++ 2M Karras",
    ),
    a1111(
        "Euler a",
        "v1.8.0",
        {**HIRES, "hires_upscaler": "Latent", "hires_prompt": "fine, sharp"},
        'Denoising strength: 0.55, Hires upscale: 2, Hires upscaler: Latent, Hires prompt: "fine, sharp"',
    ),
    a1111(
        "Euler a",
        "v1.6.0",
        {"refiner_checkpoint": "None"},
        "Refiner: sd_xl_refiner_1.0 [7440042bbd], Refiner switch at: 0.8",
        "Checkpoint 'sd_xl_refiner_1.0 [7440042bbd]' is not here: no refiner is used",
    ),
    a1111(
        "DPM++ 2M Karras",
        "v1.6.0",
        {"prompt": "a cat <lora:add_detail:0.6> and <lora:balloon:1>"},
        'Lora hashes: "add_detail: 7c6bad76eb54, balloon: 012345678901", TI hashes: "easynegative: c74b4e810b03"',
        "LoRA 'add_detail' is not here: its tag stays, without",
        prompt="a cat <lora:add_detail:0.6> and <lora:balloon:1>",
    ),
    a1111(
        "DPM++ SDE Karras",
        "v1.5.1",
        {},
        'ControlNet 0: "Module: openpose_full, Model: control_v11p_sd15_openpose [cab727d4], Weight: 1", '
        'ControlNet 1: "Module: depth_midas, Model: control_v11f1p_sd15_depth"',
    ),
    a1111(
        "DPM++ 2M Karras",
        "v1.7.0",
        {},
        "ADetailer model: face_yolov8n.pt, ADetailer confidence: 0.3, ADetailer dilate erode: 4, "
        "ADetailer mask blur: 4, ADetailer denoising strength: 0.4, ADetailer inpaint only masked: True, "
        "ADetailer inpaint padding: 32, ADetailer version: 24.1.2",
        "ADetailer",
    ),
    a1111(
        "Euler a",
        "v1.4.0",
        {},
        "Dynamic thresholding enabled: True, Mimic scale: 7, Threshold percentile: 100",
        "no extension here takes it: Dynamic Thresholding",
    ),
    a1111(
        "Euler a",
        "",
        {},
        "AddNet Enabled: True, AddNet Module 1: LoRA, AddNet Model 1: koreanDoll(0a1b2c3d), AddNet Weight A 1: 0.5",
        "Additional Networks",
    ),
    a1111(
        "Euler a",
        "v1.6.0",
        {"subseed": 99, "subseed_strength": 0.25, "seed_resize_from_width": 512, "seed_resize_from_height": 512},
        "Variation seed: 99, Variation seed strength: 0.25, Seed resize from: 512x512",
    ),
    a1111("Euler a", "", {"hires_enabled": False}, "Denoising strength: 0.7, Mask blur: 4"),
    a1111(
        "Euler a",
        "",
        {"width": 384, "height": 640, "hires_enabled": False},
        "Denoising strength: 0.7, First pass size: 384x640",
    ),
    a1111("Euler a", "v1.2.1", {}, "Tiling: True, Face restoration: CodeFormer"),
    a1111("Res Multistep", "v1.10.1", sampled("DPM++ 2M", "Automatic"), "", "Sampler 'Res Multistep' is not here"),
    a1111("Euler", "v1.10.1", sampled("Euler", "Automatic"), "Schedule type: karas", "Did you mean 'Karras'?"),
    a1111("Eular a", "", sampled("DPM++ 2M", "Automatic"), "", "Did you mean 'Euler a'?"),
    a1111(
        "Euler a", "v1.8.0", {}, "FP8 weight: Enable for SDXL, Cache FP16 weight for LoRA: False, VAE: vae-ft.pt", "VAE"
    ),
]

FLUX = "Distilled CFG Scale: 3.5, Diffusion in Low Bits: Automatic (fp16 LoRA), Module 1: ae, Module 2: clip_l"
OF_FORGE = [
    a1111("DPM++ 2M SDE Karras", "f0.0.17v1.8.0rc-latest-276-g29be1da7", sampled("DPM++ 2M SDE", "Karras")),
    a1111("DPM++ 2M", "f0.0.17v1.8.0rc-latest-276-g29be1da7", sampled("DPM++ 2M", "Uniform")),
    a1111(
        "Euler",
        "f2.0.1v1.10.1-previous-636",
        {**sampled("Euler", "Simple"), "distilled_cfg_scale": 3.5},
        f"Schedule type: Simple, {FLUX}",
    ),
    a1111(
        "[Forge] Flux Realistic",
        "f2.0.1v1.10.1",
        sampled("DPM++ 2M", "Automatic"),
        "Schedule type: Automatic",
        "Sampler '[Forge] Flux Realistic' is not here",
    ),
    a1111(
        "DPM++ 2M", "f2.0.1v1.10.1", sampled("DPM++ 2M", "Automatic"), "Schedule type: Align Your Steps GITS", "GITS"
    ),
    a1111("Euler a", "neo", sampled("Euler a", "Beta"), "Schedule type: Beta, Shift: 3, RNG: CPU", "Shift"),
    a1111("DPM++ 2M CFG++", "neo", sampled("DPM++ 2M", "Automatic"), "freeu_enabled: True, freeu_b1: 1.01", "FreeU"),
    a1111("DPM2++ 2M", "0eb4a98e05", sampled("DPM++ 2M", "Automatic"), "Parser: Full parser, Backend: Diffusers"),
    a1111(
        "Euler a",
        "a1b2c3d",
        sampled("Euler a", "Automatic"),
        "App: SD.Next, Operations: txt2img, Pipeline: StableDiffusionXLPipeline, CFG rescale: 0.7, Sampler eta: 1",
        "CFG rescale",
    ),
]

COMFY = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            **{"seed": 156680208700286, "steps": 20, "cfg": 8, "sampler_name": "dpmpp_2m", "scheduler": "karras"},
            **{"denoise": 1, "model": ["10", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]},
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sub\\dreamshaper_8.safetensors"}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 640, "height": 384, "batch_size": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a glass bottle", "clip": ["10", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "text, watermark", "clip": ["10", 1]}},
    "10": {
        "class_type": "LoraLoader",
        "inputs": {
            **{"lora_name": "ink.safetensors", "strength_model": 0.8, "strength_clip": 1},
            **{"model": ["4", 0], "clip": ["4", 1]},
        },
    },
}
FLUX_GRAPH = {
    "1": {"class_type": "RandomNoise", "inputs": {"noise_seed": 42}},
    "2": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
    "3": {
        "class_type": "BasicScheduler",
        "inputs": {"scheduler": "simple", "steps": 8, "denoise": 1, "model": ["9", 0]},
    },
    "4": {"class_type": "BasicGuider", "inputs": {"model": ["9", 0], "conditioning": ["5", 0]}},
    "5": {"class_type": "FluxGuidance", "inputs": {"guidance": 3.5, "conditioning": ["6", 0]}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": ["8", 0], "clip": ["9", 1]}},
    "7": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 1024, "height": 768, "batch_size": 1}},
    "8": {"class_type": "PrimitiveString", "inputs": {"value": "a fox in the snow"}},
    "9": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux1-dev.safetensors"}},
    "10": {
        "class_type": "SamplerCustomAdvanced",
        "inputs": {
            **{"noise": ["1", 0], "guider": ["4", 0], "sampler": ["2", 0], "sigmas": ["3", 0]},
            "latent_image": ["7", 0],
        },
    },
    "11": {"class_type": "ControlNetApplyAdvanced", "inputs": {}},
}
WORKFLOW: dict[str, Any] = {
    "nodes": [
        {
            "id": 3,
            "type": "KSampler",
            "widgets_values": [77, "randomize", 30, 6.5, "euler_ancestral", "normal", 1],
            "inputs": [
                *(
                    {"name": "positive", "link": 1},
                    {"name": "negative", "link": 2},
                    {"name": "latent_image", "link": 3},
                ),
                {"name": "model", "link": None},
            ],
        },
        {
            "id": 6,
            "type": "CLIPTextEncode",
            "widgets_values": ["a lighthouse"],
            "inputs": [{"name": "clip", "link": 9}],
        },
        {"id": 7, "type": "CLIPTextEncode", "widgets_values": ["blurry"]},
        {"id": 5, "type": "EmptyLatentImage", "widgets_values": [512, 320, 1]},
        {"id": 8, "type": "Note", "widgets_values": ["<b>hello</b>"]},
    ],
    "links": [[1, 6, 0, 3, 1, "CONDITIONING"], [2, 7, 0, 3, 2, "CONDITIONING"], [3, 5, 0, 3, 3, "LATENT"]],
    "version": 0.4,
}
OF_COMFYUI = [
    Pasted(
        "ComfyUI KSampler",
        items={"prompt": json.dumps(COMFY), "workflow": json.dumps({"nodes": [], "links": []})},
        form={
            **{
                "prompt": "a glass bottle <lora:ink:0.8>",
                "negative_prompt": "text, watermark",
                "steps": 20,
                "width": 640,
            },
            **{"seed": 156680208700286, "cfg_scale": 8, "height": 384, **sampled("DPM++ 2M", "Karras")},
        },
        said=("Checkpoint 'dreamshaper_8' is not here", "LoRA 'ink' is not here"),
    ),
    Pasted(
        "ComfyUI Flux",
        items={"prompt": json.dumps(FLUX_GRAPH)},
        form={
            "prompt": "a fox in the snow",
            "seed": 42,
            "steps": 8,
            "width": 1024,
            **sampled("Euler", "Simple"),
            "distilled_cfg_scale": 3.5,
        },
        said=("Checkpoint 'flux1-dev' is not here", "ComfyUI node ControlNetApplyAdvanced"),
    ),
    Pasted(
        "ComfyUI workflow",
        items={"workflow": json.dumps(WORKFLOW)},
        form={
            **{"prompt": "a lighthouse", "negative_prompt": "blurry", "seed": 77, "steps": 30, "cfg_scale": 6.5},
            **{"width": 512, "height": 320, **sampled("Euler a", "Normal")},
        },
    ),
    Pasted(
        "ComfyUI pasted as text", json.dumps(COMFY, indent=2), {"prompt": "a glass bottle <lora:ink:0.8>", "steps": 20}
    ),
]


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


SAMPLED = {"positive": ["1", 1], "negative": ["1", 2], "latent_image": ["1", 3], "model": ["1", 0]}
EFFICIENT = {
    "1": node(
        "Efficient Loader",
        **{"ckpt_name": "x.safetensors", "vae_name": "Baked VAE", "lora_name": "None", "positive": "a happy dog"},
        **{"negative": "cat", "empty_latent_width": 640, "empty_latent_height": 512},
    ),
    "2": node("KSampler (Efficient)", seed=9, steps=22, cfg=7, sampler_name="euler", scheduler="karras", **SAMPLED),
}
TOLD = {"width": 4096, "height": 4096, "target_width": 4096, "target_height": 4096}
TWO_ENCODERS = {
    "2": node("CLIPTextEncodeSDXL", text_g="a castle", text_l="oil painting", **TOLD),
    "3": node("CLIPTextEncodeSDXL", text_g="ugly", text_l="ugly", **TOLD),
    "4": node("EmptyLatentImage", width=1216, height=832, batch_size=2),
    "5": node(
        "KSampler",
        **{"seed": ["9", 0], "steps": 30, "cfg": 6.5, "sampler_name": "dpmpp_2m_sde_gpu", "scheduler": "exponential"},
        **{"positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0]},
    ),
    "9": node("PrimitiveInt", value=1234),
}
FLUX_ENCODER = {
    **{name: FLUX_GRAPH[name] for name in ("1", "2", "3", "4", "7", "9", "10")},
    "5": node("CLIPTextEncodeFlux", clip_l="a fox", t5xxl="a red fox in deep snow", guidance=4, clip=["9", 1]),
}
JOINED = {
    **COMFY,
    "6": node("CLIPTextEncode", text=["20", 0], clip=["10", 1]),
    "20": node("StringConcatenate", string_a=["21", 0], string_b="green glass", delimiter=", "),
    "21": node("Text Concatenate", text_a="a bottle", text_b=["22", 0], text_c="", delimiter=" "),
    "22": node("PrimitiveString", value="of old"),
}
REROUTED = {
    **WORKFLOW,
    "nodes": [*WORKFLOW["nodes"], {"id": 9, "type": "Reroute", "inputs": [{"name": "", "link": 4}]}],
    "links": [[1, 9, 0, 3, 1, "*"], [4, 6, 0, 9, 0, "*"], *WORKFLOW["links"][1:]],
}
OF_COMFYUI += [
    Pasted(
        "ComfyUI, a loader with prompts",
        json.dumps(EFFICIENT),
        {"prompt": "a happy dog", "negative_prompt": "cat", "width": 640, "height": 512},
    ),
    Pasted(
        "ComfyUI, two encoders",
        json.dumps(TWO_ENCODERS),
        {"prompt": "a castle", "width": 1216, "height": 832, "seed": 1234, **sampled("DPM++ 2M SDE", "Exponential")},
        ("ComfyUI text_l",),
    ),
    Pasted(
        "ComfyUI, Flux's encoder",
        json.dumps(FLUX_ENCODER),
        {"prompt": "a red fox in deep snow", "negative_prompt": "", "distilled_cfg_scale": 4, "width": 1024},
        ("ComfyUI clip_l",),
    ),
    Pasted(
        "ComfyUI, texts that are joined", json.dumps(JOINED), {"prompt": "a bottle of old, green glass <lora:ink:0.8>"}
    ),
    Pasted("ComfyUI, a reroute", json.dumps(REROUTED), {"prompt": "a lighthouse", "negative_prompt": "blurry"}),
]

INVOKE = {
    **{"generation_mode": "sdxl_txt2img", "positive_prompt": "a barn", "negative_prompt": "fog", "width": 1024},
    **{"height": 832, "seed": 99, "rand_device": "cpu", "cfg_scale": 5.5, "cfg_rescale_multiplier": 0, "steps": 30},
    **{"scheduler": "dpmpp_2m_sde_k", "model": {"name": "juggernaut-xl", "base": "sdxl", "type": "main"}},
    **{"loras": [{"model": {"name": "barns"}, "weight": 0.75}], "controlnets": [{"image": 1}], "app_version": "4.2.0"},
}
INVOKE_2: dict[str, Any] = {
    **{"model": "stable diffusion", "model_weights": "sd-1.5", "app_version": "v2.3.5"},
    "image": {
        **{"prompt": [{"prompt": "a tree [leaves]", "weight": 1}], "steps": 50, "cfg_scale": 7.5, "height": 512},
        **{"width": 512, "seed": 5, "sampler": "k_lms", "type": "txt2img"},
    },
}
OF_INVOKEAI = [
    Pasted(
        "InvokeAI 4",
        items={"invokeai_metadata": json.dumps(INVOKE)},
        form={
            **{
                "prompt": "a barn <lora:barns:0.75>",
                "negative_prompt": "fog",
                "steps": 30,
                "cfg_scale": 5.5,
                "seed": 99,
            },
            **{"width": 1024, "height": 832, **sampled("DPM++ 2M SDE", "Karras")},
        },
        said=("Checkpoint 'juggernaut-xl' is not here", "LoRA 'barns' is not here", "ControlNet"),
    ),
    Pasted(
        "InvokeAI 3",
        json.dumps({**INVOKE, "scheduler": "euler_a", "loras": [], "model": {"model_name": "old"}, "clip_skip": 1}),
        {"prompt": "a barn", **sampled("Euler a", "Automatic")},
        ("Checkpoint 'old'", "ControlNet"),
    ),
    Pasted(
        "InvokeAI 2",
        items={"sd-metadata": json.dumps(INVOKE_2), "Dream": '"a tree [leaves]" -s 50 -S 5'},
        form={"prompt": "a tree", "negative_prompt": "leaves", "steps": 50, "seed": 5, **sampled("LMS", "Automatic")},
        said=("Checkpoint 'sd-1.5' is not here",),
    ),
    Pasted(
        "InvokeAI 1",
        items={"Dream": '"a tree [leaves]" -s 50 -S 5 -W 512 -H 448 -C 7.5 -A k_euler_a'},
        form={"prompt": "a tree", "steps": 50, "seed": 5, "height": 448, **sampled("Euler a", "Automatic")},
    ),
]

FOOOCUS = {
    **{"adm_guidance": "(1.5, 0.8, 0.3)", "base_model": "juggernautXL_v8Rundiffusion", "clip_skip": 2},
    **{"base_model_hash": "aeb7e9e689", "full_prompt": ["a dog", "cinematic"], "guidance_scale": 4, "seed": "88"},
    **{"loras": [["offset_example", 0.1, "4852686128"]], "metadata_scheme": "fooocus", "negative_prompt": "ugly"},
    **{"performance": "Speed", "prompt": "a dog", "refiner_model": "None", "refiner_switch": 0.5, "steps": 30},
    **{"resolution": "(1152, 896)", "sampler": "dpmpp_2m_sde_gpu", "scheduler": "karras", "sharpness": 2},
    **{"styles": "['Fooocus V2', 'Fooocus Enhance']", "vae": "Default (model)", "version": "Fooocus v2.4.3"},
}
FOOOCUS_LOG = {
    **{"Prompt": "a dog", "Negative Prompt": "", "Fooocus V2 Expansion": "a dog, sharp", "Styles": "['Fooocus V2']"},
    **{"Performance": "Extreme Speed", "Resolution": "(896, 1152)", "Sharpness": 2, "Guidance Scale": 4},
    **{"Base Model": "juggernautXL_v6.safetensors", "Refiner Model": "sd_refiner.safetensors", "Refiner Switch": 0.5},
    **{"Sampler": "lcm", "Scheduler": "sgm_uniform", "Seed": 3, "LoRA 1": "offset.safetensors : 0.5"},
}
OF_OTHERS = [
    Pasted(
        "Fooocus",
        json.dumps(FOOOCUS),
        {
            **{"prompt": "a dog <lora:offset_example:0.1>", "negative_prompt": "ugly", "steps": 30, "cfg_scale": 4},
            **{"seed": 88, "width": 1152, "height": 896, **sampled("DPM++ 2M SDE", "Karras")},
        },
        ("Checkpoint 'juggernautXL_v8Rundiffusion'", "LoRA 'offset_example'", "sharpness", "styles"),
    ),
    Pasted(
        "Fooocus, older",
        items={"parameters": json.dumps(FOOOCUS_LOG)},
        form={"steps": 8, "width": 896, "prompt": "a dog <lora:offset:0.5>", **sampled("LCM", "SGM Uniform")},
        said=("Checkpoint 'juggernautXL_v6'", "Checkpoint 'sd_refiner' is not here: no refiner"),
    ),
    Pasted(
        "Fooocus as a1111",
        "a dog\nNegative prompt: ugly\nSteps: 30, Sampler: DPM++ 2M SDE Karras, Seed: 88, Size: 1152x896, "
        'CFG scale: 4, Sharpness: 2, ADM Guidance: "(1.5, 0.8, 0.3)", Performance: Speed, Scheduler: karras, '
        "Model: jugger, "
        "Model hash: aeb7e9e689, Version: Fooocus v2.4.3",
        {"steps": 30, "seed": 88, "width": 1152, **sampled("DPM++ 2M SDE", "Karras")},
        ("Sharpness", "ADM Guidance", "Checkpoint 'jugger'"),
    ),
    Pasted(
        "NovelAI 3",
        items={
            **{"Software": "NovelAI", "Description": "1girl, rain", "Source": "Stable Diffusion XL C1E1DE52"},
            "Comment": json.dumps(
                {
                    **{"prompt": "1girl, rain", "steps": 28, "height": 32, "width": 64, "scale": 5.0, "seed": 7},
                    **{"sampler": "k_dpmpp_2m", "noise_schedule": "karras", "uc": "lowres", "sm": False},
                }
            ),
        },
        form={"prompt": "1girl, rain", "negative_prompt": "lowres", "steps": 28, **sampled("DPM++ 2M", "Karras")},
    ),
    Pasted(
        "Draw Things",
        items={
            "XML:com.adobe.xmp": "<x:xmpmeta><exif:UserComment><rdf:Alt><rdf:li xml:lang='x-default'>"
            "{&quot;c&quot;:&quot;a boat&quot;,&quot;uc&quot;:&quot;rain&quot;,&quot;steps&quot;:24,"
            "&quot;scale&quot;:6,&quot;seed&quot;:11,&quot;sampler&quot;:&quot;DPM++ 2M Karras&quot;,"
            "&quot;size&quot;:&quot;512x640&quot;,"
            "&quot;model&quot;:&quot;sd_v1.5_f16.ckpt&quot;,&quot;strength&quot;:1,&quot;shift&quot;:3}"
            "</rdf:li></rdf:Alt></exif:UserComment></x:xmpmeta>"
        },
        form={
            "prompt": "a boat",
            "negative_prompt": "rain",
            "seed": 11,
            "height": 640,
            **sampled("DPM++ 2M", "Karras"),
        },
        said=("Checkpoint 'sd_v1.5_f16'", "shift"),
    ),
    Pasted(
        "Draw Things AYS",
        json.dumps(
            {"c": "x", "uc": "", "steps": 8, "scale": 1, "seed": 1, "sampler": "Euler A Trailing", "size": "64x64"}
        ),
        {"prompt": "x", **sampled("Euler a", "SGM Uniform")},
    ),
    Pasted(
        "SwarmUI",
        json.dumps(
            {
                "sui_image_params": {
                    **{"prompt": "a hill", "negativeprompt": "", "model": "x.safetensors", "seed": 4, "steps": 20},
                    **{"cfgscale": 7, "width": 768, "height": 512, "sampler": "dpmpp_sde", "scheduler": "karras"},
                    **{"loras": ["ink"], "loraweights": ["0.5"], "swarm_version": "0.9.2"},
                }
            }
        ),
        {"prompt": "a hill <lora:ink:0.5>", "width": 768, **sampled("DPM++ SDE", "Karras")},
        ("Checkpoint 'x'", "LoRA 'ink'"),
    ),
]
OF_OTHERS += [
    Pasted(
        "Fooocus as a1111, in its words",
        "a bear, cinematic\nNegative prompt: ugly\nSteps: 30, Sampler: DPM++ 2M SDE Karras, Seed: 88, Size: 1152x896, "
        'CFG scale: 4, Sharpness: 2, ADM Guidance: "(1.5, 0.8, 0.3)", Base Model: jugger, Base Model Hash: aeb7e9e689, '
        "Performance: Speed, Scheduler: karras, VAE: Default (model), Raw prompt: a bear, "
        'Lora hashes: "offset_1.0: 4852686128", Lora weights: "offset_1.0: 0.1", Version: Fooocus v2.5.5',
        {"prompt": "a bear, cinematic <lora:offset_1.0:0.1>", **sampled("DPM++ 2M SDE", "Karras")},
        ("Checkpoint 'jugger'", "LoRA 'offset_1.0'", "Sharpness", "Performance"),
    ),
    Pasted(
        "NovelAI 4",
        items={
            **{"Software": "NovelAI", "Description": "1girl, sunset", "Source": "NovelAI Diffusion V4.5 4BDE2A90"},
            "Comment": json.dumps(
                {
                    **{"steps": 28, "scale": 5.0, "seed": 1, "sampler": "k_euler_ancestral", "uc": "lowres"},
                    **{"cfg_rescale": 0.2, "v4_prompt": {"caption": {"char_captions": [{"char_caption": "a, b"}]}}},
                }
            ),
        },
        form={"prompt": "1girl, sunset", **sampled("Euler a", "Automatic")},
        said=("CFG rescale", "Character prompts"),
    ),
    Pasted(
        "Draw Things as text",
        "a boat\nNegative prompt: rain\nSteps: 24, Sampler: DPM++ 2M AYS, Guidance Scale: 6.0, Seed: 11, "
        "Size: 512x640, Model: sd_v1.5_f16.ckpt, Strength: 1.0, Seed Mode: Scale Alike, Shift: 3.0",
        {"prompt": "a boat", "cfg_scale": 6, "seed": 11, **sampled("DPM++ 2M", "Align Your Steps")},
        ("Seed Mode", "Shift"),
    ),
    Pasted(
        "InvokeAI 2, second order",
        json.dumps({**INVOKE_2, "image": {**INVOKE_2["image"], "sampler": "k_dpmpp_2"}}),
        {"prompt": "a tree", **sampled("DPM++ 2M", "Automatic")},
    ),
]
GUIDED = {"scheduler": "euler", "steps": 30, "seed": 77, "width": 1024, "height": 1024}
OF_LATER = [
    a1111(
        "DPM++ 2M Karras",
        "",
        {**sampled("DPM++ 2M", "Karras"), "prompt": "a knight"},
        "Clip skip: 2, Created Date: 2024-08-11T1204:13.8Z, Civitai resources: "
        '[{"type":"checkpoint","modelVersionId":128713},{"type":"lora","weight":0.8,"modelVersionId":62833}], '
        'Civitai metadata: {"remixOfId":1}',
        prompt="a knight",
    ),
    a1111(
        "Euler a",
        "v1.9.3",
        {"hires_enabled": False},
        "Denoising strength: 0.35, Ultimate SD upscale upscaler: 4x-UltraSharp, Ultimate SD upscale tile_width: "
        "512, "
        "Ultimate SD upscale tile_height: 512, Ultimate SD upscale mask_blur: 8, Ultimate SD upscale padding: 32",
        "Ultimate SD Upscale",
    ),
    a1111(
        "DPM++ 2M SDE Karras",
        "v1.6.0",
        sampled("DPM++ 2M SDE", "Karras"),
        'Tiled Diffusion: {"Method": "MultiDiffusion", "Tile tile width": 96, "Tile tile height": 96, "Tile '
        'Overlap": 48, '
        '"Upscaler": "None", "Scale factor": 2, "Keep input size": true}, Tiled VAE: true',
        "Tiled Diffusion",
    ),
    a1111(
        "Euler a",
        "v1.7.0",
        {},
        "RP Active: True, RP Divide mode: Matrix, RP Matrix submode: Horizontal, RP Mask submode: Mask, RP "
        "Prompt submode: "
        'Prompt, RP Calc Mode: Attention, RP Ratios: "1,1", RP Base Ratios: 0.2, RP Use Base: False, RP LoRA '
        "Stop Step: 0",
        "Regional Prompter",
    ),
    a1111(
        "Euler a",
        "f2.0.1v1.10.1",
        {},
        "Schedule type: Automatic, forge_couple: True, forge_couple_compatibility: True, forge_couple_mode: Basic, "
        "forge_couple_separator: , forge_couple_direction: Horizontal, forge_couple_global_effect: First Line",
        "Latent Couple",
    ),
    a1111(
        "DPM++ 2M",
        "f1.0.0v2-v1.10.1RC-latest-1",
        sampled("DPM++ 2M", "Karras"),
        "Schedule type: Karras, PAG Active: True, PAG SANF: False, PAG Guidance Scale: 3, PAG Start Step: 0, "
        "PAG End Step: 150, "
        "RescaleCFG: 0.7, CADS Active: True, CADS Rescale CFG: 0",
        "Perturbed-Attention Guidance",
        "RescaleCFG",
    ),
    a1111(
        "Euler",
        "neo",
        sampled("Euler", "Simple"),
        "Schedule type: Simple, Shift: 3.1, Module 1: qwen_image_vae, Module 2: qwen_2.5_vl_7b_fp8_scaled, "
        "Batch size: 2",
        "Shift",
    ),
    a1111(
        "Euler",
        "f2.0.1v1.10.1-previous-669",
        {**HIRES, **sampled("Euler", "Beta"), "hires_scheduler": "Simple"},
        "Schedule type: Beta, Distilled CFG Scale: 3.5, Denoising strength: 0.55, Hires Module 1: Use same "
        "choices, Hires CFG "
        "Scale: 4, Hires Distilled CFG Scale: 3, Hires schedule type: Simple, Hires upscale: 2, Hires upscaler: "
        "Latent",
    ),
    a1111(
        "Euler a",
        "v1.2.0",
        {"prompt": "a girl<hypernet:anime_3:0.5>"},
        "Hypernet: anime_3, Hypernet strength: 0.5",
        prompt="a girl",
    ),
    a1111("Euler a", "v1.5.0", {}, "Image CFG scale: 1.5, Conditional mask weight: 0.5, Denoising strength: 0.6"),
    a1111(
        "DPM++ 2M Karras",
        "v1.8.0",
        {},
        "Denoising strength: 0.75, Mask blur: 4, Inpaint area: Only masked, Masked area padding: 32, Soft "
        "inpainting enabled: "
        "True, Soft inpainting schedule bias: 1, Soft inpainting preservation strength: 0.5, Soft inpainting "
        "transition "
        "contrast boost: 4, Soft inpainting mask influence: 0, Soft inpainting difference threshold: 0.5",
        "Soft inpainting",
    ),
    a1111(
        "DPM++ 2M Karras",
        "v1.6.1",
        {},
        "Postprocess upscale by: 2, Postprocess upscaler: R-ESRGAN 4x+, Postprocess GFPGAN visibility: 0.5",
        "Postprocess",
    ),
    a1111(
        "DPM++ 2M SDE Karras",
        "v1.6.0",
        {"prompt": "1girl <lora:ink:0.8:lbw=MIDD:stop=12>"},
        'Lora hashes: "ink: 7c6bad76eb54", Wildcard prompt: "1girl __inks__", NegPiP Active: True, Template: "a, b"',
        "LoRA 'ink'",
        "Dynamic Prompts",
        "NegPiP",
        prompt="1girl <lora:ink:0.8:lbw=MIDD:stop=12>",
    ),
    a1111(
        "dpmpp_2m_karras",
        "ComfyUI",
        sampled("DPM++ 2M", "Karras"),
        'Hashes: {"model": "6ce0161689"}, Batch index: 0, Batch size: 1',
        "Batch index",
    ),
    a1111(
        "dpmpp_sde", "ComfyUI", sampled("DPM++ SDE", "Exponential"), "Scheduler: exponential, Denoise: 1.0", "Denoise"
    ),
    a1111(
        "Default",
        "2f5c0e2",
        sampled("DPM++ 2M", "Automatic"),
        "App: SD.Next, Pipeline: StableDiffusionPipeline, Operations: hires, Sampler options: karras, Guidance "
        "end: 1.0",
        "Sampler 'Default' is not here",
        "Guidance end",
    ),
    Pasted(
        "InvokeAI 5, FLUX",
        items={
            "invokeai_metadata": json.dumps(
                {
                    **{"app_version": "5.6.0", "generation_mode": "flux_txt2img", "positive_prompt": "a lighthouse"},
                    **{**GUIDED, "guidance": 3.5, "positive_style_prompt": "", "rand_device": "cpu"},
                    "model": {"key": "a", "hash": "blake3:b", "name": "FLUX Dev (Quantized)", "base": "flux"},
                    "vae": {"key": "c", "hash": "blake3:d", "name": "FLUX.1-schnell_ae", "base": "flux", "type": "vae"},
                    "t5_encoder": {"key": "e", "name": "t5_bnb_int8", "base": "any", "type": "t5_encoder"},
                }
            )
        },
        form={"prompt": "a lighthouse", "steps": 30, "seed": 77, "width": 1024, "distilled_cfg_scale": 3.5},
        said=("Checkpoint 'FLUX Dev (Quantized)'",),
    ),
    Pasted(
        "RuinedFooocus",
        items={
            "parameters": json.dumps(
                {
                    **{"Prompt": "a robot", "Negative": "blurry", "steps": 30, "cfg": 8, "width": 1152, "height": 896},
                    **{"seed": 5, "sampler_name": "dpmpp_2m_sde_gpu", "scheduler": "karras", "denoise": None},
                    **{"base_model_name": "sdxl.safetensors", "loras": [["", "ink.safetensors - 0.5"]]},
                    **{"base_model_hash": "e6bb9ea85b", "clip_skip": 2, "software": "RuinedFooocus"},
                }
            )
        },
        form={"prompt": "a robot <lora:ink:0.5>", "seed": 5, **sampled("DPM++ 2M SDE", "Karras")},
        said=("Checkpoint 'sdxl'",),
    ),
    Pasted(
        "NovelAI 1",
        items={
            **{"Software": "NovelAI", "Description": "a shrine, rain", "Source": "Stable Diffusion 1D44365E"},
            "Comment": json.dumps(
                {"steps": 28, "sampler": "k_dpmpp_2s_ancestral", "seed": 3, "noise": 0.2, "scale": 11.0}
            ),
        },
        form={"prompt": "a shrine, rain", "cfg_scale": 11, **sampled("DPM++ 2S a", "Automatic")},
    ),
    Pasted(
        "SwarmUI with a second pass",
        json.dumps(
            {
                "sui_image_params": {
                    **{"prompt": "a hill", "model": "flux1-dev", "seed": 4, "steps": 20, "cfgscale": 1.0},
                    **{"width": 832, "height": 1216, "sampler": "euler", "scheduler": "simple"},
                    "fluxguidancescale": 3.0,
                    **{"refinercontrolpercentage": 0.2, "refinerupscale": 1.5, "automaticvae": True},
                    **{"swarm_version": "0.9.5", "date": "2025-01-02"},
                },
                "sui_extra_data": {"date": "2025-01-02", "generation_time": "1.2 (prep) and 8.5 (gen) seconds"},
            }
        ),
        {"prompt": "a hill", "width": 832, "distilled_cfg_scale": 3, **sampled("Euler", "Simple")},
        ("Checkpoint 'flux1-dev'",),
    ),
    Pasted(
        "Easy Diffusion",
        items={
            **{"prompt": "a pond", "negative_prompt": "fog", "seed": "9", "num_inference_steps": "25", "width": "512"},
            **{"height": "640", "guidance_scale": "7.5", "sampler_name": "dpmpp_2m", "clip_skip": "False"},
            **{"use_stable_diffusion_model": "sd-v1-5", "use_lora_model": "ink", "lora_alpha": "0.5"},
        },
        form={"prompt": "a pond <lora:ink:0.5>", "seed": 9, **sampled("DPM++ 2M", "Automatic")},
        said=("Checkpoint 'sd-v1-5'",),
    ),
]
IMAGES = [*OF_A1111, *OF_FORGE, *OF_COMFYUI, *OF_INVOKEAI, *OF_OTHERS, *OF_LATER]
