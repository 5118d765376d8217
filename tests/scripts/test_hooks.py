"""What an extension sees and changes at the moments of a job: hooks of scripts, and callbacks."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compat.facades import script_callbacks as more_callbacks
from modules.errors import InvalidValueError
from modules.images.metadata import read_metadata
from modules.processing.engine.engine import Engine
from modules.processing.request.result import ImageRole
from modules.scripts import script_callbacks
from modules.scripts.callbacks import Moment
from tests.scripts.toys import extension, image_request, run, small_hires, small_request

HEAD = """
import modules.scripts as scripts
from modules import script_callbacks
CALLS = []

class Toy(scripts.Script):
    def title(self): return "Toy"
    def show(self, is_img2img): return scripts.AlwaysVisible
"""
ALL_HOOKS = (
    "setup before_process process before_process_batch after_extra_networks_activate process_batch "
    "process_before_every_sampling before_hr post_sample postprocess_batch postprocess_batch_list postprocess_image "
    "postprocess_image_after_composite postprocess"
)
RECORDER = HEAD + "".join(
    f"    def {name}(self, p, *args, **facts): CALLS.append(({name!r}, sorted(facts)))\n" for name in ALL_HOOKS.split()
)


def module_of(name: str = "toy") -> Any:
    return sys.modules[f"featherweight_scripts.{name}.script"]


def pixels(image: Image.Image) -> Any:
    return np.asarray(image, dtype=np.int64)


def test_hooks_come_in_their_order_with_their_facts(engine: Engine, tmp_path: Path) -> None:
    library = extension(tmp_path, RECORDER)
    result = run(small_request(batch_size=2, hires=small_hires()), engine, tmp_path, library)
    assert not result.notices
    calls = module_of().CALLS
    batch = ["batch_number", "prompts", "seeds", "subseeds"]
    sampling = ("process_before_every_sampling", ["c", "noise", "uc", "x"])
    images: list[tuple[str, list[str]]] = [("postprocess_image", []), ("postprocess_image_after_composite", [])] * 2
    assert calls == [
        ("setup", []),
        ("before_process", []),
        ("process", []),
        ("before_process_batch", batch),
        ("after_extra_networks_activate", sorted([*batch, "extra_network_data"])),
        ("process_batch", batch),
        sampling,
        ("before_hr", []),
        sampling,
        ("post_sample", []),
        ("postprocess_batch", sorted([*batch, "images"])),
        ("postprocess_batch_list", batch),
        *images,
        ("postprocess", []),
    ]


def test_hooks_that_change_nothing_change_no_pixel(engine: Engine, tmp_path: Path) -> None:
    watching = RECORDER + "".join(
        f"script_callbacks.on_{name}(lambda params: CALLS.append({name!r}))\n"
        for name in ("cfg_denoiser", "cfg_denoised", "cfg_after_cfg", "image_grid")
    )
    wanted = small_request(batch_size=2, negative_prompt="ugly " * 80, hires=small_hires())
    with_hooks = run(wanted, engine, tmp_path, extension(tmp_path / "e", watching))
    calls = module_of().CALLS
    plain = run(wanted, engine, tmp_path, extension(tmp_path / "none", ""))
    assert calls.count("cfg_denoiser") == 3
    assert "image_grid" in calls
    for one, other in zip(with_hooks.images, plain.images, strict=True):
        assert (pixels(one.image) == pixels(other.image)).all()
        assert one.infotext == other.infotext


def test_prompts_and_seeds_of_single_images_can_be_set(engine: Engine, tmp_path: Path) -> None:
    source = (
        HEAD
        + """
    def process(self, p, *args):
        p.all_prompts = [f"{text} {number}" for number, text in enumerate(p.all_prompts)]
        p.all_seeds = [seed * 2 for seed in p.all_seeds]
    def before_process_batch(self, p, *args, batch_number, prompts, seeds, subseeds):
        prompts[0] += f" of batch {batch_number}"
"""
    )
    result = run(small_request(batch_size=2, batch_count=2), engine, tmp_path, extension(tmp_path / "e", source))
    assert [image.seed for image in result.samples] == [10, 12, 14, 16]
    assert result.info.seeds == (10, 12, 14, 16)
    said = [image.infotext.splitlines()[0] for image in result.samples]
    assert said == ["a red cat 0 of batch 0", "a red cat 1", "a red cat 2 of batch 1", "a red cat 3"]
    assert result.info.prompts == tuple(said)
    alone = run(
        small_request(prompt="a red cat 3", seed=16, subseed=4), engine, tmp_path, extension(tmp_path / "n", "")
    )
    assert abs(pixels(alone.samples[0].image) - pixels(result.samples[3].image)).max() <= 1


def test_each_image_of_a_batch_has_its_own_texts_of_the_second_pass(engine: Engine, tmp_path: Path) -> None:
    source = (
        HEAD
        + """
    def process(self, p, *args):
        assert p.all_hr_prompts == ["a red cat"] * 2
        p.all_hr_prompts[1] = "a blue dog"
        p.all_hr_negative_prompts = ["ugly", ""]
    def process_batch(self, p, *args, **facts):
        p.extra_generation_params["Seen"] = "/".join(p.hr_prompts)
"""
    )
    wanted = small_request(batch_size=2, hires=small_hires())
    made = run(wanted, engine, tmp_path, extension(tmp_path / "e", source)).samples
    plain = extension(tmp_path / "n", "")
    hires = small_hires()
    for index, second in enumerate((replace(hires, negative_prompt="ugly"), replace(hires, prompt="a blue dog"))):
        alone = run(replace(wanted, hires=second), engine, tmp_path, plain).samples[index]
        assert (pixels(made[index].image) == pixels(alone.image)).all()
        assert made[index].infotext.replace(", Seen: a red cat/a blue dog", "") == alone.infotext


def test_noise_latents_and_images_can_be_changed(engine: Engine, tmp_path: Path) -> None:
    source = (
        HEAD
        + """
    def process_before_every_sampling(self, p, *args, x, noise, c, uc):
        x.zero_()
        p.extra_generation_params["Start"] = "nothing"
    def post_sample(self, p, ps, *args):
        ps.samples = ps.samples * 0
    def postprocess_batch(self, p, *args, images, **facts):
        images[:, 0] = 1
    def postprocess_batch_list(self, p, pp, *args, **facts):
        pp.images = [pp.images[0], pp.images[0] * 0]
"""
    )
    library = extension(tmp_path / "e", source)
    one = run(small_request(seed=1), engine, tmp_path, library)
    two = run(small_request(seed=2), engine, tmp_path, library)
    first, black = one.samples
    assert (pixels(first.image) == pixels(two.samples[0].image)).all()
    assert (pixels(first.image)[..., 0] == 255).all()
    assert pixels(black.image).max() == 0
    assert "Start: nothing" in first.infotext


CFG = """
from modules import script_callbacks as callbacks
SEEN = []
def before(params):
    SEEN.append((params.sampling_step, params.total_sampling_steps, tuple(params.x.shape), len(params.text_cond)))
    params.text_cond = params.text_uncond.clone()
def out(params):
    SEEN.append(("denoised", tuple(params.x.shape)))
def after(params):
    SEEN.append(("after", tuple(params.x.shape)))
    params.x = params.x + 0.5
callbacks.on_cfg_denoiser(before)
callbacks.on_cfg_denoised(out, name="out")
"""


def test_callbacks_at_each_evaluation_see_and_change_it(engine: Engine, tmp_path: Path) -> None:
    library = extension(tmp_path / "a", CFG)
    changed = run(small_request(), engine, tmp_path, library)
    seen = list(module_of().SEEN)
    negative = run(small_request(prompt=""), engine, tmp_path, extension(tmp_path / "n", ""))
    assert (pixels(changed.samples[0].image) == pixels(negative.samples[0].image)).all()
    assert [entry[:2] for entry in seen[::2]] == [(0, 2), (1, 2)]
    assert seen[0][2][0] == 2 and seen[0][3] == 1
    assert seen[1] == ("denoised", seen[0][2])
    with_shift = run(
        small_request(), engine, tmp_path, extension(tmp_path / "b", CFG + "callbacks.on_cfg_after_cfg(after)")
    )
    assert (pixels(with_shift.samples[0].image) != pixels(changed.samples[0].image)).any()


SAVING = """
from modules import script_callbacks
SAVED = []
def before(params):
    params.image = params.image.convert("L").convert("RGB")
    params.pnginfo["parameters"] += ", Mine: yes"
    params.pnginfo["note"] = "from an extension"
script_callbacks.on_before_image_saved(before)
script_callbacks.on_image_saved(lambda params: SAVED.append((params.filename, params.p.prompt)))
"""


def test_what_is_saved_can_be_changed_and_is_told(engine: Engine, tmp_path: Path) -> None:
    wanted = small_request(settings={"samples_save": True, "save_to_dirs": False})
    result = run(wanted, engine, tmp_path, extension(tmp_path / "e", SAVING))
    path = result.samples[0].path
    assert path is not None
    saved = module_of().SAVED
    assert saved == [(str(path), "a red cat")]
    infotext, items = read_metadata(path)
    assert infotext == result.samples[0].infotext + ", Mine: yes"
    assert items["note"] == "from an extension"
    with Image.open(path) as saved:
        colors = pixels(saved.convert("RGB"))
    assert (colors[..., 0] == colors[..., 1]).all()


def test_the_grid_can_be_laid_out_otherwise(engine: Engine, tmp_path: Path) -> None:
    source = """
from modules import script_callbacks
def wide(params):
    params.imgs.reverse()
    params.cols, params.rows = len(params.imgs), 1
script_callbacks.on_image_grid(wide)
"""
    result = run(small_request(batch_size=4), engine, tmp_path, extension(tmp_path, source))
    grid = result.images[0]
    assert (grid.role, grid.image.size) == (ImageRole.GRID, (4 * 64, 64))
    last = np.asarray(result.samples[3].image)
    assert (np.asarray(grid.image)[:, :64] == last).all()


def test_extra_noise_can_be_replaced(engine: Engine, tmp_path: Path) -> None:
    source = """
from modules import script_callbacks
def silent(params):
    assert params.x.shape == params.xi.shape
    params.noise = params.noise * 0
script_callbacks.on_extra_noise(silent)
"""
    noisy = small_request(hires=small_hires(), settings={"img2img_extra_noise": 0.5})
    silenced = run(noisy, engine, tmp_path, extension(tmp_path / "e", source))
    plain = run(small_request(hires=small_hires()), engine, tmp_path, extension(tmp_path / "n", ""))
    assert not silenced.notices
    assert (pixels(silenced.samples[0].image) == pixels(plain.samples[0].image)).all()


def test_a_failing_callback_costs_no_image_and_is_named_once(engine: Engine, tmp_path: Path) -> None:
    source = "from modules import script_callbacks\nscript_callbacks.on_cfg_denoiser(lambda params: 1 / 0, name='mine')"
    result = run(small_request(), engine, tmp_path, extension(tmp_path, source))
    assert len(result.samples) == 1
    assert [n for n in result.notices if "cfg_denoiser" in n] == [
        "The extension toy/script.py (mine) failed in cfg_denoiser (division by zero), was left out."
    ]


def test_callbacks_of_a_faulty_file_are_forgotten(tmp_path: Path) -> None:
    source = "from modules import script_callbacks\nscript_callbacks.on_model_loaded(print)\n1 / 0"
    library = extension(tmp_path, source)
    assert library.faults
    assert not library.callbacks.at(Moment.MODEL_LOADED)


def test_registering_later_and_unknown_moments_are_errors() -> None:
    with pytest.raises(InvalidValueError, match="at the top level of the script's file"):
        script_callbacks.on_model_loaded(print)
    with pytest.raises(AttributeError, match=r"no script_callbacks.on_moon .*on_app_started"):
        more_callbacks.on_moon  # noqa: B018


ON_MASKS = (
    HEAD
    + """
    def show(self, is_img2img): return scripts.AlwaysVisible if is_img2img else False

    def on_mask_blend(self, p, mba, *args):
        CALLS.append((mba.is_final_blend, tuple(mba.nmask.shape), tuple(mba.current_latent.shape), mba.sigma is None))

    def postprocess_maskoverlay(self, p, ppmo, *args):
        CALLS.append(("overlay", ppmo.index, ppmo.overlay_image.mode, ppmo.mask_for_overlay.size, p.paste_to))
"""
)
LEFT = (0, 0, 32, 64)


def test_hooks_of_masks_are_called_at_each_blend_and_for_each_overlay(engine: Engine, tmp_path: Path) -> None:
    library = extension(tmp_path, ON_MASKS)
    wanted = image_request(LEFT)
    result = run(wanted, engine, tmp_path, library)
    calls = module_of().CALLS
    step = (False, (4, 8, 8), (1, 4, 8, 8), False)
    assert calls == [step, step, (True, (4, 8, 8), (1, 4, 8, 8), True), ("overlay", 0, "RGBA", (64, 64), None)]
    plain = run(wanted, engine, tmp_path, extension(tmp_path / "none", "", "none"))
    assert (pixels(result.samples[0].image) == pixels(plain.samples[0].image)).all()
    module_of().CALLS.clear()
    run(small_request(), engine, tmp_path, library)
    assert module_of().CALLS == []  # not on this tab


@pytest.mark.parametrize("sampler", ["Euler", "DDIM"])
def test_hooks_of_masks_have_the_last_word(sampler: str, engine: Engine, tmp_path: Path) -> None:
    changing = (
        ON_MASKS
        + """
        ppmo.overlay_image = None

    def on_mask_blend(self, p, mba, *args):
        mba.blended_latent = mba.init_latent

    def post_sample(self, p, ps, *args):
        CALLS.append(bool((ps.samples == p.init_latent).all()))
"""
    )
    result = run(image_request(LEFT, sampler=sampler), engine, tmp_path, extension(tmp_path, changing))
    assert not result.notices and module_of().CALLS[0] is True
    kept = pixels(result.samples[0].image)[:, 32:]
    assert not (kept == (255, 0, 0)).all()  # without an overlay it is what the VAE makes of it


def test_a_job_from_an_image_can_be_changed_by_scripts(engine: Engine, tmp_path: Path) -> None:
    changing = (
        HEAD
        + """
    def process(self, p, *args):
        assert isinstance(p, ImageJob)
        p.image_mask = None
        p.init_images = [p.init_images[0].transpose(0)]
        p.denoising_strength = 0.0
from modules.scripts.job import ImageJob
"""
    )
    image = Image.linear_gradient("L").rotate(90).resize((64, 64)).convert("RGB")
    result = run(image_request(LEFT, image=image), engine, tmp_path, extension(tmp_path, changing))
    assert not result.notices and "Mask" not in result.samples[0].infotext
    expected = run(
        image_request(image=image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), denoising_strength=0.0),
        *(engine, tmp_path, extension(tmp_path / "n", "", "n")),
    )
    assert (pixels(result.samples[0].image) == pixels(expected.samples[0].image)).all()


def test_scripts_are_told_of_the_controls_of_a_form(tmp_path: Path) -> None:
    library = extension(
        tmp_path,
        HEAD
        + """
    def __init__(self):
        self.on_before_component(lambda found: CALLS.append(("before it", found.component)), elem_id="txt2img_steps")
        self.on_after_component(lambda found: CALLS.append(("after it", found.component)), elem_id="txt2img_steps")

    def before_component(self, component, **facts): CALLS.append(("before", facts["elem_id"]))
    def after_component(self, component, **facts): CALLS.append(("after", facts["label"], component))

script_callbacks.on_after_component(lambda component, **facts: CALLS.append(("callback", component)))
""",
    )
    library.component(None, "txt2img_steps", "Steps")
    library.component("slider", "txt2img_steps", "Steps")
    library.component(None, "txt2img_seed", "Seed")
    expected = [("before", "txt2img_steps"), ("before it", None), ("callback", "slider"), ("after", "Steps", "slider")]
    assert [*expected, ("after it", "slider"), ("before", "txt2img_seed")] == module_of().CALLS
