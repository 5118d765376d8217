"""The img2img form as a request: what its sub tabs start from, sizes, batches of files and folders."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.errors import InvalidValueError
from modules.images.encode import encode_image
from modules.images.resize import ResizeMode
from modules.jobs.job import JobStatus
from modules.processing.request.source_images import FromImage, MaskedContent, SourceImage
from modules.services import Services
from modules.ui.common.uploads import KEPT_S, Uploads
from modules.ui.form.batch_form import BatchForm
from modules.ui.form.form import IMAGE_FIELDS, form_values, pasted_fields, request_of
from modules.ui.form.start_form import Mode, Pictures, SentFile, mode_of, sized, stand_in, start_of
from tests.fakes import fake_services
from tests.ui.test_form import FORM as TXT2IMG_FORM

RED, BLUE = (255, 0, 0), (0, 0, 255)
FORM: dict[str, Any] = {
    **{name: value for name, value in TXT2IMG_FORM.items() if name in IMAGE_FIELDS},
    "width": 64,
    "height": 64,
    "batch_size": 1,
    "denoising_strength": 0.5,
    "resize_mode": 1,
    "image_cfg_scale": 1.5,
    "mask_blur_x": 0,
    "mask_invert": 0,
    "mask_fill": 2,
    "mask_full_resolution": 1,
    "mask_padding": 8,
    **dict.fromkeys(("outpaint_left", "outpaint_right", "outpaint_up", "outpaint_down"), 0),
    "mode": "inpaint",
    "sizing": "to",
    "scale_by": 1,
    "mask_alpha": 0,
    "batch_source": "upload",
    "batch_input_dir": "",
    "batch_output_dir": "",
    "batch_mask_dir": "",
    "batch_png_info": False,
    "batch_png_info_dir": "",
    "batch_png_info_fields": ["Prompt"],
}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path / "images")


def png(color: tuple[int, ...] | Image.Image, infotext: str | None = None) -> bytes:
    image = color if isinstance(color, Image.Image) else Image.new("RGBA" if len(color) == 4 else "RGB", (16, 8), color)
    return encode_image(image, "png", infotext)


def half_painted(color: tuple[int, int, int] = BLUE) -> Image.Image:
    """Paint over the left half, nothing on the right."""
    paint = Image.new("RGBA", (16, 8), (0, 0, 0, 0))
    paint.paste((*color, 255), (0, 0, 8, 8))
    return paint


def pictures(uploads: Uploads, **images: bytes) -> Pictures:
    """As the page names them."""
    return Pictures.of(json.dumps({name: uploads.add(data).key for name, data in images.items()}))


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_form_covers_every_field() -> None:
    assert set(FORM) == set(IMAGE_FIELDS)


def test_inpaint_takes_what_is_painted_as_mask_and_every_control(services: Services, uploads: Uploads) -> None:
    start = start_of(FORM, pictures(uploads, image=png(RED), paint=png(half_painted())), uploads)
    request = request_of(FORM, services, start)
    assert isinstance(request.start, FromImage) and start.mask is not None
    assert np.array_equal(np.asarray(start.mask.image.image), np.asarray(half_painted())[..., 3])
    assert start.images[0].image.getpixel((3, 3)) == RED, "an image is not changed by its mask"
    assert (start.denoising_strength, start.resize_mode) == (0.5, ResizeMode.CROP_AND_RESIZE)
    mask = start.mask
    assert (mask.blur_x, mask.blur_y, mask.fill, mask.padding) == (0, 0, MaskedContent.LATENT_NOISE, 8)
    assert mask.full_resolution is True and mask.invert is False


def test_a_sketch_is_painted_over_the_image(uploads: Uploads) -> None:
    sent = pictures(uploads, image=png(RED), paint=png(half_painted()))
    start = start_of({**FORM, "mode": "sketch"}, sent, uploads)
    assert start.mask is None
    assert start.images[0].image.getpixel((3, 3)) == BLUE and start.images[0].image.getpixel((12, 3)) == RED
    unpainted = start_of({**FORM, "mode": "sketch"}, pictures(uploads, image=png(RED)), uploads)
    assert unpainted.images[0].image.getpixel((3, 3)) == RED


def test_an_inpaint_sketch_is_both_and_may_be_transparent(uploads: Uploads) -> None:
    sent = pictures(uploads, image=png(RED), paint=png(half_painted()))
    start = start_of({**FORM, "mode": "inpaint_sketch", "mask_alpha": 50}, sent, uploads)
    assert start.mask is not None and start.mask.image.image.getpixel((3, 3)) == 128
    assert start.images[0].image.getpixel((3, 3)) == (127, 0, 128)
    assert start.images[0].image.getpixel((12, 3)) == RED


def test_an_uploaded_mask_is_taken_as_it_is(uploads: Uploads) -> None:
    mask = Image.new("L", (32, 16), 200)
    start = start_of({**FORM, "mode": "inpaint_upload"}, pictures(uploads, image=png(RED), mask=png(mask)), uploads)
    assert start.mask is not None and start.mask.image.image.size == (32, 16)


@pytest.mark.parametrize(
    ("mode", "images", "sentence"),
    [
        ("img2img", {}, "There is no image to start from"),
        ("inpaint", {"image": png(RED)}, "Nothing is painted"),
        ("inpaint_sketch", {"image": png(RED)}, "Nothing is painted"),
        ("inpaint_upload", {"image": png(RED)}, "There is no mask"),
        ("inpaint", {"image": png(RED), "paint": png(Image.new("RGBA", (9, 9), BLUE))}, "image differ in size"),
        ("elsewhere", {"image": png(RED)}, "no sub tab 'elsewhere'; known: img2img, sketch"),
    ],
)
def test_what_is_missing_is_said(mode: str, images: dict[str, bytes], sentence: str, uploads: Uploads) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        start_of({**FORM, "mode": mode}, pictures(uploads, **images), uploads)


def test_reference_images_go_with_any_sub_tab(uploads: Uploads) -> None:
    key, red = (uploads.add(png(color)).key for color in (BLUE, RED))
    sent = Pictures.of(json.dumps({"image": red, "references": [key, red]}))
    start = start_of({**FORM, "mode": "img2img"}, sent, uploads)
    assert [image.image.convert("RGB").getpixel((0, 0)) for image in start.references] == [BLUE, RED]
    with pytest.raises(InvalidValueError, match="A reference image is no longer kept"):
        start_of({**FORM, "mode": "img2img"}, Pictures(image=red, references=("0" * 64,)), uploads)


def test_images_that_did_not_arrive_are_said(uploads: Uploads) -> None:
    with pytest.raises(InvalidValueError, match="the server does not answer"):
        Pictures.of(json.dumps({"error": "The image could not be sent: the server does not answer."}))
    for text in ("[1]", '{"files": [1]}', "{"):
        with pytest.raises(InvalidValueError, match="did not arrive"):
            Pictures.of(text)
    with pytest.raises(InvalidValueError, match="no longer kept by the server; put it into the form again"):
        start_of(FORM, Pictures(image="0" * 64), uploads)
    with pytest.raises(InvalidValueError, match="no longer kept"):
        start_of(FORM, Pictures(image="../../secret"), uploads)


def test_resize_by_takes_the_images_size() -> None:
    by = {**FORM, "sizing": "by", "scale_by": 1.5}
    assert (sized(by, (100, 64))["width"], sized(by, (100, 64))["height"]) == (144, 96)
    assert sized(FORM, (100, 64))["width"] == 64, "the size is given"
    with pytest.raises(InvalidValueError, match=r"Resize by 0\.05 makes 0x0 of 100x64"):
        sized({**by, "scale_by": 0.05}, (100, 64))


def test_the_estimate_counts_a_form_without_its_images(services: Services) -> None:
    request = request_of(FORM, services, stand_in(FORM, (40, 24), mode_of(FORM).has_mask))
    assert isinstance(request.start, FromImage) and request.start.mask is not None
    assert request.start.images[0].image.size == (40, 24)
    assert not Mode.SKETCH.has_mask


def test_pasted_parameters_fill_the_controls_of_image_and_mask(services: Services) -> None:
    text = "a cat\nSteps: 5, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64, Denoising strength: 0.3, "
    text += "Mask blur: 9, Mask mode: Inpaint not masked, Masked content: latent nothing, Inpaint area: Only masked"
    values = form_values(pasted_fields(text, services), services)
    found = {name: values[name] for name in FORM if name.startswith("mask_") and name in values}
    expected = {"mask_blur_x": 9, "mask_invert": 1, "mask_fill": 3, "mask_full_resolution": 1, "mask_padding": 32}
    assert found == expected and values["denoising_strength"] == 0.3


# -- uploads -----------------------------------------------------------------------------------------------------------


def test_an_upload_is_kept_by_its_pixels_upright_and_in_8_bits(uploads: Uploads, tmp_path: Path) -> None:
    first, again = uploads.add(png(RED)), uploads.add(png(RED, "a cat"))
    assert first == again and len(list((tmp_path / "images").iterdir())) == 1
    turned = Image.new("RGB", (4, 2), RED)
    exif = Image.Exif()
    exif[0x0112] = 6
    file = tmp_path / "turned.jpg"
    turned.save(file, exif=exif)
    assert uploads.add(file.read_bytes()).size_px == (2, 4)
    deep = tmp_path / "deep.png"
    Image.new("I;16", (4, 2), 65535).save(deep)
    grey = uploads.image(uploads.add(deep.read_bytes()).key)
    assert (grey.mode, grey.getpixel((0, 0))) == ("L", 255)
    palette = Image.new("P", (4, 2))
    assert uploads.image(uploads.add(png(palette)).key).mode == "RGB"


def test_a_file_that_is_no_image_is_named(uploads: Uploads) -> None:
    with pytest.raises(InvalidValueError, match=r"^notes\.txt is no image file"):
        uploads.add(b"hello", "notes.txt")


def test_uploads_that_nobody_used_are_removed(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    old = uploads.add(png(RED))
    now = uploads.path(old.key).stat().st_mtime
    monkeypatch.setattr("modules.ui.common.uploads.time.time", lambda: now + KEPT_S + 4000)
    new = uploads.add(png(BLUE))
    assert uploads.path(new.key).exists()
    with pytest.raises(InvalidValueError, match="no longer kept"):
        uploads.path(old.key)


# -- batches -----------------------------------------------------------------------------------------------------------


def batch(form: dict[str, Any], services: Services, uploads: Uploads, *files: SentFile, **given: Any) -> BatchForm:
    return BatchForm({**FORM, "mode": "batch", **form}, files, services, uploads, lambda request: request, **given)


def test_a_batch_names_what_is_broken_and_makes_the_others(services: Services, uploads: Uploads) -> None:
    good = SentFile("a.png", uploads.add(png(RED)).key)
    other = SentFile("c.png", uploads.add(png(BLUE)).key)
    broken = SentFile("b.png", error="b.png is no image file that can be read.")
    form = batch({}, services, uploads, good, broken, other)
    running = services.batches.begin("one", form.items, services.queue.submit)
    wait_until(lambda: running.state.is_over)
    state = running.state
    assert (state.total, state.done, len(state.finished)) == (3, 3, 2)
    assert state.failures == (("b.png", "b.png is no image file that can be read."),)
    jobs = [services.queue.known.get(task) for task in state.finished]
    assert all(job.status is JobStatus.DONE for job in jobs)
    colors = [job.request.start.images[0].image.getpixel((0, 0)) for job in jobs]  # type: ignore[union-attr]
    assert colors == [RED, BLUE]
    with pytest.raises(InvalidValueError, match="The batch is empty"):
        services.batches.begin("two", [], services.queue.submit)


def test_a_stopped_batch_begins_nothing_more(services: Services, uploads: Uploads) -> None:
    files = [SentFile(f"{number}.png", uploads.add(png((number, 0, 0))).key) for number in range(3)]
    form = batch({"prompt": "slow", "steps": 50}, services, uploads, *files)
    running = services.batches.begin("stopped", form.items, services.queue.submit)
    wait_until(lambda: running.state.current is not None)
    running.stop()
    wait_until(lambda: running.state.is_over)
    assert running.state.is_stopped and len(running.state.finished) <= 1


def test_a_folder_with_masks_of_the_same_names(services: Services, uploads: Uploads, tmp_path: Path) -> None:
    inputs, masks = tmp_path / "in", tmp_path / "masks"
    for folder in (inputs, masks):
        folder.mkdir()
    for name in ("b.png", "a.png", ".hidden.png", "notes.txt", "[c].png"):
        (inputs / name).write_bytes(png(RED))
    for name in ("a.webp", "b.png"):
        (masks / name).write_bytes(encode_image(Image.new("L", (16, 8), 255), name.split(".")[1]))
    values = {"batch_source": "directory", "batch_input_dir": str(inputs), "batch_mask_dir": str(masks)}
    values["batch_output_dir"] = str(tmp_path / "out")
    items = batch(values, services, uploads).items
    assert [item.name for item in items] == ["[c].png", "a.png", "b.png"]
    with pytest.raises(InvalidValueError, match="no mask of its name"):
        items[0].make()
    request = items[1].make()
    assert isinstance(request.start, FromImage) and request.start.mask is not None
    saving = request.settings
    assert saving.saving_paths.outdir_samples == str(tmp_path / "out")
    assert saving.saving.samples_filename_pattern == "a" and not saving.saving.save_images_add_number
    assert saving.saving.save_images_replace_action == "Add number suffix"
    (masks / "b.png").unlink()
    one_for_all = batch(values, services, uploads).items[0].make()
    assert isinstance(one_for_all.start, FromImage) and one_for_all.start.mask is not None
    assert one_for_all.settings.saving.samples_filename_pattern == "(c)"


def test_png_info_of_an_input_sets_what_was_chosen(services: Services, uploads: Uploads) -> None:
    infotext = "a dog\nNegative prompt: ugly\nSteps: 9, Sampler: DDIM, CFG scale: 3, Seed: 77, Size: 64x64"
    file = SentFile("a.png", uploads.add(png(RED)).key, infotext)
    chosen = {"batch_png_info": True, "batch_png_info_fields": ["Prompt", "Seed", "Sampler", "CFG scale"]}
    reference = SourceImage.of(Image.new("RGB", (8, 8), BLUE))
    request = batch(chosen, services, uploads, file, references=(reference,)).items[0].make()
    assert isinstance(request.start, FromImage) and request.start.references == (reference,)
    assert (request.prompt, request.negative_prompt) == ("a cat a dog", "")
    assert (request.seed, request.sampler, request.cfg_scale, request.steps) == (77, "DDIM", 3, FORM["steps"])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"batch_input_dir": ""}, "The input directory is empty"),
        ({"batch_input_dir": "/no/such/folder"}, "The input directory /no/such/folder is not a folder"),
        ({"batch_input_dir": "{empty}"}, "holds no images"),
    ],
)
def test_a_folder_that_cannot_be_used_is_said(
    values: dict[str, str], sentence: str, services: Services, uploads: Uploads, tmp_path: Path
) -> None:
    values = {name: text.replace("{empty}", str(tmp_path)) for name, text in values.items()}
    with pytest.raises(InvalidValueError, match=sentence):
        batch({"batch_source": "directory", **values}, services, uploads)


def test_other_machines_may_name_allowed_folders_only(services: Services, uploads: Uploads, tmp_path: Path) -> None:
    for field in ("batch_input_dir", "batch_mask_dir", "batch_output_dir"):
        with pytest.raises(InvalidValueError, match="may not be used: other machines reach this server"):
            batch({"batch_source": "directory", field: "/etc"}, services, uploads, allowed=(tmp_path,))
