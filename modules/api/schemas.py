"""Bodies of requests, with the reference UI's field names. Unknown fields are tolerated: clients send many."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

EXAMPLE: dict[str, Any] = {
    "prompt": "a large red circle on a blue background",
    "negative_prompt": "blurry",
    "steps": 20,
    "sampler_name": "DPM++ 2M",
    "scheduler": "Karras",
    "width": 128,
    "height": 128,
    "cfg_scale": 7,
    "seed": 1,
}


class Tolerant(BaseModel):
    """A body whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class Txt2ImgBody(Tolerant):
    """POST /sdapi/v1/txt2img. A field that is null or left out has its default."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), json_schema_extra={"example": EXAMPLE})

    prompt: str | None = ""
    negative_prompt: str | None = ""
    styles: list[str] | None = None
    seed: int | None = -1
    subseed: int | None = -1
    subseed_strength: float | None = 0.0
    seed_resize_from_h: int | None = -1
    seed_resize_from_w: int | None = -1
    sampler_name: str | None = None
    scheduler: str | None = None
    batch_size: int | None = 1
    n_iter: int | None = 1
    steps: int | None = 50
    cfg_scale: float | None = 7.0
    width: int | None = 512
    height: int | None = 512
    restore_faces: bool | None = None
    tiling: bool | None = None
    do_not_save_samples: bool | None = False
    do_not_save_grid: bool | None = False
    eta: float | None = None
    denoising_strength: float | None = None
    s_min_uncond: float | None = None
    s_churn: float | None = None
    s_tmax: float | None = None
    s_tmin: float | None = None
    s_noise: float | None = None
    override_settings: dict[str, Any] | None = None
    override_settings_restore_afterwards: bool | None = True
    refiner_checkpoint: str | None = None
    refiner_switch_at: float | None = 0.8
    disable_extra_networks: bool | None = False
    comments: dict[str, Any] | None = None
    enable_hr: bool | None = False
    firstphase_width: int | None = 0
    firstphase_height: int | None = 0
    hr_scale: float | None = 2.0
    hr_upscaler: str | None = None
    hr_second_pass_steps: int | None = 0
    hr_resize_x: int | None = 0
    hr_resize_y: int | None = 0
    hr_checkpoint_name: str | None = None
    hr_sampler_name: str | None = None
    hr_scheduler: str | None = None
    hr_prompt: str | None = ""
    hr_negative_prompt: str | None = ""
    force_task_id: str | None = None
    sampler_index: str | None = "Euler"
    script_name: str | None = None
    script_args: list[Any] | None = None
    send_images: bool | None = True
    save_images: bool | None = False
    alwayson_scripts: dict[str, Any] | None = None
    infotext: str | None = None

    def given(self) -> set[str]:
        """Names of the fields that the caller set to something."""
        return {name for name in self.model_fields_set if getattr(self, name) is not None}

    def value(self, name: str) -> Any:
        """The field's value, or its default where the caller sent null."""
        found = getattr(self, name)
        return type(self).model_fields[name].default if found is None else found


class PngInfoBody(Tolerant):
    """POST /sdapi/v1/png-info."""

    image: str = Field(examples=["data:image/png;base64,iVBORw0KGgo..."])


class ProgressBody(Tolerant):
    """POST /internal/progress, as the page asks it."""

    id_task: str | None = Field(default=None, examples=["task(abc)"])
    id_live_preview: int | None = -1
    live_preview: bool | None = True
