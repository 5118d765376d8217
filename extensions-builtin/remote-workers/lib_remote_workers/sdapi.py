"""Another server that speaks `/sdapi/v1` as a worker: this program, the reference UI or Forge, by address and login.

Text to image, image to image with masks, and Extras: what a request asks must mean the same there, and everything else
stays here (`unfit`, `unfit_extras`). Models are matched by their sha256. What comes back is checked before it is
believed, and is saved and recorded here. Addresses come from the command line or from a file that it names, never from
a request; redirects are not followed.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import httpx
from PIL import Image

from modules.downloads.transport import Connection
from modules.errors import FeatherweightError, Interrupted, InvalidValueError, Skipped
from modules.images.infotext import parse_infotext
from modules.jobs.editing import api_values
from modules.jobs.job import Entry, Job, WorkerLostError
from modules.jobs.lanes import Lane
from modules.jobs.tasks import Outcome, Task
from modules.jobs.work.extras import ExtrasRequest, ExtrasRun
from modules.jobs.workers.added import WorkerPlace
from modules.jobs.workers.executor import WorkerFacts, WorkerOptions, WorkerState
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo
from modules.postprocessing.operation import PostprocessedImage
from modules.postprocessing.operations import Arguments
from modules.processing.engine.chosen_checkpoint import checkpoint_of
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import PRECISION_KEYS
from modules.processing.record.made import sample_key
from modules.processing.record.output import Output, name_context
from modules.processing.request.request import GenerationRequest, seed_after
from modules.processing.request.result import GeneratedImage, GenerationInfo, Result
from modules.processing.request.source_images import IMAGE_ROWS, MASK_ROWS, FromImage, RequestStart, SourceImage
from modules.processing.request.stages import Stage, hires_size
from modules.sampling.catalog import SAMPLERS
from modules.settings.sections.stable_diffusion import StableDiffusionSettings
from modules.settings.values import Settings
from modules.system.bounded import read_json
from modules.system.threads import start_loop

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_REPLY_BYTES = 64 << 20
BYTES_PER_PIXEL = 12  # of an image in a reply: 16 bits of four channels as base64, and some
MAX_INFOTEXT = 1_000_000  # characters
FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 8192 * 8192
CALL_S = 10.0  # for everything but the images
MAX_LOOK_S = 120.0
PIXEL_S = 2e-4  # 52 s for 512x512, 210 s for 1024x1024
EXTRAS_FIELDS = {
    "Upscale": {
        "upscale_mode": "resize_mode",
        "upscale_by": "upscaling_resize",
        "upscale_to_width": "upscaling_resize_w",
        "upscale_to_height": "upscaling_resize_h",
        "upscale_crop": "upscaling_crop",
        "upscaler_1_name": "upscaler_1",
        "upscaler_2_name": "upscaler_2",
        "upscaler_2_visibility": "extras_upscaler_2_visibility",
    },
    "GFPGAN": {"gfpgan_visibility": "gfpgan_visibility"},
    "CodeFormer": {"codeformer_visibility": "codeformer_visibility", "codeformer_weight": "codeformer_weight"},
}
"""By operation: its arguments as the API's fields. Other operations stay here."""
EXTRAS_GROUPS = ("upscaling", "face_restoration", "postprocessing")
SIZE_OFF_PX = 8  # what a size may be off by rounding
CHECKPOINT = StableDiffusionSettings.sd_model_checkpoint.key  # sent as its hash
TAG = re.compile(r"<(\w+):([^:>]+)")
OURS = "/featherweight/v1/workers"


@dataclass(frozen=True)
class Address:
    """Where a server is, and who we are there. Shown without the login."""

    scheme: str
    host: str
    port: int
    path: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, text: str) -> Address:
        """From "http://user:password@host:port/path". Raises `InvalidValueError`, which never shows the text."""
        try:
            parts = urlsplit(text.strip())
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidValueError(
                "An address of a remote worker is not understood. Write http://host:port or "
                "https://user:password@host:port, with %40 for an @ in the password."
            )
        login = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/"), *login)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def addresses_of(given: Sequence[str], file: Path | None = None) -> tuple[Address, ...]:
    """The addresses of the command line and those in a file, one a line, `#` begins a comment. Raises
    `InvalidValueError` for one that is not understood or given twice, and for a file that cannot be read."""
    lines: list[str] = []
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"{file} cannot be read: {error}. It holds one address a line.") from error
    found = [Address.of(text) for text in (*given, *lines) if text.strip() and not text.strip().startswith("#")]
    names = [str(address) for address in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InvalidValueError(f"The remote worker {twice} is given twice.")
    return tuple(found)


class RemoteError(Exception):
    """The other server did not answer, or not as it should. The text follows "The server ADDRESS"."""


@dataclass(frozen=True)
class Client:
    """Calls of one server. Each has a connection of its own, so that one that hangs holds up nothing."""

    address: Address

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout_s: float = CALL_S,
        connection: Connection | None = None,
        max_bytes: int = MAX_REPLY_BYTES,
    ) -> Any:
        """Return the reply's JSON. Raises `RemoteError`. `connection`: what another thread may break off."""
        address, received = self.address, bytearray()
        verify = address.scheme == "https" and ssl.create_default_context()
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if address.user or address.password:
            login = base64.b64encode(f"{address.user}:{address.password}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        try:
            request = httpx.Request(
                method,
                f"{address}{path}",
                content=None if body is None else json.dumps(body).encode(),
                headers=headers,
                extensions={"timeout": httpx.Timeout(timeout_s).as_dict()},
            )
            with (connection or Connection()).answered(request, verify) as reply:
                for chunk in reply.iter_raw():
                    received += chunk
                    if len(received) > max_bytes:
                        break
        except httpx.TimeoutException as error:
            raise RemoteError(f"did not answer within {timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise RemoteError(f"cannot be reached ({str(error) or type(error).__name__})") from error
        content = bytes(received)
        if reply.status_code != 200:
            raise RemoteError(f"answered {method} {path} with {reply.status_code}{_detail(content)}")
        if len(content) > max_bytes:
            raise RemoteError(f"sent more than {max_bytes >> 20} MiB")
        try:
            return read_json(content, max_bytes=len(content))
        except ValueError as error:
            raise RemoteError(f"answered {method} {path} with something that is no JSON") from error


@dataclass(frozen=True)
class Offer:
    """Offer of a server. `models`: sha256 to the title there; other names in lower case."""

    is_ours: bool = False
    models: Mapping[str, str] = field(default_factory=dict)
    samplers: frozenset[str] = frozenset()
    schedulers: frozenset[str] = frozenset()
    upscalers: frozenset[str] = frozenset()
    loras: frozenset[str] = frozenset()
    embeddings: frozenset[str] = frozenset()
    restorers: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()

    @classmethod
    def asked(cls, client: Client) -> Offer:
        """Ask for it. Raises `RemoteError`."""

        def optional(path: str) -> Any:
            try:
                return client.call("GET", path)
            except RemoteError as error:
                if "with 404" in str(error):
                    return None
                raise

        models = {
            str(entry["sha256"]): str(entry["title"])
            for entry in _entries(client.call("GET", "/sdapi/v1/sd-models"))
            if entry.get("sha256") and entry.get("title")
        }
        samplers = _entries(client.call("GET", "/sdapi/v1/samplers"))
        schedulers = _entries(optional("/sdapi/v1/schedulers"))
        upscalers = _entries(optional("/sdapi/v1/upscalers")) + _entries(optional("/sdapi/v1/latent-upscale-modes"))
        embeddings = optional("/sdapi/v1/embeddings") or {}
        loaded = embeddings.get("loaded") if isinstance(embeddings, dict) else None
        options = client.call("GET", "/sdapi/v1/options")
        return cls(
            optional(OURS) is not None,
            models,
            _names(samplers, "name"),
            _names(schedulers, "label") | _names(schedulers, "name"),
            _names(upscalers, "name"),
            _names(_entries(optional("/sdapi/v1/loras")), "name"),
            frozenset(str(name).lower() for name in loaded or ()),
            _names(_entries(optional("/sdapi/v1/face-restorers")), "name"),
            frozenset(options) if isinstance(options, dict) else frozenset(),
        )


def unfit(request: GenerationRequest, offer: Offer, sha256: str | None, embeddings: Sequence[str] = ()) -> str:
    """Why a request stays here, for people; "" for one that means the same there. `sha256` is its checkpoint's,
    `embeddings` the names of those that are here."""
    if reason := _unfit_start(request.start, offer):
        return reason
    if request.script or any(request.alwayson_args.values()):
        return "it runs scripts"
    if request.refiner_checkpoint or (request.hires is not None and request.hires.checkpoint):
        return "it uses several checkpoints"
    if sha256 is None or sha256 not in offer.models:
        return "the checkpoint is not there"
    if SAMPLERS.get(request.sampler).name.lower() not in offer.samplers:
        return f"the sampler {request.sampler} is not there"
    if request.scheduler.lower() not in offer.schedulers | {"automatic"}:
        return f"the schedule {request.scheduler} is not there"
    if request.hires is not None and request.hires.upscaler.lower() not in offer.upscalers:
        return f"the upscaler {request.hires.upscaler} is not there"
    text = f"{request.prompt}\n{request.negative_prompt}".lower()
    for kind, name in TAG.findall(text):
        if kind != "lora" or name.strip() not in offer.loras:
            return f"<{kind}:{name}> is not there"
    if "__" in text:
        return "it uses wildcards"
    for name in embeddings:
        if re.search(rf"(?<!\w){re.escape(name.lower())}(?!\w)", text) and name.lower() not in offer.embeddings:
            return f"the embedding {name} is not there"
    sent = settings_sent(request)
    if isinstance(request.start, FromImage) and _wants_masks(request.settings):
        return "its masks are to be saved or shown"
    if (upscaler := sent.get("upscaler_for_img2img")) and str(upscaler).lower() not in offer.upscalers:
        return f"the upscaler {upscaler} is not there"
    if sent.get("sd_vae", "Automatic") not in ("Automatic", "None"):
        return "it uses a VAE of its own"
    if not offer.is_ours and (other := next((key for key in sent if key in PRECISION_KEYS), None)):
        return f"only this program knows the setting {other}"
    if unknown := next((key for key in sent if key not in offer.options), None):
        return f"the setting {unknown} is not known there"
    return ""


def _unfit_start(start: RequestStart, offer: Offer) -> str:
    """Why a job stays here for what it starts from and is shown."""
    if start.references and not offer.is_ours:
        return "only this program shows reference images to models"
    if not isinstance(start, FromImage):
        return ""
    if start.grows and not offer.is_ours:
        return "only this program grows the canvas"
    if start.mask is not None and start.mask.latent is not None and not offer.is_ours:
        return "only this program takes a mask for the latents"
    return ""


def _wants_masks(settings: Settings) -> bool:
    """Whether by-products are wanted, which a reply has not or mixes with the images."""
    shown = settings.img2img.return_mask or settings.img2img.return_mask_composite
    return shown or settings.saving.save_mask or settings.saving.save_mask_composite


def unfit_extras(request: ExtrasRequest, settings: Settings, offer: Offer) -> str:
    """Why Extras stay here, for people; "" for those that mean the same there."""
    operations = _switched_on(request.operations)
    if other := next((name for name in operations if name not in EXTRAS_FIELDS), ""):
        return f"the operation {other} is only here"
    if changed := next(iter(_changed(settings, EXTRAS_GROUPS)), None):
        return f"the setting {changed} cannot be sent with Extras"
    upscale = operations.get("Upscale", {})
    if upscale.get("max_side_length"):
        return "only this program has a longest side"
    for name in (upscale.get("upscaler_1_name", "None"), upscale.get("upscaler_2_name", "None")):
        if name != "None" and name.lower() not in offer.upscalers:
            return f"the upscaler {name} is not there"
    restorers = [name for name in operations if name != "Upscale"]
    missing = next((name for name in restorers if name.lower() not in offer.restorers), "")
    return f"the face restorer {missing} is not there" if missing else ""


def _switched_on(operations: Arguments) -> dict[str, Mapping[str, Any]]:
    """List those that do anything, as far as their arguments say."""
    return {
        name: given
        for name, given in operations.items()
        if given.get("enable", True) and given.get("upscale_enabled", True)
    }


def _changed(settings: Settings, groups: Sequence[str]) -> dict[str, Any]:
    keys = {item.key for name in groups for item in type(getattr(settings, name)).definitions()}
    return {key: value for key, value in settings.differences().items() if key in keys}


def settings_sent(request: GenerationRequest) -> dict[str, Any]:
    """The settings that an image depends on, where they differ from their defaults."""
    return {key: value for key, value in request.settings.of_images().items() if key != CHECKPOINT}


@dataclass(frozen=True)
class Patience:
    """How long a remote worker waits for what, in seconds."""

    look_s: float = 15.0  # how often it is looked whether the server is there, and what it has
    progress_s: float = 1.0  # between two questions about the progress
    silent_s: float = 20.0  # no answer about the progress for so long: it is gone
    stalled_s: float = 60.0  # no progress for so long, and a time for each pixel: it hangs
    loading_s: float = 300.0  # so much longer until it has begun
    idle_s: float = 30.0  # it says that it does nothing, for so long


class RemoteWorker:
    """An executor on another server. `start()` looks for it from then on, `close()` gives it up."""

    def __init__(
        self,
        address: Address,
        output: Output,
        catalogue: CheckpointCatalogue,
        options: Callable[[], WorkerOptions] = WorkerOptions,
        embeddings: Callable[[], Sequence[str]] = tuple,
        patience: Patience = Patience(),
    ) -> None:
        self.name = str(address).removeprefix(f"{address.scheme}://")
        self.changed: Callable[[], object] = lambda: None
        self._client = Client(address)
        self._output = output
        self._catalogue = catalogue
        self._options = options
        self._embeddings = embeddings
        self._patience = patience
        self._offer: Offer | None = None
        self._here: tuple[str, ...] = ()  # names of embeddings
        self._closing = threading.Event()
        self._look_now = threading.Event()
        self._thread: threading.Thread | None = None
        self._job: Job | Task | None = None
        self._losses = 0
        self._total_losses = 0
        self._ended_jobs = 0
        self._message = ""

    def start(self) -> None:
        """Look for the server in the background."""
        assert self._thread is None, "the remote worker is started twice"
        self._thread = start_loop(f"featherweight-{self.name}", self._look)

    @property
    def is_ready(self) -> bool:
        """Whether the server answers."""
        return self._offer is not None and not self._closing.is_set()

    @property
    def facts(self) -> WorkerFacts:
        """Return it as the page shows it."""
        job, offer = self._job, self._offer
        if self._closing.is_set():
            state = WorkerState.ENDED
        elif offer is not None:
            state = WorkerState.BUSY if job is not None else WorkerState.IDLE
        else:
            state = WorkerState.WAITING if self._message else WorkerState.STARTING
        place = (
            f"{self._client.address}, {len(offer.models)} models" if offer is not None else str(self._client.address)
        )
        return WorkerFacts(
            self.name,
            place,
            state,
            job.task_id if job is not None else "",
            job.title if job is not None else "",
            "",
            self._total_losses,
            self._ended_jobs,
            self._message,
        )

    def takes(self, entry: Entry) -> bool:
        """Whether the server can do this; asked under the queue's lock, so it only compares."""
        offer = self._offer
        if isinstance(entry, Task):
            run = entry.product
            settings = entry.spec.attached.get("settings") if isinstance(run, ExtrasRun) else None
            return (
                offer is not None
                and isinstance(run, ExtrasRun)
                and isinstance(settings, Settings)
                and not unfit_extras(run.request, settings, offer)
            )
        if offer is None or not isinstance(entry, Job) or entry.made:
            return False
        try:
            return not unfit(entry.request, offer, self._checkpoint(entry.request), self._here)
        except FeatherweightError:
            return False  # a record that cannot be read, a name that is gone: said where it runs

    def close(self) -> None:
        """Look no more; a job that the server computes is lost to it."""
        self._closing.set()
        self._look_now.set()

    def _info(self, request: GenerationRequest) -> CheckpointInfo | None:
        return checkpoint_of(request, self._catalogue)

    def _checkpoint(self, request: GenerationRequest) -> str | None:
        info = self._info(request)
        return info.sha256 if info is not None else None

    def _look(self) -> bool:
        """Ask the server once, and wait; False when it is not asked any more."""
        if self._closing.is_set():
            return False
        self._look_now.clear()
        try:
            offer = _understood(Offer.asked, self._client)
            self._here = tuple(self._embeddings())
        except RemoteError as error:
            self._lose(f"The server {self._client.address} {error}.")
        except Exception as error:
            log.exception("%s: looking for the server failed", self.name)
            self._lose(f"The server {self._client.address} was not understood ({type(error).__name__}: {error}).")
        else:
            is_new = offer != self._offer
            self._offer = offer
            if is_new:
                self._message = ""
                self.changed()
        wait_s = self._patience.look_s if self._offer is not None else self._backoff_s()
        self._look_now.wait(wait_s)
        return True

    def _backoff_s(self) -> float:
        """A dead one is asked less and less often."""
        return float(min(self._patience.look_s * 2 ** min(max(self._losses - 1, 0), 10), MAX_LOOK_S))

    def _lose(self, message: str) -> None:
        was_there = self._offer is not None
        self._offer, self._message = None, message
        self._losses += 1
        self._total_losses += was_there
        if was_there:
            log.warning("%s", message)
            self.changed()

    # -- a job ---------------------------------------------------------------------------------------------------------

    def run(self, job: Job) -> Result:
        """Have the job made there. Raises `WorkerLostError` for whatever goes wrong: it is then made elsewhere."""
        offer = self._offer
        self._job = job
        try:
            if offer is None:
                raise RemoteError("is not there")
            return self._made(job, offer)
        except RemoteError as error:
            raise self._lost(error) from error
        finally:
            self._job = None
            self._ended_jobs += 1

    def _lost(self, error: RemoteError) -> WorkerLostError:
        sentence = f"The server {self._client.address} {error}."
        self._lose(sentence)  # until it has answered again
        return WorkerLostError(sentence, avoid=self.name)

    def run_task(self, task: Task) -> Outcome:
        """Have the images of Extras enlarged there, and saved and recorded here. Raises as `run`."""
        offer, run = self._offer, task.product
        assert isinstance(run, ExtrasRun)

        def operate(image: PostprocessedImage, arguments: Arguments) -> list[PostprocessedImage]:
            try:
                if offer is None:
                    raise RemoteError("is not there")
                return [self._operated(task, image, arguments, offer)]
            except RemoteError as error:
                raise self._lost(error) from error

        self._job, run.operate = task, operate
        try:
            outcome = task.spec.work(task)
            self._losses, self._message = 0, ""
            return outcome
        finally:
            self._job, run.operate = None, None
            self._ended_jobs += 1

    def _operated(
        self, task: Task, image: PostprocessedImage, arguments: Arguments, offer: Offer
    ) -> PostprocessedImage:
        """The image after the operations, made there."""
        body: dict[str, Any] = {"image": SourceImage.of(image.image).to_text(), "show_extras_results": True}
        wanted = _switched_on(arguments)
        for name, given in wanted.items():
            body |= {field: given[key] for key, field in EXTRAS_FIELDS[name].items() if key in given}
        image.on_progress(0.0, f"at {self.name}")
        posted = _Posted(self._client, "/sdapi/v1/extra-single-image", body, BYTES_PER_PIXEL * MAX_PIXELS)
        began = time.monotonic()
        limit_s = self._patience.stalled_s + self._patience.loading_s + PIXEL_S * image.image.width * image.image.height
        while not posted.wait(self._patience.progress_s):
            if self._closing.is_set():
                raise Interrupted("The server ends.")
            try:
                task.check()
            except Interrupted:
                if offer.is_ours:
                    posted.drop()  # it ends what nobody waits for; others' work there goes on
                else:
                    self._tell("interrupt", task, offer)
                raise
            if time.monotonic() - began > limit_s:
                posted.drop()
                raise RemoteError(f"made no image for {limit_s:.0f} s")
        reply = posted.reply()
        found = _understood(lambda: _image(reply["image"]))
        _check_enlarged(image.image.size, found.size, wanted.get("Upscale", {}))
        text = re.sub(r"<[^>]*>", "", _infotext(reply.get("html_info") or "")).strip()
        image.image, image.info = found, {**image.info, **({text: text} if text else {})}
        return image

    def _made(self, job: Job, offer: Offer) -> Result:
        request = job.request
        began, started = datetime.now().astimezone(), time.monotonic()
        sha256 = self._checkpoint(request)
        if sha256 is None or sha256 not in offer.models:
            raise RemoteError("no longer has the checkpoint")
        job.stage(Stage.SAMPLE)
        passes = 2 if request.hires is not None else 1
        job.plan(request.steps * request.batch_count * passes)
        path = "/sdapi/v1/img2img" if isinstance(request.start, FromImage) else "/sdapi/v1/txt2img"
        for source in dict.fromkeys(request.start.images) if isinstance(request.start, FromImage) else ():
            if request.settings.saving.save_init_img:
                self._output.save_source(source, request)
        body = body_of(request, offer, offer.models[sha256], job.task_id)
        width, height = _expected_size(request)
        pixels = width * height * request.batch_size * request.batch_count
        posted = _Posted(self._client, path, body, MAX_REPLY_BYTES + BYTES_PER_PIXEL * pixels)
        try:
            if not self._follow(job, posted, offer):
                return self._result(request, [], began, interrupted=True)
        finally:
            posted.drop()
        images = _understood(lambda: images_of(posted.reply(), request))
        self._losses, self._message = 0, ""
        problems: list[str] = []
        finished = [self._finished(job, image, began, problems) for image in images]
        result = self._result(request, finished, began, interrupted=False)
        return replace(result, notices=tuple(problems), timings_s={"remote": time.monotonic() - started})

    def _follow(self, job: Job, posted: _Posted, offer: Offer) -> bool:
        """Wait for the reply, with progress and interrupts. False where the user stopped it."""
        width, height = _expected_size(job.request)
        patience_s = self._patience.stalled_s + PIXEL_S * width * height * job.request.batch_size
        heard = moved = busy = time.monotonic()
        last: tuple[float, int] = (0.0, 0)
        has_begun = False
        stop_at: float | None = None
        while not posted.wait(self._patience.progress_s):
            now = time.monotonic()
            if self._closing.is_set():
                raise Interrupted("The server ends.")
            if stop_at is not None and now > stop_at:
                return False
            try:
                if stop_at is None:
                    job.check()
            except Interrupted:
                stop_at = now + (self._options().grace_s or patience_s)
                self._tell("interrupt", job, offer)
            except Skipped:
                self._tell("skip", job, offer)
            try:
                progress = self._client.call("GET", "/sdapi/v1/progress")
                place, is_idle = _understood(_place_of, progress)
            except RemoteError as error:
                if now - heard > self._patience.silent_s:
                    raise RemoteError(
                        f"did not say how far it is for {self._patience.silent_s:g} s ({error})"
                    ) from error
                continue
            heard = now
            if place != last:
                last, moved, has_begun = place, now, True
                job.step(round(place[0] * job.total_steps))
                self._preview(job, progress.get("current_image"))
            if offer.is_ours or not is_idle:  # ours shows nobody the work of others, and so may seem idle
                busy = now
            if now - busy > self._patience.idle_s:
                raise RemoteError(f"says for {self._patience.idle_s:g} s that it makes nothing, and has sent no image")
            limit_s = patience_s if has_begun else patience_s + self._patience.loading_s
            if now - moved > limit_s:
                raise RemoteError(f"made no progress for {limit_s:.0f} s")
        return stop_at is None

    def _preview(self, job: Job, text: object) -> None:
        if isinstance(text, str) and text and job.preview_every:
            try:
                job.preview(_understood(_image, text))
            except RemoteError as error:
                log.debug("%s: a preview cannot be read: %s", self.name, error)

    def _tell(self, what: str, job: Job | Task, offer: Offer) -> None:
        try:
            if offer.is_ours and what == "interrupt":  # others' jobs there go on
                self._client.call("POST", "/featherweight/v1/queue/cancel", {"task_id": _task_id(job.task_id)})
            else:
                self._client.call("POST", f"/sdapi/v1/{what}", {})
        except RemoteError as error:
            log.warning("%s was not told to %s: %s", self.name, what, error)

    def _finished(self, job: Job, image: GeneratedImage, began: datetime, problems: list[str]) -> GeneratedImage:
        """Save and record an image as if it were made here."""
        request = job.request
        if request.save_images and request.settings.saving.samples_save:
            info = self._info(request)
            model, shorthash = (info.model_name, info.shorthash or "") if info is not None else ("", "")
            context = replace(name_context(request, model, shorthash, (image.seed,), began), seed=image.seed)

            def on_path(path: Path, fingerprint: str) -> None:
                job.saving(image, path, fingerprint)

            saved, problem = self._output.save(image, request, context, on_path=on_path)
            if problem:
                problems.append(problem)
            image = saved
        job.finished_image(image)
        return image

    def _result(
        self, request: GenerationRequest, images: list[GeneratedImage], began: datetime, interrupted: bool
    ) -> Result:
        info = self._info(request)
        width, height = request.size_px
        return Result(
            images=tuple(images),
            interrupted=interrupted,
            info=GenerationInfo(
                prompts=(request.prompt,) * max(len(images), 1),
                negative_prompts=(request.negative_prompt,) * max(len(images), 1),
                seeds=tuple(image.seed for image in images) or (request.seed,),
                subseeds=tuple(image.subseed for image in images) or (request.subseed,),
                subseed_strength=request.subseed_strength,
                width=width,
                height=height,
                sampler=SAMPLERS.get(request.sampler).name,
                scheduler=request.scheduler,
                cfg_scale=request.cfg_scale,
                steps=request.steps,
                batch_size=request.batch_size,
                checkpoint_name=info.model_name if info is not None else "",
                checkpoint_hash=(info.shorthash or "") if info is not None else "",
                vae_name=None,
                vae_hash=None,
                seed_resize_from_width=request.seed_resize_from_width,
                seed_resize_from_height=request.seed_resize_from_height,
                denoising_strength=_strength(request),
                extra_params={"Worker": self.name},
                infotexts=tuple(image.infotext for image in images),
                styles=request.styles,
                job_timestamp=began.strftime("%Y%m%d%H%M%S"),
                clip_skip=request.settings.stable_diffusion.CLIP_stop_at_last_layers,
                version="",
            ),
        )


def embedding_names(engine: Engine) -> tuple[str, ...]:
    """The names of the embeddings that are here now; reads new files."""
    store = engine.adapters.files.embeddings
    store.refresh()
    return tuple(item.name for item in store.all)


def remote_workers(place: WorkerPlace, addresses: Sequence[str], file: Path | None) -> list[tuple[RemoteWorker, Lane]]:
    """Return a worker with its lane for each address. Raises as `addresses_of` does."""
    computing = place.computing
    workers = [
        RemoteWorker(
            address, place.output, computing.catalogue, place.options, lambda: embedding_names(computing.engine)
        )
        for address in addresses_of(addresses, file)
    ]
    return [(one, remote_lane(one)) for one in workers]


def remote_lane(worker: RemoteWorker) -> Lane:
    """Its lane in the queue."""
    return Lane(worker, worker.name, is_ready=lambda: worker.is_ready, takes=worker.takes, is_endable=True)


class _Posted:
    """The call that makes the images, in a thread of its own: it answers when they are made."""

    def __init__(self, client: Client, path: str, body: dict[str, Any], max_bytes: int) -> None:
        self._over = threading.Event()
        self._connection = Connection()
        self._reply: Any = None
        self._error: RemoteError | None = None

        def post() -> None:
            try:
                self._reply = client.call("POST", path, body, 24 * 3600.0, self._connection, max_bytes)
            except RemoteError as error:
                self._error = error
            except Exception as error:
                self._error = RemoteError(f"was lost ({type(error).__name__}: {error})")
            finally:
                self._over.set()

        threading.Thread(target=post, name="featherweight-remote-job", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        return self._over.wait(timeout_s)

    def drop(self) -> None:
        """Leave it: the other side sees that nobody waits."""
        self._connection.break_off()

    def reply(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._reply


def _understood(read: Callable[..., T], *arguments: object) -> T:
    """Return what is read from something that another server has sent: whatever goes wrong there is that server's
    fault. Raises `RemoteError`."""
    try:
        return read(*arguments)
    except RemoteError:
        raise
    except Exception as error:
        raise RemoteError(f"sent a reply that is not understood ({type(error).__name__}: {error})"[:500]) from error


def _place_of(progress: Mapping[str, Any]) -> tuple[tuple[float, int], bool]:
    """How far a server says that it is, 0 to 1 with the step of the image; and whether it says that it does nothing.
    Raises what is wrong with the reply."""
    state = progress.get("state") or {}
    fraction, step = float(progress.get("progress") or 0.0), int(state.get("sampling_step") or 0)
    if not 0.0 <= fraction <= 1.0:  # NaN neither
        raise ValueError(f"a progress of {fraction}")
    return (fraction, step), fraction == 0.0 and step == 0 and not state.get("job_count") and not state.get("job")


def body_of(request: GenerationRequest, offer: Offer, title: str, task_id: str) -> dict[str, Any]:
    """The request as a body of POST /sdapi/v1/txt2img or img2img there. Styles are in the prompt already."""
    values = {key: value for key, value in api_values(request).items() if key != "checkpoint"}
    if isinstance(request.start, FromImage):
        others = {"enable_hr", *(row.api for row in IMAGE_ROWS)}  # not asked there, or as `start_of` says it
        values = {key: value for key, value in values.items() if key not in others} | start_of(request.start)
    if request.start.references:
        values["reference_images"] = [source.to_text() for source in request.start.references]
    overrides = settings_sent(request)
    body: dict[str, Any] = {
        **values,
        "styles": [],
        "send_images": True,
        "save_images": False,
        "do_not_save_grid": True,
        "override_settings": {**overrides, "sd_model_checkpoint": title},
        # A change back would have the reference UI load its own checkpoint after each job.
        "override_settings_restore_afterwards": offer.is_ours or bool(overrides),
    }
    if offer.is_ours:
        body["force_task_id"] = _task_id(task_id)
    return body


def start_of(start: FromImage) -> dict[str, Any]:
    """Return what an img2img begins with, as fields of the body; those that say nothing are left out."""
    values: dict[str, Any] = {"init_images": [source.to_text() for source in start.images]}
    values |= {row.api: getattr(start, row.name) for row in IMAGE_ROWS if row.api}
    mask = start.mask
    if mask is not None:
        values |= {row.api: getattr(mask, row.name) for row in MASK_ROWS if row.api}
        values["mask"] = mask.image.to_text()
        values["inpainting_mask_invert"] = int(mask.invert)
        if mask.latent is not None:
            values["latent_mask"] = mask.latent.to_text()
    grown = {row.api for row in IMAGE_ROWS if row.api.startswith("outpaint_")} if not start.grows else set()
    plain = {key: int(value) if isinstance(value, IntEnum) else value for key, value in values.items()}
    return {key: value for key, value in plain.items() if value is not None and key not in grown}


def _strength(request: GenerationRequest) -> float | None:
    if isinstance(request.start, FromImage):
        return request.start.denoising_strength
    return request.hires.denoising_strength if request.hires else None


def _expected_size(request: GenerationRequest) -> tuple[int, int]:
    """Return the size of the images. Where only the masked area is made it is put back into the first image."""
    start = request.start
    if isinstance(start, FromImage) and start.mask is not None and start.mask.full_resolution:
        return start.images[0].image.size
    return request.size_px if request.hires is None else hires_size(*request.size_px, request.hires).target


def _check_enlarged(before: tuple[int, int], after: tuple[int, int], upscale: Mapping[str, Any]) -> None:
    """Raise `RemoteError` for a size that a factor does not give."""
    if upscale.get("upscale_mode", 0) != 0 or upscale.get("upscaler_1_name", "None") == "None":
        return
    factor = float(upscale.get("upscale_by", 1.0))
    if any(abs(side * factor - found) > SIZE_OFF_PX for side, found in zip(before, after, strict=True)):
        raise RemoteError(f"sent an image of {after[0]}x{after[1]} for {before[0]}x{before[1]} times {factor:g}")


def images_of(reply: Any, request: GenerationRequest) -> list[GeneratedImage]:
    """The samples of a reply, checked: as many as were asked for, of the right size, with the right seeds. Raises
    `RemoteError`, and others for a reply that is none."""
    texts = reply["images"]
    info = read_json(reply["info"])
    infotexts = info["infotexts"]
    first = int(info.get("index_of_first_image") or 0)
    count = request.batch_size * request.batch_count
    if not isinstance(texts, list) or not isinstance(infotexts, list):
        raise RemoteError("sent a reply that is not understood (no list of images)")
    texts, infotexts = texts[first:], infotexts[first:]
    if len(texts) != count or len(infotexts) < count:
        raise RemoteError(f"sent {len(texts)} images with {len(infotexts)} infotexts instead of {count}")
    found = []
    expected = _expected_size(request)
    for number, (text, infotext) in enumerate(zip(texts, infotexts, strict=False)):
        image = _image(text)
        # Models differ in what sides are multiples of.
        if any(not 0 <= wanted - side < 64 for wanted, side in zip(expected, image.size, strict=True)):
            raise RemoteError(f"sent an image of {image.width}x{image.height} instead of {expected[0]}x{expected[1]}")
        steady = request.subseed_strength > 0
        seed = seed_after(request.seed, 0 if steady else number)
        infotext = _infotext(infotext)
        said = parse_infotext(infotext).get("Seed")
        if str(said) != str(seed):
            raise RemoteError(f"made an image with the seed {said} instead of {seed}")
        batch, index = divmod(number, request.batch_size)
        key = f"0/{sample_key(batch, index)}"
        found.append(GeneratedImage(image, infotext, seed, seed_after(request.subseed, number), key=key))
    return found


def _image(text: object) -> Image.Image:
    try:
        data = base64.b64decode(str(text).partition(",")[2] if str(text).startswith("data:") else str(text))
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise RemoteError(f"sent an image of {image.width}x{image.height}")
        return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # SyntaxError: a broken chunk
        raise RemoteError(f"sent an image that cannot be read ({error})") from error


def _infotext(text: object) -> str:
    if not isinstance(text, str):
        raise RemoteError("sent an image whose text is none")
    if len(text) > MAX_INFOTEXT:
        raise RemoteError(f"sent an image with a text of {len(text)} characters")
    return text


def _task_id(task_id: str) -> str:
    """Ours there, beside those of its own users."""
    return f"{task_id}@remote"


def _entries(reply: Any) -> list[dict[str, Any]]:
    return [entry for entry in reply or () if isinstance(entry, dict)]


def _names(entries: list[dict[str, Any]], key: str) -> frozenset[str]:
    return frozenset(str(entry[key]).lower() for entry in entries if entry.get(key))


def _detail(content: bytes) -> str:
    """Return what an error reply says, shortened."""
    try:
        found = read_json(content)
        text = str(found.get("detail") or found.get("error") or "")
    except (ValueError, AttributeError):
        return ""
    return f" ({text[:200]})" if text else ""
