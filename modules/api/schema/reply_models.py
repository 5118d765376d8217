"""Replies of the routes: models that type, check and document a reply at once, their examples at the fields.

Names and order of the fields are the reference UI's where it has the route.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, RootModel

from modules.version import PROGRAM_VERSION

MODEL_HASH = "5fe1d58aba7e5a7cc64cc0ea1e0a1d1f4f0a1f6b7ec9ab6e1d2a6a0f4f6f3c11"
MODEL_FILE = "models/Stable-diffusion/featherweight-scenes.safetensors"
INFOTEXT = (
    "a large red circle on a blue background\nNegative prompt: blurry\nSteps: 20, Sampler: DPM++ 2M, "
    "Schedule type: Karras, CFG scale: 7.0, Seed: 1, Size: 128x128, Model hash: 5fe1d58aba, "
    f"Model: featherweight-scenes, Version: {PROGRAM_VERSION}"
)
PROMPT = "a large red circle on a blue background"
PNG = "iVBORw0KGgoAAAANSUhEUgAA..."
TASK = "task(abc)"
EXTRAS_INFO = "<p>Postprocess upscale by: 2.0, Postprocess upscaler: Lanczos</p>"


class Reply(BaseModel):
    """A JSON object that a route answers. A value of another type than it says is an error of the program."""

    model_config = ConfigDict(protected_namespaces=(), strict=False)

    @classmethod
    def of(cls, source: object, **others: object) -> Self:
        """Make a reply of the attributes of an object that have the names of its fields; `others` are taken instead of
        them. Raises `AttributeError` for a field that is in neither."""
        own = {name: getattr(source, name) for name in cls.model_fields if name not in others}
        return cls.model_validate(own | others)


class Nothing(Reply):
    """An empty object."""


# -- generation ------------------------------------------------------------------------------------------------------


class Txt2ImgReply(Reply):
    """Images as base64 text, a grid first where there is one; the request echoed; `info` as a JSON text."""

    images: list[str] = Field(examples=[[PNG]])
    parameters: dict[str, object] = Field(examples=[{"prompt": PROMPT, "steps": 20, "seed": 1}])
    info: str = Field(examples=[f'{{"prompt": "{PROMPT}", "seed": 1, "all_seeds": [1], "infotexts": ["..."]}}'])


class ExtrasSingleReply(Reply):
    """The result as HTML, and the image as base64 text."""

    html_info: str = Field(examples=[EXTRAS_INFO])
    image: str = Field(examples=[PNG])


class InterrogateReply(Reply):
    """The description of an image."""

    caption: str = Field(examples=[PROMPT])


class FailureItem(Reply):
    """An image of a batch that could not be done."""

    name: str = Field(examples=["broken.png"])
    error: str = Field(examples=["The image broken.png is empty: 0 bytes."])


class ExtrasBatchReply(Reply):
    """The result as HTML, the images as base64 text, and the images that failed."""

    html_info: str = Field(examples=[EXTRAS_INFO])
    images: list[str] = Field(examples=[[PNG]])
    failures: list[FailureItem] = Field(default_factory=list)


class PngInfoReply(Reply):
    """The infotext of an image, its text entries, and the infotext's fields."""

    info: str = Field(examples=[INFOTEXT])
    items: dict[str, str] = Field(examples=[{"parameters": INFOTEXT}])
    parameters: dict[str, str | bool | int] = Field(examples=[{"Prompt": PROMPT, "Steps": "20", "Seed": "1"}])


# -- progress --------------------------------------------------------------------------------------------------------


class ProgressState(Reply):
    """Steps and flags of the running job."""

    skipped: bool = Field(default=False, examples=[False])
    interrupted: bool = Field(default=False, examples=[False])
    stopping_generation: bool = Field(default=False, examples=[False])
    job: str = Field(default="", examples=[TASK])
    job_count: int = Field(default=0, examples=[1])
    job_timestamp: str = Field(default="0", examples=["20260101120000"])
    job_no: int = Field(default=0, examples=[0])
    sampling_step: int = Field(default=0, examples=[7])
    sampling_steps: int = Field(default=0, examples=[20])


class ProgressReply(Reply):
    """Where the running job stands; all zero when there is none. Times are seconds."""

    progress: float = Field(default=0.0, examples=[0.35])
    eta_relative: float = Field(default=0.0, examples=[2.4])
    state: ProgressState = Field(default_factory=lambda: ProgressState())
    current_image: str | None = Field(default=None, examples=[PNG])
    textinfo: str | None = Field(default=None, examples=["sampling"])
    stage: str | None = Field(default=None, examples=["denoise"])


class TaskProgressReply(Reply):
    """Where a named job stands; of one that is not known the last three fields are left out."""

    active: bool = Field(examples=[True])
    queued: bool = Field(examples=[False])
    completed: bool = Field(examples=[False])
    progress: float | None = Field(examples=[0.35])
    eta: float | None = Field(examples=[2.4])
    live_preview: str | None = Field(examples=[f"data:image/png;base64,{PNG}"])
    id_live_preview: int | None = Field(examples=[3])
    textinfo: str = Field(examples=["sampling"])
    stage: str | None = Field(default=None, examples=["denoise"])
    step: int | None = Field(default=None, examples=[7])
    steps: int | None = Field(default=None, examples=[20])
    error: str | None = Field(default=None, examples=[None])


class ClearedReply(Reply):
    """How many jobs were taken out of the line."""

    cleared: int = Field(examples=[2])


class MeReply(Reply):
    """Who one is to this server."""

    name: str
    role: str = Field(examples=["user"])
    sees: str = Field(examples=["own"])
    can_log_out: bool


class TaskIdReply(Reply):
    """The task id of work that was put in line."""

    task_id: str = Field(examples=["task(def)"])


class TaskIdsReply(Reply):
    """The task ids of jobs that were put in line, in their order."""

    task_ids: list[str] = Field(examples=[["task(def)"]])


class PendingTasksReply(Reply):
    """Task ids of the running job and those in line."""

    size: int = Field(examples=[2])
    tasks: list[str] = Field(examples=[[TASK, "task(def)"]])


# -- options ---------------------------------------------------------------------------------------------------------


class OptionsReply(RootModel[dict[str, object]]):
    """Every setting with its value."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "sd_model_checkpoint": "featherweight-scenes.safetensors [5fe1d58aba]",
                    "samples_format": "png",
                    "CLIP_stop_at_last_layers": 1,
                }
            ]
        }
    )


class FlagsReply(RootModel[dict[str, object]]):
    """Every flag with its value."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"listen": False, "port": "7860", "api_auth": "(hidden)", "no_half": False}],
        }
    )


class SettingHint(Reply):
    """A setting by its key, with what the settings page calls it."""

    name: str = Field(examples=["sd_model_checkpoint"])
    label: str = Field(examples=["Stable Diffusion checkpoint"])


class StartupReply(Reply):
    """Where the time of the start went, in seconds."""

    total: float = Field(examples=[3.4])
    records: dict[str, float] = Field(examples=[{"settings, folders and scripts": 2.1, "page and API": 1.3}])


class CardMetadataReply(Reply):
    """The metadata of a model file as a JSON text."""

    metadata: str = Field(default="", examples=['{"ss_network_dim": "8"}'])


class CardHtmlReply(Reply):
    """A model's card."""

    html: str = Field(default="", examples=['<div class="card" data-name="ink">...</div>'])


# -- lists -----------------------------------------------------------------------------------------------------------


class FewStepsItem(Reply):
    """The settings that a few-step file asks for. An empty name leaves the current one."""

    method: str = Field(examples=["LCM"])
    steps: int = Field(examples=[6])
    cfg_scale: float = Field(examples=[1.0])
    sampler: str = Field(examples=["LCM"])
    scheduler: str = Field(examples=["SGM Uniform"])
    decoder: str = Field(default="", description="TAESD, where that is here for its latents", examples=["TAESD"])
    label: str = Field(description="on the card", examples=["LCM: 6 steps"])
    values: str = Field(examples=["6 steps, CFG scale 1, LCM, SGM Uniform"])


class CheckpointItem(Reply):
    """A checkpoint."""

    title: str = Field(examples=["featherweight-scenes.safetensors [5fe1d58aba]"])
    model_name: str = Field(examples=["featherweight-scenes"])
    hash: str | None = Field(examples=[MODEL_HASH[:10]])
    sha256: str | None = Field(examples=[MODEL_HASH])
    filename: str = Field(examples=[MODEL_FILE])
    config: str | None = Field(examples=[MODEL_FILE.replace(".safetensors", ".yaml")])
    few_steps: FewStepsItem | None = Field(description="what it asks for if it needs few steps", examples=[None])


class VaeItem(Reply):
    """A VAE file."""

    model_name: str = Field(examples=["vae-ft-mse.safetensors"])
    filename: str = Field(examples=["models/VAE/vae-ft-mse.safetensors"])


class SamplerItem(Reply):
    """A sampler."""

    name: str = Field(examples=["DPM++ 2M"])
    aliases: list[str] = Field(examples=[["k_dpmpp_2m"]])
    options: dict[str, str] = Field(examples=[{"scheduler": "karras"}])


class SchedulerItem(Reply):
    """A schedule type."""

    name: str = Field(examples=["karras"])
    label: str = Field(examples=["Karras"])
    aliases: list[str] | None = Field(examples=[None])
    default_rho: float = Field(examples=[7.0])
    need_inner_model: bool = Field(examples=[False])


class UpscalerItem(Reply):
    """An upscaler that works on pixels."""

    name: str = Field(examples=["4x-UltraSharp"])
    model_name: str | None = Field(default=None, examples=["4x-UltraSharp"])
    model_path: str | None = Field(default=None, examples=["models/ESRGAN/4x-UltraSharp.pth"])
    model_url: str | None = Field(examples=[None])
    scale: float = Field(examples=[4])


class RealesrganItem(Reply):
    """An upscaler file in the folder RealESRGAN."""

    name: str = Field(examples=["RealESRGAN_x4plus"])
    path: str = Field(examples=["models/RealESRGAN/RealESRGAN_x4plus.pth"])
    scale: int = Field(examples=[4])


class LatentModeItem(Reply):
    """An upscaler that works on the latent."""

    name: str = Field(examples=["Latent (antialiased)"])


class StyleItem(Reply):
    """A prompt style."""

    name: str = Field(examples=["oil"])
    prompt: str = Field(examples=["{prompt}, oil painting"])
    negative_prompt: str = Field(examples=["photo"])


class HypernetworkItem(Reply):
    """A hypernetwork file."""

    name: str = Field(examples=["portrait"])
    path: str = Field(examples=["models/hypernetworks/portrait.pt"])


class EmbeddingItem(Reply):
    """A textual inversion embedding."""

    step: int | None = Field(examples=[1500])
    sd_checkpoint: str | None = Field(examples=[None])
    sd_checkpoint_name: str | None = Field(examples=[None])
    shape: int = Field(examples=[768])
    vectors: int = Field(examples=[4])


class SkippedEmbedding(Reply):
    """Why an embedding cannot be used."""

    reason: str = Field(examples=["its vectors are 1280 wide, the model takes 768"])


class EmbeddingsReply(Reply):
    """Embeddings that fit the loaded model, and the others."""

    loaded: dict[str, EmbeddingItem]
    skipped: dict[str, SkippedEmbedding]


class ScriptsReply(Reply):
    """Titles of scripts in lower case."""

    txt2img: list[str] = Field(examples=[["x/y/z plot"]])
    img2img: list[str] = Field(examples=[[]])


class ScriptArgument(Reply):
    """One argument of a script."""

    label: str = Field(examples=["X type"])
    value: object = Field(examples=["Nothing"])
    minimum: object = Field(examples=[None])
    maximum: object = Field(examples=[None])
    step: object = Field(examples=[None])
    choices: list[object] | None = Field(examples=[["Nothing", "Seed", "Steps"]])


class ScriptItem(Reply):
    """A script with its arguments."""

    name: str = Field(examples=["x/y/z plot"])
    is_alwayson: bool = Field(examples=[False])
    is_img2img: bool = Field(examples=[False])
    args: list[ScriptArgument]


class FaceRestorerItem(Reply):
    """A face restorer."""

    name: str = Field(examples=["CodeFormer"])
    cmd_dir: str | None = Field(examples=[None])


class ExtensionItem(Reply):
    """An extension that was installed from a repository."""

    name: str = Field(examples=["my-extension"])
    remote: str = Field(examples=["https://example.org/my-extension"])
    branch: str = Field(examples=["main"])
    commit_hash: str = Field(examples=["5fe1d58aba7e5a7cc64cc0ea1e0a1d1f4f0a1f6b"])
    version: str = Field(examples=["5fe1d58a"])
    commit_date: int = Field(examples=[1767225600])
    enabled: bool = Field(examples=[True])


class FaultItem(Reply):
    """A fault of an extension."""

    where: str = Field(examples=["scripts/mine.py"])
    reason: str = Field(examples=["It needs the package cv2, which is not installed."])
    missing: str = Field(examples=["cv2"], description="the module, package or name that is missing; empty: none is")


class InstalledExtension(Reply):
    """One folder of extensions."""

    name: str = Field(examples=["sd-webui-mine"])
    about: str = Field(examples=["High CFG scales without burnt colors."], description="as its about.toml says")
    folder: str = Field(examples=["/home/me/featherweight/extensions/sd-webui-mine"])
    is_built_in: bool = Field(examples=[False])
    is_enabled: bool = Field(examples=[True], description="whether it was loaded at this start")
    will_be_enabled: bool = Field(examples=[True], description="whether it will be loaded at the next start")
    remote: str = Field(examples=["https://example.org/sd-webui-mine"])
    version: str = Field(examples=["5fe1d58a"])
    files: list[str] = Field(examples=[["scripts/mine.py"]], description="its scripts that were loaded")
    hooks: list[str] = Field(examples=[["process", "on_ui_tabs"]], description="what it takes part in")
    faults: list[FaultItem]
    notices: list[str] = Field(examples=[["The program does this itself: the extension is left out."]])
    size_bytes: int = Field(examples=[120000])
    start_ms: float = Field(examples=[35.5], description="what loading it took")
    image_ms: float = Field(examples=[0.4], description="what its hooks took in this process's last job, per image")
    replaced_by: str = Field(examples=[""], description="the part of the program that does its work instead")
    packages: list[str] = Field(examples=[["opencv-python"]], description="packages that it wants and that are missing")
    refused_packages: dict[str, str] = Field(examples=[{}], description="packages that cannot be had, and why")
    has_installer: bool = Field(examples=[False], description="whether it brings an install.py")
    can_restore: bool = Field(examples=[False])


class ExtensionList(Reply):
    """All extensions, and what may be done with them."""

    extensions: list[InstalledExtension]
    may_change: bool = Field(
        examples=[True], description="whether this server installs, updates and removes extensions"
    )
    removed: list[str] = Field(examples=[["sd-webui-old"]], description="those that can be taken back")
    may_undo_packages: bool = Field(False, description="whether the last installation of packages can be taken back")
    optional_packages: list[str] = Field(
        examples=[["matplotlib"]], description="packages that many extensions want and that are not installed"
    )


class ExtensionDone(Reply):
    """The result of a change, which takes effect at the next start."""

    name: str = Field(examples=["sd-webui-mine"])
    message: str = Field(examples=["sd-webui-mine is installed. Start the program again to load it."])


class ExtensionOffer(Reply):
    """An entry of an index."""

    name: str = Field(examples=["Mine"])
    address: str = Field(examples=["https://example.org/sd-webui-mine"])
    description: str = Field(examples=["Does something with images."])
    tags: list[str] = Field(examples=[["editing"]])


# -- server ----------------------------------------------------------------------------------------------------------


class MemoryReply(Reply):
    """Bytes of main memory and of the GPU; an object with `error` where there is none."""

    ram: dict[str, object] = Field(examples=[{"free": 8_500_000_000, "used": 1_200_000_000, "total": 16_000_000_000}])
    cuda: dict[str, object] = Field(examples=[{"error": "unavailable"}])


class ReadingItem(Reply):
    """Bytes of this process in main memory, and of the GPU's allocator; null where the system does not tell."""

    rss: int | None = Field(examples=[934_000_000])
    allocated: int | None = Field(examples=[2_890_000_000])
    reserved: int | None = Field(examples=[3_010_000_000])


class StageItem(ReadingItem):
    """The most that one stage of a job took, and when it was."""

    stage: str = Field(examples=["denoise"])
    begin_s: float = Field(examples=[0.21])
    end_s: float = Field(examples=[6.9])


class ProbeReply(Reply):
    """Seconds of each measurement of a device, and why others were left out."""

    seconds: dict[str, float]
    problems: dict[str, str]


class TimelineReply(Reply):
    """The memory of a job, stage by stage. `samples` are [seconds, stage, rss, allocated, reserved]."""

    id_task: str = Field(examples=[TASK])
    device: str = Field(examples=["cuda:0"])
    begin: ReadingItem
    peak: ReadingItem
    stages: list[StageItem]
    samples: list[tuple[float, str, int | None, int | None, int | None]] = Field(
        examples=[[[0.21, "denoise", 930_000_000, 2_310_000_000, 3_010_000_000]]]
    )


class PlannedStage(Reply):
    """Bytes that one stage of a job will need on the device and in main memory."""

    stage: str = Field(examples=["denoise"])
    needs: int = Field(examples=[2_980_000_000])
    main: int = Field(examples=[1_900_000_000])


class ProposalItem(Reply):
    """A change with which a job would need less: settings to store, fields of the body to change."""

    title: str = Field(examples=["VAE in tiles"])
    line: str = Field(examples=["needs 3.0 of 4.0 GB, main memory 2.1 of 12.8 GB"])
    needs: int = Field(examples=[2_980_000_000])
    fits: bool = Field(examples=[True])
    settings: dict[str, object] = Field(examples=[{"vae_tile_size": 512}])
    fields: dict[str, object] = Field(examples=[{}])


class PlanReply(Reply):
    """The memory that a job will need, in bytes."""

    device: str = Field(examples=["NVIDIA GeForce GTX 1650"])
    line: str = Field(examples=["needs 4.3 of 4.0 GB, main memory 2.1 of 12.8 GB"])
    needs: int = Field(examples=[4_310_000_000])
    available: int | None = Field(examples=[4_000_000_000])
    fits: bool = Field(examples=[False])
    worst: str = Field(examples=["decode"])
    weights: int = Field(examples=[2_132_000_000])
    learnt_from: int = Field(examples=[2])
    main_needs: int = Field(examples=[2_100_000_000])
    main_available: int | None = Field(examples=[12_800_000_000])
    stages: list[PlannedStage]
    proposals: list[ProposalItem]
    nothing_fits: str = Field(default="", examples=[""], description="why no change is enough, where none is")


# -- tasks and precision ---------------------------------------------------------------------------------------------


class TaskItem(Reply):
    """Long work next to the images. Times are seconds, `fraction` is 0 to 1."""

    id: str = Field(examples=["0f8fad5bd9cb469"])
    type: str = Field(examples=["precision-report"])
    title: str = Field(examples=["Precision report of model.safetensors as fp8_e4m3fn_row"])
    status: str = Field(examples=["running"])
    fraction: float = Field(examples=[0.25])
    phase: str = Field(examples=["120 of 480 tensors"])
    elapsed_s: float = Field(examples=[3.2])
    eta_s: float | None = Field(examples=[9.6])
    error: str | None = Field(examples=[None])
    outcome: dict[str, object] | None = Field(examples=[None])


class QueueEntry(Reply):
    """Work in the queue. Times are seconds, `fraction` is 0 to 1; `waits_for`: why it cannot run now."""

    task_id: str = Field(examples=[TASK])
    type: str = Field(examples=["txt2img"])
    is_image_job: bool = Field(examples=[True])
    title: str = Field(examples=["a large red circle on a blue background"])
    status: str = Field(examples=["queued"])
    user: str = Field(default="", examples=[""])
    model: str = Field(default="", examples=["featherweight-scenes.safetensors Disable"])
    waits_for: str = Field(default="", examples=[""])
    is_pinned: bool = Field(default=False, examples=[False])
    is_bookmarked: bool = Field(default=False, examples=[False])
    created_at: float = Field(examples=[1767225600.0])
    ended_at: float | None = Field(default=None, examples=[None])
    seconds: float | None = Field(default=None, examples=[None])
    fraction: float = Field(default=0.0, examples=[0.35])
    phase: str = Field(default="", examples=["sampling"])
    eta_s: float | None = Field(default=None, examples=[2.4])
    images: int = Field(default=0, examples=[1])
    error: str | None = Field(default=None, examples=[None])
    details: str = Field(default="", examples=["512x768 · 20 steps · 4 images"])
    adapters: list[str] = Field(default=[], examples=[["ink"]])
    has_start_image: bool = Field(default=False, examples=[False])
    parameters: dict[str, object] | None = Field(default=None, examples=[{"prompt": PROMPT, "steps": 20}])
    infotext: str | None = Field(default=None, examples=[INFOTEXT])


class WorkerReply(Reply):
    """A worker: `state` is starting, idle, busy, waiting (it is gone, and starts again in a moment) or ended; `message`
    is what went wrong last."""

    name: str = Field(examples=["worker-1"])
    place: str = Field(examples=["process 4242, CPU, 2 threads"])
    state: str = Field(examples=["idle"])
    task_id: str = Field(default="", examples=["task(abc)"])
    title: str = Field(default="", examples=["a cat"])
    model: str = Field(default="", examples=["featherweight-scenes.safetensors [0123456789]"])
    restarts: int = Field(default=0, examples=[0])
    jobs: int = Field(default=0, examples=[12])
    message: str = Field(default="", examples=[""])


class QueueReply(Reply):
    """The queue: what runs, what waits, what ended last, the newest first. `running` is what began first of
    `running_all`."""

    paused: bool = Field(examples=[False])
    when_done: str = Field(examples=["nothing"])
    running: QueueEntry | None = Field(default=None, examples=[None])
    running_all: list[QueueEntry] = Field(default_factory=list, examples=[[]])
    workers: list[WorkerReply] = Field(default_factory=list, examples=[[]])
    waiting: list[QueueEntry]
    waiting_total: int = Field(examples=[1])
    ended: list[QueueEntry]
    failed_total: int = Field(examples=[0])


class QueueCount(Reply):
    """How many jobs something was done with."""

    count: int = Field(examples=[3])


class HistoryItem(Reply):
    """An image of the history. `created_at` is in seconds since 1970; `missing`: its file is not where it was."""

    id: int = Field(examples=[1767225600000000])
    created_at: float = Field(examples=[1767225600.0])
    path: str = Field(examples=["outputs/txt2img-images/2026-01-01/00000-1.png"])
    name: str = Field(examples=["00000-1.png"])
    width: int = Field(examples=[512])
    height: int = Field(examples=[512])
    size_bytes: int = Field(examples=[400000])
    infotext: str = Field(examples=[INFOTEXT])
    task_id: str = Field(examples=[TASK])
    role: str = Field(examples=["sample"])
    user: str = Field(examples=[""])
    starred: bool = Field(examples=[False])
    tags: list[str] = Field(examples=[["best of"]])
    missing: bool = Field(examples=[False])
    trashed: bool = Field(examples=[False])
    board: int | None = Field(examples=[None])


class BoardItem(Reply):
    """A folder of images in the history; `newest` is the number of one of them, null for an empty board."""

    id: int = Field(examples=[7])
    name: str = Field(examples=["Portraits"])
    user: str = Field(examples=[""])
    images: int = Field(examples=[12])
    newest: int | None = Field(examples=[1767225600000000])


class ParameterItem(Reply):
    """A parameter or setting with which an image can be made again. `type` is text, number, flag or choice; `choices`
    are pairs of a value and its label; those of `group` "Settings" go into `override_settings`."""

    name: str = Field(examples=["steps"])
    label: str = Field(examples=["Sampling steps"])
    group: str = Field(examples=["Parameters"])
    type: str = Field(examples=["number"])
    value: object = Field(examples=[20])
    choices: list[tuple[str | int | None, str]] = Field(default=[], examples=[[]])
    minimum: float | None = Field(default=None, examples=[1])
    maximum: float | None = Field(default=None, examples=[1000])


class DifferingValue(Reply):
    """A key of the infotext that two images have with other values; null: without it."""

    key: str = Field(examples=["Steps"])
    first: str | None = Field(examples=["20"])
    second: str | None = Field(examples=["30"])


class HistoryPage(Reply):
    """The results of a search, newest first; `more`: there are older ones."""

    images: list[HistoryItem]
    more: bool = Field(examples=[False])


class DifferenceReply(Reply):
    """How far two images are apart: `psnr_db` is null for equal ones; levels are of 255."""

    psnr_db: float | None = Field(examples=[38.2])
    largest_level: int = Field(examples=[31])
    mean_level: float = Field(examples=[0.8])


class ImportItem(Reply):
    """The import of a folder: running, done, stopped or failed, and counts of files."""

    folder: str = Field(examples=["/home/me/old-images"])
    state: str = Field(examples=["running"])
    counts: dict[str, int] = Field(examples=[{"files": 1200, "added": 1180, "known": 0, "skipped": 20}])
    error: str | None = Field(examples=[None])


class KnownModelItem(Reply):
    """A model of the list that ships; `parts` are the names of entries that it cannot do without."""

    name: str = Field(examples=["z-image-turbo"])
    label: str = Field(examples=["Z-Image Turbo"])
    repository: str = Field(examples=["Comfy-Org/z_image_turbo"])
    file: str = Field(examples=["split_files/diffusion_models/z_image_turbo_bf16.safetensors"])
    size_gb: float = Field(examples=[12.31])
    licence: str = Field(examples=["Apache-2.0"])
    good_for: str = Field(examples=["photographs and legible text in 8 steps"])
    parts: list[str] = Field(examples=[["qwen3-4b", "flux-vae"]])
    checked: str = Field(examples=["page"])


class UnfinishedItem(Reply):
    """A download that was begun and is not running; `url` is where the rest is."""

    name: str = Field(examples=["z_image_turbo_bf16.safetensors"])
    folder: str = Field(examples=["Stable-diffusion"])
    url: str = Field(examples=["https://huggingface.co/Comfy-Org/z_image_turbo/resolve/main/model.safetensors"])
    done_bytes: int = Field(examples=[1_200_000_000])
    size_bytes: int = Field(examples=[12_309_866_400])


class FittingItem(KnownModelItem):
    """A model of the list for this machine. `needs_gb`: its largest part in 8 bits with what an image needs;
    `download_gb`: all of its files."""

    needs_gb: float = Field(examples=[7.7])
    download_gb: float = Field(examples=[20.7])
    is_streamed: bool = Field(examples=[False])
    seconds: int = Field(description="of one image on this CPU, roughly; 0 with a GPU", examples=[9])


class FittingReply(Reply):
    """Models that fit this machine, and what it has."""

    memory_gb: float = Field(examples=[12.9])
    has_gpu: bool = Field(examples=[True])
    cores: int = Field(examples=[8])
    models: list[FittingItem]


class DetectedItem(Reply):
    """Description of a model file by its header. `layout`: whose names its tensors have; `missing`: what it needs
    besides; `folder`: where it belongs; `refusal`: why it is of no use here, to be read after its name."""

    kind: str = Field(examples=["denoiser"])
    line: str = Field(examples=["a denoiser of Z-Image, original names, bf16"])
    family: str = Field(examples=["Z-Image"])
    layout: str = Field(examples=["original"])
    format: str = Field(examples=["bf16"])
    missing: list[str] = Field(examples=[["Qwen3-4B (2560 wide, 8.0 GB in 16 bits)"]])
    folder: str = Field(examples=["Stable-diffusion"])
    is_supported: bool = Field(examples=[True])
    refusal: str = Field(examples=[""])


class ModelFileItem(Reply):
    """A model file on disk; `folder` is below the folder of its kind."""

    key: str = Field(examples=["Stable-diffusion/0/finetunes/some.safetensors"])
    kind: str = Field(examples=["Stable-diffusion"])
    name: str = Field(examples=["some.safetensors"])
    folder: str = Field(examples=["finetunes"])
    size_bytes: int = Field(examples=[6_938_040_682])
    added_at: float = Field(examples=[1767225600.0])
    used_at: float | None = Field(examples=[1767225600.0])
    sha256: str = Field(examples=[MODEL_HASH])
    doubles: list[str] = Field(examples=[[]])
    may_be_double: bool = Field(examples=[False])
    missing: list[KnownModelItem] = Field(examples=[[]])
    saves_bytes: int = Field(examples=[3_400_000_000])
    is_part_of_program: bool = Field(examples=[False])
    found: DetectedItem


class TrashedItem(Reply):
    """A model file in the trash."""

    id: str = Field(examples=["20260101-120000-abcdef"])
    name: str = Field(examples=["some.safetensors"])
    kind: str = Field(examples=["Stable-diffusion"])
    size_bytes: int = Field(examples=[6_938_040_682])
    at: float = Field(examples=[1767225600.0])


class ModelFilesReply(Reply):
    """The model files on disk and the trash."""

    files: list[ModelFileItem]
    trash: list[TrashedItem]


class AboutReply(Reply):
    """The facts about a model file from its source, now on its card. `has_preview`: an image was added too."""

    source: str = Field(examples=["Civitai"])
    name: str = Field(examples=["Some style"])
    triggers: list[str] = Field(examples=[["somestyle"]])
    base: str = Field(examples=["SDXL"])
    description: str = Field(examples=["A style of watercolors."])
    has_preview: bool = Field(examples=[True])


class LookReply(Reply):
    """The facts about a file before it is downloaded. `fits` null: unknown so far."""

    name: str = Field(examples=["z_image_turbo_bf16.safetensors"])
    line: str = Field(examples=["a denoiser of Z-Image, original names, bf16, 6.15 B parameters, 12.31 GB"])
    found: DetectedItem
    folder: str = Field(examples=["Stable-diffusion"])
    size_bytes: int = Field(examples=[12_309_866_400])
    is_there: bool = Field(examples=[False])
    fits: bool | None = Field(examples=[True])
    verdict: str = Field(
        examples=["It fits: needs 3.1 of 15.8 GB. Here about 20 s per step, 2.7 min for 8 steps at 512x512."]
    )
    step_seconds: float = Field(description="of one step, about; 0: not known", examples=[20.3])
    parts: list[KnownModelItem] = Field(examples=[[]])


# -- the page --------------------------------------------------------------------------------------------------------


class EngineReply(Reply):
    """The state of the engine, and the settings that the page's script follows."""

    state: str = Field(examples=["ready"])
    message: str = Field(examples=[""])
    line: str = Field(examples=["SD 1.x · 1.07 B parameters · fp8 row · 1.1 GB · cuda:0"])
    pending: str = Field(examples=["changes to 16 bits after this job"])
    facts: str = Field(examples=["in fp16 it would take 2.1 GB"])
    hashing: str = Field(examples=[""])
    is_bundled: bool = Field(examples=[True], description="whether the chosen checkpoint is the bundled model")
    size: int | None = Field(examples=[512])
    usual: str = Field(
        examples=["Steps: 4, Sampler: Euler, Schedule type: Simple, CFG scale: 1"],
        description="what such models are usually sampled with, as an infotext; empty: nothing special",
    )
    unused: list[str] | None = Field(
        examples=[["distilled_cfg_scale", "references"]],
        description="parameters of the form that the loaded model does not read; null: none is loaded",
    )
    switch_seconds: float | None = Field(examples=[2.31])
    settings: dict[str, object] = Field(examples=[{"show_progressbar": True, "live_preview_refresh_period": 1000}])


class TokenCountReply(Reply):
    """Tokens of a prompt, and how many fit into the chunks that it fills."""

    text: str = Field(examples=["9/75"])
    count: int = Field(examples=[9])
    limit: int = Field(examples=[75])


class ResultImage(Reply):
    """An image of a job. Seeds are text: a browser would round large ones."""

    url: str = Field(examples=["internal/image?id_task=task(abc)&index=0&n=1"])
    infotext: str = Field(examples=[INFOTEXT])
    seed: str = Field(examples=["1"])
    subseed: str = Field(examples=["4026814293"])
    role: str = Field(examples=["sample"])
    width: int = Field(examples=[128])
    height: int = Field(examples=[128])
    path: str | None = Field(examples=["outputs/txt2img-images/2026-01-01/00000-1.png"])


class RetentionItem(Reply):
    """How much of the effect of a job's adapters is kept: in all, the noise, the worst layers, each adapter."""

    retention: float = Field(examples=[0.998])
    noise: float = Field(examples=[0.01])
    worst: list[tuple[str, float]] = Field(examples=[[["down_blocks.0", 0.99]]])
    adapters: list[tuple[str, float]] = Field(examples=[[["ink", 0.998]]])


class ResultReply(Reply):
    """A job's images so far, and what there is to say about them."""

    task: str = Field(examples=[TASK])
    status: str = Field(examples=["completed"])
    error: str | None = Field(examples=[None])
    notices: list[str] = Field(examples=[[]])
    seconds: float | None = Field(examples=[2.7])
    images: list[ResultImage]
    retention: RetentionItem | None


class SavedImageReply(Reply):
    """Where an image was saved; with several, all paths behind each other."""

    path: str = Field(examples=["log/images/00000-1.png"])


class DeletedImageReply(Reply):
    """Where the file of a deleted image lies now; null where it had none."""

    trash: str | None = Field(examples=["outputs/trash/2026-01-01/00000-1.png"])


class HiresImageReply(Reply):
    """The job that was put in line."""

    task: str = Field(examples=[TASK])


class OpenedFolderReply(Reply):
    """The folder of an image, and whether it was opened on this machine."""

    folder: str = Field(examples=["outputs/txt2img-images/2026-01-01"])
    opened: bool = Field(examples=[True])
