"""Other servers as workers: our own API with plain images, and stubs that misbehave."""

import base64
import io
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from PIL import Image

from lib_remote_workers import sdapi
from lib_remote_workers.sdapi import (
    Address,
    Offer,
    Patience,
    RemoteWorker,
    addresses_of,
    body_of,
    remote_lane,
    unfit,
    unfit_extras,
)
from modules.errors import InvalidValueError
from modules.flags.flags import Flags, public_flags
from modules.images.resize import ResizeMode
from modules.jobs.job import Job, JobStatus
from modules.jobs.lanes import Lane
from modules.jobs.store import JobStore
from modules.jobs.work.extras import Extras, ExtrasRequest, Source
from modules.jobs.workers.executor import WorkerState
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing
from modules.postprocessing.operations import Operations
from modules.processing.record.output import Output
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import GeneratedImage, Result
from modules.processing.request.source_images import FromImage, FromNoise, Mask, MaskedContent, SourceImage
from modules.services import Services
from modules.settings.store import SettingsStore
from modules.settings.values import Settings
from tests.fakes import fake_services, whole_api
from tests.jobs.fake_worker import result_of
from tests.queues import JobQueue
from tests.recordings import TINY

SIZE = {"width": 64, "height": 64}


def until(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> CheckpointCatalogue:
    catalogue = CheckpointCatalogue((), HashCache(tmp_path_factory.mktemp("cache") / "hashes.json"), files=(TINY,))
    catalogue.with_hash(catalogue.entries[0])
    catalogue.refresh()
    return catalogue


class Local:
    """This machine: says which jobs came to it."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, job: Job) -> Result:
        self.ran.append(job.task_id)
        return result_of(job.request, [], False)

    def close(self) -> None:
        """Holds nothing."""


class Head:
    """A queue with a remote worker and, once it is allowed to, this machine."""

    def __init__(self, address: str, folder: Path, catalogue: CheckpointCatalogue) -> None:
        self.local, self.told = Local(), list[GeneratedImage]()
        self.local_works = False
        self.folder = folder
        self.worker = RemoteWorker(
            Address.of(address),
            Output(folder),
            catalogue,
            patience=Patience(look_s=0.1, progress_s=0.02, silent_s=0.3, stalled_s=0.2, loading_s=0.0, idle_s=0.4),
        )
        lanes = [Lane(self.local, "server", is_ready=lambda: self.local_works), remote_lane(self.worker)]
        self.queue = JobQueue(lanes, JobStore(None))
        self.worker.changed = self.queue.dispatcher.wake
        self.queue.images.listen(self)
        self.worker.start()
        self.queue.start()

    def saved_late(self, task_id: str, user: str, image: GeneratedImage, before: Path | None) -> None:
        raise AssertionError

    def finished(self, task_id: str, user: str, image: GeneratedImage) -> None:
        self.told.append(image)

    def submit(self, prompt: str = "a", **more: Any) -> Job:
        request = GenerationRequest(**{"prompt": prompt, "seed": 5, "steps": 3, "subseed": 0, **SIZE, **more})
        return self.queue.submit(request, preview_every=1)

    def works_here(self) -> None:
        self.local_works = True
        self.queue.dispatcher.wake()


# -- our own server ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Services]]:
    services = fake_services(tmp_path_factory.mktemp("remote"), api=True, api_auth="me:secret")
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # as webui.py's: replies are sent at once
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(whole_api(services), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield listener.getsockname()[1], services
    server.should_exit = True
    thread.join(10)
    services.dispatcher.close()
    services.history.close()


@pytest.fixture
def head(ours: tuple[int, Services], tmp_path: Path, catalogue: CheckpointCatalogue) -> Iterator[Head]:
    head = Head(f"http://me:secret@127.0.0.1:{ours[0]}", tmp_path, catalogue)
    until(lambda: head.worker.is_ready)
    yield head
    head.works_here()
    head.queue.close()
    assert head.worker.facts.state is WorkerState.ENDED


def test_a_server_of_ours_makes_images_that_are_saved_and_recorded_here(head: Head) -> None:
    job = head.submit("a cat", batch_count=2)
    assert job.wait(120) and job.status is JobStatus.DONE
    images = job.result().images
    assert [image.seed for image in images] == [5, 6] and [image.key for image in head.told] == ["0/0/0", "0/1/0"]
    assert all(image.path is not None and image.path.is_relative_to(head.folder) for image in images)
    assert "a cat" in images[0].infotext and job.result().info.extra_params == {"Worker": head.worker.name}
    assert "secret" not in repr(head.worker.facts) and head.worker.facts.jobs == 1
    assert head.local.ran == []


def test_an_interrupt_is_passed_on_to_this_job_alone(head: Head, ours: tuple[int, Services]) -> None:
    remote = ours[1].queue
    job = head.submit("slow", steps=200)
    until(lambda: job.progress().step > 2 and remote.running())
    other = remote.submit(GenerationRequest(prompt="theirs", steps=2, **SIZE))  # type: ignore[arg-type]
    head.queue.interrupt(job.task_id)
    assert job.wait(120) and job.status is JobStatus.INTERRUPTED and job.result().interrupted
    assert other.wait(120) and other.status is JobStatus.DONE


def test_what_cannot_be_the_same_there_stays_here(head: Head) -> None:
    source = SourceImage.of(Image.new("RGB", (64, 64)))
    head.works_here()
    masks = Settings().with_changes({"save_mask": True})
    jobs = [
        head.submit(start=FromImage(images=(source,)), settings=masks),
        head.submit("a <lora:mine:1>"),
        head.submit(settings=Settings().with_changes({"sd_vae": "mine.vae.pt"})),
    ]
    assert all(job.wait(120) for job in jobs) and head.local.ran == [job.task_id for job in jobs]


def test_a_server_of_ours_makes_images_from_images(head: Head, ours: tuple[int, Services]) -> None:
    source = SourceImage.of(Image.new("RGB", (64, 64), "red"))
    mask = Mask(image=SourceImage.of(Image.new("L", (64, 64), 255)), fill=MaskedContent.LATENT_NOISE, blur_x=2)
    job = head.submit(start=FromImage(images=(source,), denoising_strength=0.4, mask=mask, outpaint_left=64))
    assert job.wait(120) and job.status is JobStatus.DONE and head.local.ran == [], job.error
    there = ours[1].queue.known.get(f"{job.task_id}@remote").request
    assert there.start == job.request.start and there.size_px == (128, 64)  # as equal as images by their pixels are
    assert job.result().info.denoising_strength == 0.4 and job.result().images[0].image.size == (128, 64)


# -- a stub ------------------------------------------------------------------------------------------------------------


class Stub:
    """A reference UI of which a test says what is wrong with it. `reply` makes the answer of txt2img."""

    def __init__(self, sha256: str) -> None:
        self.reply: Callable[[dict[str, Any]], Any] = good
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.interrupts = 0
        self.is_deaf = False  # GET routes do not answer
        self.missing_bytes = 0  # of an answer to POST: announced, and not sent
        self.released = threading.Event()
        stub = self
        pages = {
            "/sdapi/v1/sd-models": [{"title": "tiny [abc]", "sha256": sha256}, {"title": "no hash", "sha256": None}],
            "/sdapi/v1/samplers": [{"name": "DPM++ 2M"}, {"name": "Euler"}],
            "/sdapi/v1/upscalers": [{"name": "None"}, {"name": "4x-real"}],
            "/sdapi/v1/face-restorers": [{"name": "GFPGAN"}],
            "/sdapi/v1/options": {"CLIP_stop_at_last_layers": 1, "fp8_storage": "Disable"},
            "/sdapi/v1/progress": {"progress": 0.5, "state": {"sampling_step": 2}, "current_image": None},
            "/sdapi/v1/embeddings": {"loaded": {"known": {}}},
        }

        self.pages: dict[str, Any] = pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if stub.is_deaf:
                    self.close_connection = True
                    return
                found = pages.get(self.path)
                self.answer(200 if found is not None else 404, found)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
                if self.path.endswith("interrupt"):
                    stub.interrupts += 1
                    stub.released.set()
                    self.answer(200, {})
                    return
                stub.asked.append(body)
                stub.paths.append(self.path)
                try:
                    found = stub.reply(body)
                except ConnectionError:
                    self.close_connection = True
                    return
                self.answer(500 if found is None else 200, found)

            def answer(self, status: int, found: Any) -> None:
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                missing = stub.missing_bytes if self.command == "POST" else 0
                self.send_header("Content-Length", str(len(data) + missing))
                self.end_headers()
                self.wfile.write(data)
                if missing:
                    stub.released.wait(20)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def hang(self, body: dict[str, Any]) -> Any:
        self.released.wait(20)
        raise ConnectionResetError

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


def png(size: tuple[int, int] = (64, 64)) -> str:
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def encoded(format_name: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, format_name)
    return base64.b64encode(file.getvalue()).decode()


def broken_png() -> str:
    """What follows the first half of the pixels is no chunk."""
    data = base64.b64decode(png())
    start = data.index(b"IDAT")
    pixels = data[start + 4 : start + 4 + int.from_bytes(data[start - 4 : start])]
    half = b"IDAT" + pixels[: len(pixels) // 2]
    chunk = (len(half) - 4).to_bytes(4) + half + zlib.crc32(half).to_bytes(4)
    return base64.b64encode(data[: start - 4] + chunk + b"\0\0\0\x04\0\0\0\0junkjunk").decode()


def good(body: dict[str, Any], **wrong: Any) -> dict[str, Any]:
    count = body["n_iter"] * body["batch_size"]
    infotexts = [f"{body['prompt']}\nSteps: 3, Seed: {body['seed'] + number}, Size: 64x64" for number in range(count)]
    info = {"infotexts": infotexts, "index_of_first_image": 0}
    reply = {"images": [png()] * count, "info": json.dumps(info)}
    return {**reply, **wrong}


def dead(body: dict[str, Any]) -> Any:
    raise ConnectionResetError


@pytest.fixture
def stub(catalogue: CheckpointCatalogue) -> Iterator[Stub]:
    stub = Stub(str(catalogue.entries[0].sha256))
    yield stub
    stub.close()


@pytest.fixture
def foreign(stub: Stub, tmp_path: Path, catalogue: CheckpointCatalogue) -> Iterator[Head]:
    head = Head(f"http://127.0.0.1:{stub.server.server_address[1]}", tmp_path, catalogue)
    until(lambda: head.worker.is_ready)
    yield head
    head.works_here()
    head.queue.close()


def test_a_foreign_server_is_asked_in_its_own_words(foreign: Head, stub: Stub) -> None:
    settings = Settings().with_changes({"CLIP_stop_at_last_layers": 2})
    job = foreign.submit("a cat", settings=settings, styles=("s",))
    assert job.wait(120) and job.status is JobStatus.DONE and job.result().images[0].path is not None
    (body,) = stub.asked
    assert body["override_settings"] == {"sd_model_checkpoint": "tiny [abc]", "CLIP_stop_at_last_layers": 2}
    assert body["save_images"] is False and body["styles"] == [] and "force_task_id" not in body
    assert (body["prompt"], body["seed"], body["steps"], body["sampler_name"]) == ("a cat", 5, 3, "DPM++ 2M")


def test_img2img_and_inpainting_are_asked_in_the_words_of_the_reference_ui(foreign: Head, stub: Stub) -> None:
    source = SourceImage.of(Image.new("RGB", (96, 80), "red"))
    mask = Mask(image=SourceImage.of(Image.new("L", (96, 80), 255)), invert=False, full_resolution=True, padding=8)
    start = FromImage(images=(source,), resize_mode=ResizeMode.RESIZE_AND_FILL, denoising_strength=0.5, mask=mask)
    stub.reply = lambda body: good(body, images=[png((96, 80))])  # only the masked area is made, and put back
    job = foreign.submit("a cat", start=start)
    assert job.wait(120) and job.status is JobStatus.DONE and job.result().images[0].image.size == (96, 80)
    (body,), (path,) = stub.asked, stub.paths
    assert path == "/sdapi/v1/img2img" and body["init_images"] == [source.to_text()]
    wanted: dict[str, Any] = {
        "denoising_strength": 0.5,
        "resize_mode": 2,
        "inpainting_fill": 1,
        "inpaint_full_res": True,
    }
    wanted |= {
        "inpaint_full_res_padding": 8,
        "inpainting_mask_invert": 0,
        "mask_blur_x": 4,
        "mask": mask.image.to_text(),
    }
    assert {key: body[key] for key in wanted} == wanted
    assert not {"enable_hr", "outpaint_left", "latent_mask", "image_cfg_scale"} & set(body)


def extras_of(head: Head, image: Image.Image, operations: dict[str, dict[str, Any]], is_batch: bool = False) -> Any:
    known = Operations((Doubled(),))
    extras = Extras(head.queue, known, SettingsStore(head.folder / "config.json"), head.folder)
    file = head.folder / "source.png"
    image.save(file)
    return extras.start(ExtrasRequest(sources=(Source("source.png", file),), operations=operations, is_batch=is_batch))


class Doubled(ScriptPostprocessing):
    """Stands for the upscaler of this machine, which nobody asks."""

    name = "Upscale"
    fields = (
        Field(name="upscale_by", label="By", default=2.0, elem_id="by"),
        Field(name="upscaler_1_name", label="With", default="None", elem_id="with"),
    )

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        pp.image = pp.image.resize((32, 32))


UPSCALED = {"Upscale": {"upscale_by": 2.0, "upscaler_1_name": "4x-real"}}


def test_extras_are_done_there_and_saved_here(foreign: Head, stub: Stub) -> None:
    stub.reply = lambda body: {"image": png((32, 24)), "html_info": "<p>Postprocess upscale by: 2</p>"}
    run = extras_of(foreign, Image.new("RGB", (16, 12)), UPSCALED)
    assert run.task.wait(120) and run.task.status is JobStatus.DONE, run.task.error
    (body,), (found,) = stub.asked, run.task.result()["results"]
    assert (body["upscaling_resize"], body["upscaler_1"], stub.paths) == (
        *(2.0, "4x-real"),
        ["/sdapi/v1/extra-single-image"],
    )
    with Image.open(found["path"]) as saved:
        assert saved.size == (32, 24) and saved.info["postprocessing"] == "Postprocess upscale by: 2"


@pytest.mark.parametrize("is_batch", [False, True])
def test_extras_that_go_wrong_there_are_done_here(foreign: Head, stub: Stub, is_batch: bool) -> None:
    stub.reply = lambda body: {"image": png((99, 99)), "html_info": ""}
    run = extras_of(foreign, Image.new("RGB", (16, 12)), UPSCALED, is_batch)
    until(lambda: run.task.standing.avoids)
    foreign.works_here()
    assert run.task.wait(120) and run.task.status is JobStatus.DONE and len(stub.asked) == 1
    assert [image["width"] for image in run.task.result()["results"]] == [32]


def test_why_extras_stay_here_is_said() -> None:
    offer = Offer(upscalers=frozenset({"4x-real"}), restorers=frozenset({"gfpgan"}))

    def why(operations: dict[str, dict[str, Any]], settings: Settings | None = None) -> str:
        request = ExtrasRequest(sources=(Source("a"),), operations=operations)
        return unfit_extras(request, settings or Settings(), offer)

    assert why(UPSCALED) == "" == why({"GFPGAN": {"enable": True}})
    assert why({"Upscale": {"upscaler_1_name": "other"}}) == "the upscaler other is not there"
    assert why({"CodeFormer": {}}) == "the face restorer CodeFormer is not there"
    assert why({"Caption": {}}) == "the operation Caption is only here"
    assert "ESRGAN_tile" in why(UPSCALED, Settings().with_changes({"ESRGAN_tile": 64}))


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (dead, "cannot be reached"),
        (lambda body: None, "answered POST /sdapi/v1/txt2img with 500"),
        (lambda body: b"<html>", "something that is no JSON"),
        (lambda body: [1], "a reply that is not understood"),
        (lambda body: good(body, images=[]), "sent 0 images with 1 infotexts instead of 1"),
        (lambda body: good(body, images=["!!"]), "an image that cannot be read"),
        (lambda body: good(body, images=[png((32, 128))]), "sent an image of 32x128 instead of 64x64"),
        (lambda body: good({**body, "seed": 99}), "made an image with the seed 99 instead of 5"),
        (
            lambda body: good(body, info='{"infotexts": [""], "index_of_first_image": Infinity}'),
            "holds Infinity, which is no number",
        ),
        (
            lambda body: good(body, info='{"infotexts": [""], "index_of_first_image": NaN}'),
            "holds NaN, which is no number",
        ),
        (lambda body: good(body, info="[" * 100_000), "nested too deep"),
        (lambda body: good(body, images=[broken_png()]), "an image that cannot be read (broken"),
        (lambda body: good(body, images=[encoded("TIFF")]), "an image that cannot be read"),
        (lambda body: good({**body, "prompt": "x" * 1_000_000}), "with a text of 10000"),
        (lambda body: good(body, info='{"infotexts": [5]}'), "an image whose text is none"),
    ],
)
def test_a_job_that_goes_wrong_there_is_made_here(
    foreign: Head, stub: Stub, reply: Callable[[dict[str, Any]], Any], sentence: str
) -> None:
    stub.reply = reply
    job = foreign.submit()
    until(lambda: job.standing.avoids)
    foreign.works_here()
    assert job.wait(120) and job.status is JobStatus.DONE and foreign.local.ran == [job.task_id]
    assert sentence in job.result().notices[0] and "tried again" in job.result().notices[0]
    assert job.standing.attempts == 1 and foreign.told == [] and len(stub.asked) == 1
    assert foreign.worker.facts.restarts == 1
    until(lambda: foreign.worker.is_ready)  # it answers again


def test_a_server_that_hangs_or_goes_silent_loses_its_job(foreign: Head, stub: Stub) -> None:
    stub.reply = stub.hang
    job = foreign.submit()
    until(lambda: job.standing.avoids)
    assert "made no progress for" in foreign.worker.facts.message or foreign.worker.is_ready
    until(lambda: foreign.worker.is_ready)
    second = foreign.submit()
    until(lambda: second.status is JobStatus.RUNNING)
    stub.is_deaf = True
    until(lambda: second.standing.avoids)
    until(lambda: foreign.worker.facts.state is WorkerState.WAITING)
    assert "cannot be reached" in foreign.worker.facts.message or "did not say" in foreign.worker.facts.message
    foreign.works_here()
    assert job.wait(120) and second.wait(120)


def test_a_foreign_server_is_told_to_interrupt(foreign: Head, stub: Stub) -> None:
    stub.reply = stub.hang
    job = foreign.submit()
    until(lambda: stub.asked)
    foreign.queue.interrupt(job.task_id)
    assert job.wait(120) and job.status is JobStatus.INTERRUPTED and stub.interrupts == 1


# -- what fits ---------------------------------------------------------------------------------------------------------


def test_why_a_request_stays_here_is_said(catalogue: CheckpointCatalogue) -> None:
    names = {"samplers": frozenset({"dpm++ 2m"}), "upscalers": frozenset({"latent"}), "loras": frozenset({"mine"})}
    offer = Offer(models={"f": "t"}, options=frozenset({"fp8_storage"}), **names)  # type: ignore[arg-type]

    def why(prompt: str = "a", sha256: str | None = "f", **more: Any) -> str:
        return unfit(GenerationRequest(prompt=prompt, **more), offer, sha256, ["Bad"])

    shown = FromNoise((SourceImage.of(Image.new("RGB", (8, 8))),))
    assert why(start=shown) == "only this program shows reference images to models"
    assert why() == "" and why("<lora:mine:1> bads") == ""
    assert why(sha256=None) == why(sha256="e") == "the checkpoint is not there"
    assert why(script="x") == "it runs scripts" and why(alwayson_args={"x": (1,)}) == "it runs scripts"
    assert why("<lora:other:1>") == "<lora:other> is not there" and "hypernet" in why("<hypernet:mine:1>")
    assert why("a BAD thing") == "the embedding Bad is not there" and why("__color__") == "it uses wildcards"
    assert "Euler" in why(sampler="Euler") and "Karras" in why(scheduler="Karras")
    assert why(hires=HiresRequest(upscaler="Lanczos")) == "the upscaler Lanczos is not there"
    assert "several checkpoints" in why(refiner_checkpoint="r")
    fp8 = Settings().with_changes({"fp8_storage": "Enable"})
    assert why(settings=fp8) == "only this program knows the setting fp8_storage"
    unknown = Settings().with_changes({"eta_ddim": 0.5})
    assert why(settings=unknown) == "the setting eta_ddim is not known there"
    assert why(settings=Settings().with_changes({"queue_limit": 3})) == ""  # no image depends on it
    mine = Offer(is_ours=True)
    assert "reference_images" in body_of(GenerationRequest(start=shown), mine, "t", "task(a)")
    assert body_of(GenerationRequest(), mine, "t", "task(a)")["force_task_id"] == "task(a)@remote"


def test_addresses_are_read_and_never_show_the_login(tmp_path: Path) -> None:
    address = Address.of("https://me:p%40ss@example.org/sd/")
    assert (address.host, address.port, address.path, address.user, address.password) == (
        *("example.org", 443, "/sd"),
        *("me", "p@ss"),
    )
    assert str(address) == "https://example.org:443/sd" and "p@ss" not in repr(address)
    for bad in ("ftp://a", "me:secret@host", "http://", "http://a:99999", "http://a/?x=1"):
        with pytest.raises(InvalidValueError, match="not understood") as error:
            Address.of(bad)
        assert "secret" not in str(error.value)
    file = tmp_path / "workers"
    file.write_text("# mine\nhttp://a:1\n\n")
    assert [str(found) for found in addresses_of(["http://b:2"], file)] == ["http://b:2", "http://a:1"]
    with pytest.raises(InvalidValueError, match="given twice"):
        addresses_of(["http://a:1", "http://u:p@a:1"])
    with pytest.raises(InvalidValueError, match="cannot be read"):
        addresses_of([], tmp_path / "none")
    assert public_flags(Flags(remote_worker=("http://me:secret@a:1",)))["remote_worker"] == "(hidden)"


@pytest.mark.parametrize(
    ("progress", "sentence"),
    [
        ({"progress": float("nan")}, "did not say how far it is"),
        ({"progress": 1e308}, "did not say how far it is"),
        ({"progress": [], "state": 5}, "did not say how far it is"),
        ({"progress": 0.0, "state": {"job_count": 0}}, "that it makes nothing"),
        ({"progress": 0.5, "state": {"sampling_step": 1}}, "made no progress"),
    ],
)
def test_a_reply_that_never_comes_in_full_is_not_waited_for(
    foreign: Head, stub: Stub, progress: dict[str, Any], sentence: str
) -> None:
    stub.missing_bytes = 100_000
    stub.pages["/sdapi/v1/progress"] = progress
    job = foreign.submit()
    until(lambda: job.standing.avoids)
    foreign.works_here()
    assert job.wait(120) and job.status is JobStatus.DONE and foreign.local.ran == [job.task_id]
    assert sentence in job.result().notices[0]


def test_a_reply_that_is_far_larger_than_its_images_is_not_read(
    foreign: Head, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdapi, "MAX_REPLY_BYTES", 1 << 20)
    stub.reply = lambda body: good(body, padding="x" * (2 << 20))
    job = foreign.submit()
    until(lambda: job.standing.avoids)
    foreign.works_here()
    assert job.wait(120) and "sent more than 1 MiB" in job.result().notices[0]
