"""Examples of replies, as OpenAPI shows them. A test holds the shapes of what is really answered against them."""

from typing import Any

MODEL_HASH = "5fe1d58aba7e5a7cc64cc0ea1e0a1d1f4f0a1f6b7ec9ab6e1d2a6a0f4f6f3c11"
INFOTEXT = (
    "a large red circle on a blue background\nNegative prompt: blurry\nSteps: 20, Sampler: DPM++ 2M, "
    "Schedule type: Karras, CFG scale: 7.0, Seed: 1, Size: 128x128, Model hash: 5fe1d58aba, "
    "Model: featherweight-scenes, Version: featherweight-0.1.0"
)
PNG = "iVBORw0KGgoAAAANSUhEUgAA..."
DATA_URI = f"data:image/png;base64,{PNG}"
TASK = "task(abc)"
MODEL_FILE = "models/Stable-diffusion/featherweight-scenes.safetensors"

TXT2IMG: dict[str, Any] = {
    "images": [PNG],
    "parameters": {"prompt": "a large red circle on a blue background", "steps": 20, "seed": 1},
    "info": '{"prompt": "a large red circle on a blue background", "seed": 1, "all_seeds": [1], "infotexts": ["..."]}',
}
PNG_INFO: dict[str, Any] = {
    "info": INFOTEXT,
    "items": {"parameters": INFOTEXT},
    "parameters": {"Prompt": "a large red circle on a blue background", "Steps": "20", "Seed": "1"},
}
PROGRESS: dict[str, Any] = {
    "progress": 0.35,
    "eta_relative": 2.4,
    "state": {
        "skipped": False,
        "interrupted": False,
        "stopping_generation": False,
        "job": TASK,
        "job_count": 1,
        "job_timestamp": "20260101120000",
        "job_no": 0,
        "sampling_step": 7,
        "sampling_steps": 20,
    },
    "current_image": PNG,
    "textinfo": "sampling",
}
TASK_PROGRESS: dict[str, Any] = {
    "active": True,
    "queued": False,
    "completed": False,
    "progress": 0.35,
    "eta": 2.4,
    "live_preview": DATA_URI,
    "id_live_preview": 3,
    "textinfo": "sampling",
    "step": 7,
    "steps": 20,
    "error": None,
}
PENDING_TASKS: dict[str, Any] = {"size": 2, "tasks": [TASK, "task(def)"]}

OPTIONS: dict[str, Any] = {
    "sd_model_checkpoint": "featherweight-scenes.safetensors [5fe1d58aba]",
    "samples_format": "png",
    "CLIP_stop_at_last_layers": 1,
}
FLAGS: dict[str, Any] = {"listen": False, "port": "7860", "api_auth": "(hidden)", "no_half": False}

MODELS: list[dict[str, Any]] = [
    {
        "title": "featherweight-scenes.safetensors [5fe1d58aba]",
        "model_name": "featherweight-scenes",
        "hash": MODEL_HASH[:10],
        "sha256": MODEL_HASH,
        "filename": MODEL_FILE,
        "config": MODEL_FILE.replace(".safetensors", ".yaml"),
    }
]
VAES: list[dict[str, Any]] = [{"model_name": "vae-ft-mse.safetensors", "filename": "models/VAE/vae-ft-mse.safetensors"}]
SAMPLERS: list[dict[str, Any]] = [
    {"name": "DPM++ 2M", "aliases": ["k_dpmpp_2m"], "options": {"scheduler": "karras"}},
    {"name": "Euler", "aliases": ["k_euler"], "options": {}},
]
SCHEDULERS: list[dict[str, Any]] = [
    {"name": "karras", "label": "Karras", "aliases": None, "default_rho": 7.0, "need_inner_model": False}
]
UPSCALERS: list[dict[str, Any]] = [
    {"name": "Lanczos", "model_name": None, "model_path": None, "model_url": None, "scale": 4},
    {
        "name": "4x-UltraSharp",
        "model_name": "4x-UltraSharp",
        "model_path": "models/ESRGAN/4x-UltraSharp.pth",
        "model_url": None,
        "scale": 4,
    },
]
REALESRGAN: list[dict[str, Any]] = [
    {"name": "RealESRGAN_x4plus", "path": "models/RealESRGAN/RealESRGAN_x4plus.pth", "scale": 4}
]
LATENT_MODES: list[dict[str, Any]] = [{"name": "Latent"}, {"name": "Latent (antialiased)"}]
STYLES: list[dict[str, Any]] = [{"name": "oil", "prompt": "{prompt}, oil painting", "negative_prompt": "photo"}]
HYPERNETWORKS: list[dict[str, Any]] = [{"name": "portrait", "path": "models/hypernetworks/portrait.pt"}]
EMBEDDINGS: dict[str, Any] = {
    "loaded": {
        "bad-hands": {"step": 1500, "sd_checkpoint": None, "sd_checkpoint_name": None, "shape": 768, "vectors": 4}
    },
    "skipped": {"style-xl": {"reason": "its vectors are 1280 wide, the model takes 768"}},
}
SCRIPTS: dict[str, Any] = {"txt2img": ["x/y/z plot"], "img2img": []}
SCRIPT_INFO: list[dict[str, Any]] = [
    {
        "name": "x/y/z plot",
        "is_alwayson": False,
        "is_img2img": False,
        "args": [
            {
                "label": "X type",
                "value": 1,
                "minimum": None,
                "maximum": None,
                "step": None,
                "choices": ["Nothing", "Seed", "Steps"],
            }
        ],
    }
]
MEMORY: dict[str, Any] = {
    "ram": {"free": 8_500_000_000, "used": 1_200_000_000, "total": 16_000_000_000},
    "cuda": {"error": "unavailable"},
}

ENGINE: dict[str, Any] = {
    "state": "ready",
    "message": "",
    "line": "SD 1.x · 1.07 B parameters · fp8 row · 1.1 GB · cuda:0",
    "pending": "",
    "facts": "model.safetensors [abcdef0123]\nin fp16 it would take 2.1 GB",
    "hashing": "",
    "size": 512,
    "switch_seconds": 2.31,
    "settings": {"show_progressbar": True, "live_preview_refresh_period": 1000},
}
TOKEN_COUNT: dict[str, Any] = {"text": "9/75", "count": 9, "limit": 75}
RESULT: dict[str, Any] = {
    "task": TASK,
    "status": "completed",
    "error": None,
    "notices": [],
    "seconds": 2.7,
    "images": [
        {
            "url": "internal/image?id_task=task(abc)&index=0&n=1",
            "infotext": INFOTEXT,
            "seed": 1,
            "subseed": 4_026_814_293,
            "kind": "sample",
            "width": 128,
            "height": 128,
            "path": "outputs/txt2img-images/2026-01-01/00000-1.png",
        }
    ],
    "retention": {"retention": 0.998, "noise": 0.01, "worst": [["down_blocks.0", 0.99]], "networks": [["ink", 0.998]]},
}
SAVED_IMAGE: dict[str, Any] = {"path": "log/images/00000-1.png"}
OPENED_FOLDER: dict[str, Any] = {"folder": "outputs/txt2img-images/2026-01-01", "opened": True}
