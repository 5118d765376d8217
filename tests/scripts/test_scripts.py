"""Extensions' scripts: found, refused, run around and in place of jobs; and the X/Y/Z plot."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from lib_workbench.precision_work import write_series
from lib_workbench.reports import Reports
from modules.errors import FeatherweightError, InvalidValueError, OutputError, UnknownNameError
from modules.images.infotext import parse_infotext
from modules.images.legend import LegendStyle, grid_with_legend
from modules.jobs.line import fix_seeds
from modules.processing.comparison.series import SeriesReport
from modules.processing.engine.engine import Engine
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest, request_from_json, request_to_json
from modules.processing.request.result import ImageRole, Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.prompting.styles import Style, StyleBook
from modules.scripts.axes import AXES, join_words, split_words
from modules.scripts.job import ImageJob, Job, Processed
from modules.scripts.library import ScriptLibrary, filled_args, script_info
from modules.scripts.program import Program, measured
from modules.scripts.running import run_with_scripts
from modules.settings.values import Settings
from tests.processing.recorded import request_of

BUILT_IN = Path(__file__).parents[2] / "extensions-builtin"
PAYLOAD = {
    "prompt": "a red cat",
    "negative_prompt": "",
    "steps": 2,
    "cfg_scale": 7,
    "seed": 5,
    "width": 64,
    "height": 64,
    "sampler_name": "Euler",
}
XYZ = "X/Y/Z plot"


@pytest.fixture(scope="module")
def built_in(engine: Engine) -> ScriptLibrary:
    styles = (Style("Loud", "{prompt}, loud"), Style("Wide", "wide", "narrow"), Style("Loud, not", "{prompt}, hushed"))
    program = Program(
        checkpoints=lambda: [info.title for info in engine.catalogue.entries],
        checkpoint=lambda name: engine.catalogue.get(name).title,
        vaes=lambda: ["Automatic", "None", "small.vae.pt"],
        upscalers=lambda: ["Latent", "Lanczos"],
        styles=lambda: StyleBook([(Path("styles.csv"), styles)]),
    )
    return ScriptLibrary.load([BUILT_IN], program=program)


def request(**values: Any) -> GenerationRequest:
    return replace(request_of(PAYLOAD), **values)


def run(wanted: GenerationRequest, engine: Engine, folder: Path, library: ScriptLibrary) -> Result:
    return run_with_scripts(wanted, engine, Output(folder), Silent(), library)


def plot(library: ScriptLibrary, *axes: tuple[str, str], **options: Any) -> GenerationRequest:
    args: list[Any] = []
    for label, text in (*axes, *[("Nothing", "")] * (3 - len(axes))):
        args += [list(AXES).index(label), text, []]
    names = ("legend", "lone", "sub_grids", "keep_random", "vary_x", "vary_y", "vary_z", "margin")
    args += [options.get(name, {"legend": True, "lone": True, "margin": 0}.get(name, False)) for name in names]
    return request(script=XYZ, script_args=filled_args(library.find(XYZ), args))


def write_extension(folder: Path, name: str, source: str) -> Path:
    path = folder / name / "scripts"
    path.mkdir(parents=True)
    (path / "script.py").write_text(source)
    return folder


GREY = """
from modules.scripts.script import AlwaysVisible, Script

class Grey(Script):
    def title(self): return "Grey"
    def show(self, is_img2img): return AlwaysVisible
    def before_process(self, p, *args):
        p.steps = 1
        p.extra_generation_params["Grey"] = "yes"
    def postprocess_image(self, p, pp, *args):
        pp.image = pp.image.convert("L").convert("RGB")
"""
FAULTY = """
from modules.scripts.script import AlwaysVisible, Script

class Faulty(Script):
    def title(self): return "Faulty"
    def show(self, is_img2img): return AlwaysVisible
    def process(self, p, *args): raise RuntimeError("oops")
"""


def test_the_built_in_script_is_there(built_in: ScriptLibrary) -> None:
    assert XYZ in [script.title() for script in built_in.selectable]
    assert not built_in.faults
    info = script_info(built_in.find("x/y/z plot"))
    assert info is not None
    assert info["name"] == "x/y/z plot"
    assert len(info["args"]) == 18
    assert info["args"][0]["choices"][0] == "Nothing"
    with pytest.raises(UnknownNameError, match="X/Y/Z plot"):
        built_in.find("nothing")
    with pytest.raises(InvalidValueError, match="script_name"):
        built_in.find_alwayson(XYZ)


def test_a_faulty_file_is_left_out_by_name(tmp_path: Path) -> None:
    write_extension(tmp_path, "broken", "import nothing_of_this_name")
    library = ScriptLibrary.load([write_extension(tmp_path, "grey", GREY)])
    assert {script.title() for script in library.scripts} == {"Grey"}
    assert "broken/script.py" in library.faults[0]
    assert not ScriptLibrary.load([tmp_path], disabled=["grey"]).scripts


def test_always_on_hooks_change_the_job_and_the_images(engine: Engine, tmp_path: Path) -> None:
    library = ScriptLibrary.load([write_extension(tmp_path / "e", "grey", GREY)])
    result = run(request(), engine, tmp_path, library)
    pixels = np.asarray(result.samples[0].image)
    assert (pixels[..., 0] == pixels[..., 1]).all()
    assert result.info.steps == 1
    assert "Grey: yes" in result.samples[0].infotext


def test_a_failing_hook_costs_no_image(engine: Engine, tmp_path: Path) -> None:
    library = ScriptLibrary.load([write_extension(tmp_path / "e", "faulty", FAULTY)])
    result = run(request(), engine, tmp_path, library)
    assert len(result.samples) == 1
    assert any("'Faulty' failed in process (oops)" in notice for notice in result.notices)


def test_a_plot_has_the_images_that_single_jobs_make(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    result = run(plot(built_in, ("Seed", "5, 7"), ("Steps", "1-2")), engine, tmp_path, built_in)
    assert [image.role for image in result.images] == [ImageRole.GRID] + [ImageRole.SAMPLE] * 4
    single = run(request(seed=7, steps=1), engine, tmp_path, built_in)
    found = [p for p in result.samples if p.seed == 7 and "Steps: 1," in p.infotext]
    assert (np.asarray(found[0].image) == np.asarray(single.samples[0].image)).all()
    assert found[0].infotext == single.samples[0].infotext
    fields = parse_infotext(result.images[0].infotext)
    assert fields["Script"] == XYZ
    assert (fields["X Type"], fields["X Values"], fields["Fixed X Values"]) == ("Seed", "5, 7", "5, 7")
    assert (fields["Y Type"], fields["Y Values"]) == ("Steps", "1-2")


def test_fp8_is_an_axis_and_the_outer_loop(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    loads: list[str] = []
    load = engine._load
    engine._load = lambda info, options, vae: loads.append(options.fp8_storage) or load(info, options, vae)  # type: ignore
    try:
        result = run(plot(built_in, ("FP8 mode", "Disable, Enable"), ("Seed", "1, 2")), engine, tmp_path, built_in)
    finally:
        engine._load = load  # type: ignore[method-assign]
    assert loads.count("Enable") == 1
    assert sum("FP8 weight: Enable" in image.infotext for image in result.samples) == 2


def test_z_makes_a_grid_of_grids(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    axes = (("Seed", "1,2"), ("CFG Scale", "2, 7"), ("Size", "64x64, 128x64"))
    result = run(plot(built_in, *axes, lone=False, sub_grids=True, margin=4), engine, tmp_path, built_in)
    whole, first, second = (image.image for image in result.images)
    assert whole.width >= first.width + second.width
    assert not result.samples


def test_prompts_are_searched_and_reordered(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    result = run(plot(built_in, ("Prompt S/R", "red, blue"), ("Prompt order", "cat")), engine, tmp_path, built_in)
    assert {image.infotext.splitlines()[0] for image in result.samples} == {"a red cat", "a blue cat"}
    reordered = run(plot(built_in, ("Prompt order", "red,cat")), engine, tmp_path, built_in)
    assert {image.infotext.splitlines()[0] for image in reordered.samples} == {"a red cat", "a cat red"}


def test_varied_seeds(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    wanted = plot(built_in, ("CFG Scale", "2, 3"), ("Steps", "1, 2"), vary_x=True, vary_y=True)
    result = run(wanted, engine, tmp_path, built_in)
    assert sorted(image.seed for image in result.samples) == [5, 6, 7, 8]


def test_a_grid_over_precisions_names_its_comparison_page(engine: Engine, tmp_path: Path) -> None:
    reports = Reports(tmp_path / "reports")
    program = Program(
        measured=lambda result: measured(engine, result), report=lambda report: write_series(reports, report)
    )
    library = ScriptLibrary.load([BUILT_IN], program=program)
    wanted = plot(library, ("FP8 mode", "Disable, Enable"), ("Seed", "1, 2"), ("FP8 format", "fp8_e5m2"))
    result = run(replace(wanted, steps=2), engine, tmp_path, library)
    name = str(parse_infotext(result.images[0].infotext)["Precision report"])
    assert name in reports.names() and "Precision report" not in result.samples[0].infotext
    page = reports.read(name).decode()
    assert page.count("<img src=") == 6 and "Where the images part" not in page  # four, and two differences
    assert "Seed: 1" in page and "FP8 mode: Disable" in page
    numbers = json.loads(reports.read(name.replace(".html", ".json")))
    first, second = numbers["formats"]
    assert numbers["prompts"] == ["Seed: 1", "Seed: 2"] and first["psnr_db"] == [None, None]
    assert all(isinstance(value, float) for value in second["psnr_db"])
    assert 0 < second["weight_bytes"] < first["weight_bytes"] and second["seconds_per_step"] > 0
    assert "reports" not in {path.parent.name for path in tmp_path.rglob("*.png")}


def test_a_report_that_cannot_be_written_costs_no_grid(engine: Engine, tmp_path: Path) -> None:
    def full(report: SeriesReport) -> str:
        raise OutputError("The disk is full.")

    library = ScriptLibrary.load([BUILT_IN], program=Program(report=full))
    wanted = plot(library, ("FP8 text encoder", "True, False"))
    result = run(replace(wanted, steps=1), engine, tmp_path, library)
    assert len(result.images) == 3
    assert "The comparison of precisions could not be written: The disk is full." in result.notices
    one = run(replace(plot(library, ("FP8 text encoder", "True")), steps=1), engine, tmp_path, library)
    assert not one.notices  # nothing to compare


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        (("Seed", "one"), "'one' is no whole number"),
        (("CFG Scale", ""), "has no values"),
        (("Sampler", "Euler, Oiler"), "'Oiler' is none of"),
        (("Prompt S/R", "dog, mouse"), "stands in neither prompt"),
        (("FP8 format", "fp7"), "'fp7' is none of"),
        (("VAE", "gone.pt"), "VAE: 'gone.pt' is none of: Automatic, None, small.vae.pt"),
        (("Styles", "gone"), "Styles: 'gone' is none of: Loud, Wide"),
        (("Checkpoint name", "gone"), "Unknown checkpoint 'gone'"),
        (("Hires upscaler", "Blur"), "Hires upscaler: 'Blur' is none of"),
        (("Refiner checkpoint", "gone"), "Unknown checkpoint 'gone'"),
        (("Refiner switch at", "2"), "refiner switch at is 2"),
        (("Size", "big"), "is no size"),
        (("Steps", "1-100000"), "at most 200"),
        (("Steps", "0"), "steps is 0"),
        (("Seed", "1-5 (-1)"), "never reaches"),
        (("Seed", "18446744073709551616"), "18446744073709551616"),
        (("Steps", "1.5"), "'1.5' is no whole number"),
        (("Steps", "1e9999999999"), "no whole number"),
        (("Steps", "nan"), "no whole number"),
        (("Seed", "9" * 5000), "no whole number"),
        (("Steps", f"1-5 [{'9' * 5000}]"), "no whole number"),
        (("CFG Scale", "1e999"), "is no number"),
        (("Prompt S/R", "x" * 200_000), "cannot be read"),
    ],
)
def test_bad_values_are_said_before_the_first_image(
    axis: tuple[str, str], said: str, built_in: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    with pytest.raises(FeatherweightError, match=said):
        run(plot(built_in, axis), engine, tmp_path, built_in)


@pytest.mark.parametrize(
    ("label", "text", "values"),
    [
        ("Seed", "1-5", [1, 2, 3, 4, 5]),
        ("Seed", "1-9 (+4), 20", [1, 5, 9, 20]),
        ("Seed", "5-1 (-2)", [5, 3, 1]),
        ("Steps", "1-10 [4]", [1, 4, 7, 10]),
        ("Steps", "1-10 [5]", [1, 3, 5, 7, 10]),
        ("Steps", "10-1 [5]", [10, 7, 5, 3, 1]),
        ("CFG Scale", "0-0.3 (+0.1)", [0, 0.1, 0.2, 0.3]),
        ("Seed", "1,2\n3,4", [1, 2, 3, 4]),
        ("Seed", "1, 2,\r\n\r\n3\r4,", [1, 2, 3, 4]),
        ("Prompt S/R", 'a\n"b\nc"', ["a", "b\nc"]),
        ("Seed", "123456789012345-123456789012347", [123456789012345, 123456789012346, 123456789012347]),
        ("Seed", "9007199254740993, 18446744073709551615", [2**53 + 1, 2**64 - 1]),
        ("Var. seed", "18446744073709551613-18446744073709551615 (+2)", [2**64 - 3, 2**64 - 1]),
        ("Seed", "9007199254740993-18446744073709551615 [2]", [2**53 + 1, 2**64 - 1]),
        ("Steps", "20.0, 2e1", [20, 20]),
        ("Prompt S/R", '"say ""a, b""", say "a"', ['say "a, b"', 'say "a"']),
        ("CFG Scale", "0-1 [5]", [0, 0.25, 0.5, 0.75, 1]),
        ("CFG Scale", "1.5, 2-3 (0.5)", [1.5, 2, 2.5, 3]),
        ("Seed", "-1, -1", [-1, -1]),
        ("Prompt S/R", 'a, "b, c"', ["a", "b, c"]),
        ("Sampler", "euler a, DDIM", ["Euler a", "DDIM"]),
    ],
)
def test_how_values_are_written(label: str, text: str, values: list[Any]) -> None:
    assert AXES.get(label).values(text) == values


def test_picked_words_come_back_whole() -> None:
    words = ['a "b", c', '"lead" x', "plain", "a, b", 'quote"', "two\nlines", "", '""', "'single'", "スタイル、"]
    assert split_words(join_words(words)) == words
    assert join_words(["a", "b, c"]) == 'a, "b, c"'


def test_an_interrupted_plot_shows_what_is_finished(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    from modules.errors import Interrupted
    from modules.processing.request.result import GeneratedImage

    class StopAfterTwo(Silent):
        done = 0

        def check(self) -> None:
            if self.done >= 2:
                raise Interrupted("enough")

        def finished_image(self, image: GeneratedImage) -> None:
            self.done += 1

    wanted = plot(built_in, ("Seed", "1,2,3,4"))
    result = run_with_scripts(wanted, engine, Output(tmp_path), StopAfterTwo(), built_in)
    assert result.interrupted
    assert len(result.samples) == 2


def test_too_many_arguments_are_refused(built_in: ScriptLibrary) -> None:
    with pytest.raises(InvalidValueError, match="takes 18 arguments"):
        filled_args(built_in.find(XYZ), [0] * 19)


def test_a_request_with_scripts_survives_its_record() -> None:
    wanted = request(script=XYZ, script_args=(1, "a", True), alwayson_args={"x": (1,)}, extra_params={"k": "v"})
    assert request_from_json(request_to_json(wanted)) == wanted


def test_a_legend_takes_room_for_its_words() -> None:
    cell = Image.new("RGB", (64, 64), "red")
    bare = grid_with_legend([[cell, cell], [cell, None]], ["", ""], ["", ""], margin_px=6)
    assert bare.size == (134, 134)
    labelled = grid_with_legend([[cell, cell]], ["a rather long caption for so small a cell", "b"], ["row"])
    assert labelled.width > 128
    assert labelled.height > 64
    with pytest.raises(ValueError, match="at least one"):
        grid_with_legend([[None]], [""], [""])


def test_a_legend_has_the_colors_and_the_font_of_the_settings() -> None:
    cell = Image.new("RGB", (64, 64), "red")
    settings = Settings().changed(grid_background_color="#0000ff", grid_text_active_color="#00ff00")
    sheet = grid_with_legend([[cell]], ["word"], [""], style=LegendStyle.of(settings))
    assert sheet.getpixel((0, 0)) == (0, 0, 255)
    text_line = sheet.crop((0, 0, 64, sheet.height - 64))
    assert max(green for _, (_, green, _) in text_line.getcolors(1 << 20)) > 128  # type: ignore[misc,union-attr]
    for font in ("none.ttf", __file__, "/"):
        style = LegendStyle.of(settings.changed(font=font))
        assert repr(font) in style.notice and style.font_file == ""
        assert grid_with_legend([[cell]], ["word"], [""], style=style).size == sheet.size


@pytest.mark.parametrize("script", [XYZ, "Prompt matrix"])
def test_a_missing_font_and_a_wrong_margin_are_said_before_the_first_image(
    script: str, built_in: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    def wanted(margin: Any) -> GenerationRequest:
        if script == XYZ:
            return plot(built_in, ("Seed", "1,2"), margin=margin)
        args = filled_args(built_in.find(script), [False, False, "positive", "comma", margin])
        return request(script=script, script_args=args, prompt="a cat|red")

    settings = wanted(0).settings.changed(font=str(tmp_path / "none.ttf"))
    result = run(replace(wanted(0), settings=settings), engine, tmp_path, built_in)
    assert len(result.samples) == 2 and result.images[0].role is ImageRole.GRID
    assert sum("none.ttf" in notice for notice in result.notices) == 1
    for margin in ("wide", -1, 10**9, 1.5, [4]):
        made = list(tmp_path.rglob("*.png"))
        with pytest.raises(InvalidValueError, match="Grid margins"):
            run(wanted(margin), engine, tmp_path, built_in)
        assert list(tmp_path.rglob("*.png")) == made


def test_keep_random_gives_each_cell_a_seed_of_its_own(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    def seeds_of(wanted: GenerationRequest) -> list[int]:
        return [image.seed for image in run(wanted, engine, tmp_path, built_in).samples]

    fixed = fix_seeds(replace(plot(built_in, ("Steps", "1,1,1"), keep_random=True), seed=-1))
    first = seeds_of(fixed)
    assert len(set(first)) == 3 and first[0] == fixed.seed
    assert seeds_of(request_from_json(request_to_json(fixed))) == first
    assert seeds_of(fix_seeds(replace(fixed, seed=-1))) != first
    assert seeds_of(replace(fixed, seed=5)) == [5, 5, 5]
    varied = fix_seeds(replace(plot(built_in, ("Seed", "-1,-1,7")), seed=-1))
    first = seeds_of(varied)
    assert len(set(first)) == 3 and first[2] == 7 and seeds_of(varied) == first
    kept = fix_seeds(replace(plot(built_in, ("Steps", "1,1")), seed=-1))
    assert seeds_of(kept) == [kept.seed] * 2


@pytest.mark.parametrize(
    ("iterate", "same", "places"), [(False, False, None), (False, True, (0, 0, 0)), (True, False, (0, 1, 2))]
)
def test_lines_of_a_file_draw_seeds_as_the_boxes_say(
    iterate: bool, same: bool, places: tuple[int, ...] | None, built_in: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    script = "Prompts from file or textbox"
    args = filled_args(built_in.find(script), [iterate, same, "start", "cat\ncat\ncat\n--seed 7 --prompt cat"])
    wanted = fix_seeds(request(script=script, script_args=args, steps=1, seed=-1, subseed=-1, subseed_strength=0.5))
    made = [(image.seed, image.subseed) for image in run(wanted, engine, tmp_path, built_in).samples]
    seeds, subseeds = zip(*made, strict=True)
    assert made[0] == (wanted.seed, wanted.subseed) and seeds[3] == 7
    if places is None:
        assert len(set(seeds)) == len(set(subseeds)) == 4
    else:
        assert seeds[:3] == tuple(wanted.seed + place for place in places) and len(set(subseeds)) == 1
    again = run(request_from_json(request_to_json(wanted)), engine, tmp_path, built_in)
    assert [(image.seed, image.subseed) for image in again.samples] == made


def test_styles_are_an_axis(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    result = run(plot(built_in, ("Styles", 'None, loud, "Loud, Wide"')), engine, tmp_path, built_in)
    said = [image.infotext.splitlines()[:2] for image in result.samples]
    assert said[0][0] == "a red cat"
    assert said[1][0] == "a red cat, loud"
    assert said[2] == ["a red cat, loud, wide", "Negative prompt: narrow"]


def test_vae_checkpoint_and_compute_mode_are_axes(built_in: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    axes = (("VAE", "none, Automatic"), ("Checkpoint name", "tiny-sd1"), ("Compute mode", "Automatic, manual cast"))
    result = run(plot(built_in, *axes), engine, tmp_path, built_in)
    assert len(result.samples) == 4
    fields = parse_infotext(result.images[0].infotext)
    assert (fields["X Type"], fields["Y Type"], fields["Z Type"]) == ("VAE", "Checkpoint name", "Compute mode")


def test_values_are_picked_from_a_list_or_written(built_in: ScriptLibrary) -> None:
    script: Any = built_in.find(XYZ)
    styles, seed = list(AXES).index("Styles"), list(AXES).index("Seed")
    text, picked = script._switched(styles, "Loud, odd", [], False)
    assert (text["visible"], picked["visible"], picked["value"]) == (False, True, ["Loud"])
    assert picked["choices"] == ["Loud", "Wide", "Loud, not"]
    text, picked = script._switched(styles, "", ["Loud", "Wide"], True)
    assert (text["value"], text["visible"], picked["visible"]) == ("Loud, Wide", True, False)
    assert script._switched(seed, "1, 2", [], False)[0] == {"value": "1, 2", "visible": True, "__type__": "update"}
    assert script._filled(styles, True)[0] == 'Loud, Wide, "Loud, not"'
    assert script._filled(styles, False)[1]["value"] == ["Loud", "Wide", "Loud, not"]
    swapped = script._swapped(styles, "", ["Loud"], seed, "1", [], False)
    assert (swapped[0], swapped[1]["value"], swapped[3], swapped[5]["value"]) == ("Seed", "1", "Styles", ["Loud"])


def test_the_axis_of_face_restorers_names_the_model_or_none() -> None:
    axis, job = AXES.get("Face restore"), SimpleNamespace(override_settings={})
    for text, settings in (
        ("gfpgan", {"face_restoration": True, "face_restoration_model": "GFPGAN"}),
        ("false", {"face_restoration": False}),
        ("True", {"face_restoration": True}),
    ):
        job.override_settings.clear()
        axis.apply(cast(Any, job), axis.read(text), [])
        assert job.override_settings == settings
    with pytest.raises(InvalidValueError, match="'Magic' is none of: CodeFormer, GFPGAN"):
        axis.read("Magic")


def test_every_axis_that_has_a_setting_here_is_there() -> None:
    assert {
        "Face restore",
        "Refiner checkpoint",
        "Refiner switch at",
        "Image CFG Scale",
        "Initial noise multiplier",
        "Cond. Image Mask Weight",
        "VAE",
        "Styles",
        "FP8 mode",
        "FP8 format",
        "Compute dtype",
        "LoRA mode",
        "Size",
        "RNG source",
    } <= set(AXES)
    costs = {label: axis.cost for label, axis in AXES.items()}
    assert costs["Checkpoint name"] > costs["FP8 mode"] > costs["VAE"] > costs["UniPC Order"] > costs["Steps"]


def test_axes_of_img2img_reach_the_start_of_the_job(built_in: ScriptLibrary) -> None:
    source = SourceImage.of(Image.new("RGB", (64, 64), "red"))
    job = ImageJob(request(start=FromImage(images=(source,))), lambda p: Processed.__new__(Processed))
    for label, text in (
        ("Denoising", "0.25"),
        ("Image CFG Scale", "1.5"),
        ("Initial noise multiplier", "0.9"),
        ("Cond. Image Mask Weight", "0.5"),
    ):
        axis = AXES.get(label)
        (value,) = axis.values(text)
        axis.apply(job, value, [value])
    made = job.to_request()
    assert isinstance(made.start, FromImage) and made.settings.img2img.inpainting_mask_weight == 0.5
    start = made.start
    assert (start.denoising_strength, start.image_cfg_scale, start.initial_noise_multiplier) == (0.25, 1.5, 0.9)


def test_an_axis_of_img2img_is_refused_where_there_is_no_image(built_in: ScriptLibrary) -> None:
    job = Job(request(), lambda p: Processed.__new__(Processed))
    with pytest.raises(InvalidValueError, match="Image CFG Scale: this job starts from no image"):
        AXES.get("Image CFG Scale").apply(job, 1.5, [1.5])
