"""Extensions as people have them, one for each group of names that they need: they load and do their work."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from safetensors.torch import save_file

from modules.api.app import build_api
from modules.api.program.extensions import add_extension_routes
from modules.jobs.line import fix_seeds
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.services import Services
from modules.ui.routes.settings_routes import settings_routes
from tests.compat.conftest import Files
from tests.fakes import page_config
from tests.scripts.toys import image_request, small_request

Program = Callable[[Files], Services]


def made(services: Services, request: GenerationRequest) -> Result:
    """The result of a job of the queue."""
    job = services.queue.submit(request)
    assert job.wait(600)
    return job.result()


def module_of(extension: str, name: str) -> Any:
    """A script's module, as it was loaded last."""
    return sys.modules[f"featherweight_scripts.{extension}.{name}"]


OPTIONS = """
import gradio as gr
from modules import script_callbacks, shared
from modules.shared import OptionInfo, opts, cmd_opts, state
from modules import ui_components

files = ["a.csv"]

def look():
    files.append("b.csv")

def on_ui_settings():
    here = {"section": ("words", "Words")}
    add = shared.opts.add_option
    add("words_on", OptionInfo(True, "Words are on", **here).info("a remark"))
    limits = {"minimum": 1, "maximum": 9, "step": 1}
    add("words_count", OptionInfo(3, "How many", gr.Slider, limits, **here).needs_restart())
    add("words_mode", OptionInfo("a", "Mode", gr.Radio, {"choices": ["a", "b"]}, **here))
    add("words_kinds", OptionInfo(["x"], "Kinds", gr.CheckboxGroup, {"choices": ["x", "y"]}, **here))
    add("words_list", OptionInfo("Euler", "Sampler", gr.Dropdown, lambda: {"choices": ["Euler"]}, **here))
    add("words_file", OptionInfo("a.csv", "File", gr.Dropdown, lambda: {"choices": files}, refresh=look, **here))
    add("words_none", OptionInfo(None, "Folder", gr.Dropdown, lambda: {"choices": missing}, **here))
    lost = lambda: files.index("lost")
    add("words_temp", OptionInfo("Refresh temp files", "Temp", gr.HTML, {}, refresh=look, **here))
    add("words_lost", OptionInfo([], "Lost", ui_components.DropdownMulti, {"choices": files}, refresh=lost, **here))

script_callbacks.on_ui_settings(on_ui_settings)
seen = []
lora_dir = cmd_opts.lora_dir
has_flag = hasattr(cmd_opts, "no_such_flag"), "medvram" in cmd_opts, getattr(cmd_opts, "no_such_flag", 5)
"""


def test_options_are_settings_of_the_program(program: Program) -> None:
    services = program({"words/scripts/words.py": OPTIONS})
    assert services.scripts.faults == []
    from compat.facades.shared import opts

    assert (opts.words_on, opts.words_count, opts.words_mode, opts.words_kinds) == (True, 3, "a", ["x"])
    assert opts.data.get("words_list") == "Euler" and "words_on" in opts.data
    assert services.settings.current.whole("words_count") == 3
    opts.words_count = 5
    assert services.settings.current.whole("words_count") == 5 == opts.data["words_count"]
    assert not opts.set("words_count", 99)  # beyond its own limits
    called = []
    opts.onchange("words_mode", lambda: called.append(opts.words_mode))
    services.settings.update({"words_mode": "b"})
    assert called == ["a", "b"]
    assert opts.sd_model_checkpoint == services.settings.current["sd_model_checkpoint"]
    opts.nobody_knows = 3
    assert opts.nobody_knows == 3 and "nobody_knows" not in services.settings.current
    with pytest.raises(AttributeError, match="no setting 'nothing'"):
        _ = opts.nothing
    assert getattr(opts, "nothing", 7) == 7
    found = module_of("words", "words")
    assert found.lora_dir.endswith("Lora") and found.has_flag == (False, True, 5)


def test_choices_given_by_a_function_are_a_list_that_is_asked_again(program: Program) -> None:
    services = program({"words/scripts/words.py": OPTIONS})
    assert services.scripts.faults == []
    app = build_api(services)
    app.include_router(settings_routes(services), prefix="/internal")
    with TestClient(app) as client:
        sections = client.get("/internal/settings").json()["sections"]
        found = {one["key"]: one for section in sections for one in section["settings"]}
        assert [found[f"words_{key}"]["type"] for key in ("list", "file", "none", "lost", "mode")] == [
            *("choice", "choice", "choice", "list", "choice")
        ]
        assert [found[f"words_{key}"]["refreshes"] for key in ("list", "file", "mode")] == [False, True, False]
        assert found["words_list"]["is_open"] and not found["words_mode"]["is_open"]
        assert (found["words_file"]["choices"], found["words_none"]["choices"]) == (["a.csv"], [])

        def read_again(key: str) -> Any:
            return client.post("/internal/settings/refresh", json={"key": key}).json()

        assert read_again("words_file") == {"choices": ["a.csv", "b.csv"]}
        assert found["words_temp"]["refreshes"] and read_again("words_temp") == {"choices": []}
        assert read_again("words_file")["choices"] == ["a.csv", *["b.csv"] * 3], "any setting may have its button"
        assert read_again("words_lost")["errors"].startswith("'Lost' could not be refreshed: ValueError")
        assert "words_filee" in read_again("words_filee")["errors"]
        client.post("/internal/settings", json={"values": {"words_file": "b.csv", "words_none": None}})
        assert services.settings.current["words_file"] == "b.csv" and services.settings.current["words_none"] is None
        client.post("/sdapi/v1/options", json={"words_file": "later.csv"})
        assert services.settings.current["words_file"] == "later.csv", "of a file that comes later"


NETWORKS = """
import importlib
import networks
from modules import script_callbacks, sd_models, ui_extra_networks
from lora import available_loras

network = importlib.import_module("extensions-builtin.Lora.network")
by_folder = importlib.import_module("extensions-builtin.Lora.ui_extra_networks_lora").networks

def cards(demo, app):
    @app.get("/words/cards")
    def read():
        return {page.name: [item for item in page.list_items()] for page in ui_extra_networks.extra_pages}

script_callbacks.on_app_started(cards)
"""


def test_files_of_loras_and_their_cards_by_the_names_of_the_reference_ui(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "Lora"
    folder.mkdir(parents=True)
    metadata = {"ss_output_name": "cat drawing", "ss_tag_frequency": '{"10_cat": {"cat": 3}}'}
    save_file({"lora_unet_x.alpha": torch.ones(1)}, folder / "cat_v1.safetensors", {**metadata, "ss_v2": "True"})
    Image.new("RGB", (8, 8)).save(folder / "cat_v1.png")
    (folder / "cat_v1.json").write_text('{"description": "of a cat", "preferred weight": 0.5}')
    services = program({"words/scripts/words.py": NETWORKS})
    assert services.scripts.faults == []
    found = module_of("words", "words")
    file = found.networks.available_networks["cat_v1"]
    assert found.by_folder is found.networks and found.available_loras["cat_v1"].filename == file.filename
    assert (file.name, file.alias, file.metadata["ss_tag_frequency"]) == (
        "cat_v1",
        "cat drawing",
        {"10_cat": {"cat": 3}},
    )
    assert file.sd_version is found.network.SdVersion.SD2 and len(file.shorthash) == 12
    aliases = found.networks.available_network_aliases
    assert "cat drawing" in aliases and "cat drawing" not in found.networks.available_networks and "dog" not in aliases
    assert isinstance(file, found.network.NetworkOnDisk)
    with pytest.raises(AttributeError, match="`<lora:name:weight>` in a prompt asks for one"):
        found.networks.load_networks(["cat_v1"])

    app = build_api(services)
    add_extension_routes(app, services.scripts.callbacks, None)
    with TestClient(app) as client:
        pages = client.get("/words/cards").json()
        assert sorted(pages) == ["checkpoints", "hypernetworks", "lora", "textual inversion"]
        card = next(one for one in pages["lora"] if one["name"] == "cat_v1")
        assert (card["name"], card["description"], card["sd_version"]) == ("cat_v1", "of a cat", "SD2")
        assert card["prompt"] == '"<lora:cat drawing:0.5>"' and card["shorthash"] == file.shorthash
        assert card["metadata"]["ss_output_name"] == "cat drawing"
        assert client.get(card["preview"].removeprefix(".")).headers["content-type"] == "image/png"


def test_two_extensions_find_their_own_folders(program: Program) -> None:
    main = (
        "from modules import scripts\nfrom lib import word\nfrom scripts.helper import more\nbase = scripts.basedir()\n"
    )
    later = "def late():\n    from lib.late import value\n    return value\n"
    services = program(
        {
            "one/scripts/main.py": main + later,
            "one/scripts/helper.py": "more = 'more one'",
            "one/lib/__init__.py": "word = 'one'",
            "one/lib/late.py": "value = 'late'",
            "two/scripts/main.py": main + "from extensions.one.lib import word as other\n",
            "two/scripts/helper.py": "more = 'more two'",
            "two/lib/__init__.py": "word = 'two'",
        }
    )
    assert services.scripts.faults == []
    one, two = module_of("one", "main"), module_of("two", "main")
    assert (one.word, one.more, two.word, two.more, two.other) == ("one", "more one", "two", "more two", "one")
    assert Path(one.base).name == "one" and Path(two.base).name == "two"


IMAGES = """
import modules.scripts as scripts
from modules import processing, shared, images
from modules.processing import Processed, StableDiffusionProcessingTxt2Img, process_images
from modules.processing import StableDiffusionProcessingImg2Img

class Twice(scripts.Script):
    def title(self):
        return "Refine twice"

    def run(self, p, *args):
        assert isinstance(p, StableDiffusionProcessingTxt2Img)
        processing.fix_seed(p)
        first = process_images(p)
        again = StableDiffusionProcessingImg2Img(
            sd_model=p.sd_model, prompt=p.prompt, negative_prompt="", sampler_name=p.sampler_name, scheduler=None,
            seed=-1, subseed=None, steps=2, cfg_scale=7.0, width=64.0, height=64, init_images=[first.images[0]],
            denoising_strength=0.5, outpath_samples=p.outpath_samples, do_not_save_samples=True, do_not_save_grid=True,
            styles=None, override_settings={"no_such_setting": 1}, mask=None, seed_resize_from_w=-1,
        )
        second = process_images(again)
        p.n_iter = p.batch_size = 0
        combined = Processed(p=p, images_list=[second.images[0]], seed=second.seed, info=first.info)
        combined.images.insert(0, images.image_grid([first.images[0], second.images[0]], rows=1))
        combined.infotexts.insert(0, first.info)
        combined.index_of_first_image = 1
        return combined
"""


def test_a_selected_script_builds_jobs_and_results(program: Program) -> None:
    services = program({"twice/scripts/twice.py": IMAGES})
    result = made(services, small_request(script="Refine twice"))
    assert [image.image.size for image in result.images] == [(128, 64), (64, 64)]
    assert result.images[0].infotext.startswith("a red cat")


SEEDS = """
import modules.scripts as scripts
from modules.processing import Processed, get_fixed_seed, process_images

ASKED = []

class Seeds(scripts.Script):
    def title(self):
        return "Each its own seed"

    def run(self, p, *args):
        ASKED.append((p.seed, p.subseed))
        runs = [process_images(p) for _ in range(2)]
        p.seed = get_fixed_seed(p.seed)
        runs.append(process_images(p))
        images = [image for run in runs for image in run.images]
        return Processed(p, images, all_seeds=[run.all_seeds[0] for run in runs])
"""


def test_a_selected_script_finds_the_seed_that_was_asked_for(program: Program) -> None:
    services = program({"seeds/scripts/seeds.py": SEEDS})
    request = fix_seeds(replace(small_request(script="Each its own seed"), seed=-1, subseed=3))
    seeds = [[image.seed for image in made(services, request).images] for _ in range(2)]
    assert len(set(seeds[0])) == 3 and seeds[0][0] == request.seed
    assert seeds[1] == seeds[0]
    assert module_of("seeds", "seeds").ASKED == [(-1, 3)] * 2
    given = made(services, replace(request, seed=8)).images
    assert [image.seed for image in given] == [8, 8, 8]


DETAIL = """
from copy import copy
from unittest.mock import patch
import modules
import modules.scripts as scripts
from modules import script_callbacks
from modules.processing import Processed, StableDiffusionProcessingImg2Img, process_images, create_infotext
from modules.shared import opts

seen = {}

def remember(component, **kwargs):
    seen[kwargs.get("elem_id")] = component

script_callbacks.on_after_component(remember)

class Detail(scripts.Script):
    calls = []

    def title(self):
        return "Detail again"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        import gradio as gr
        with gr.Accordion(self.title(), open=False):
            enabled = gr.Checkbox(True, label="Enabled", elem_id=self.elem_id("enabled"))
            strength = gr.Slider(0, 1, value=0.4, label="Strength")
        self.infotext_fields = [(strength, "Detail strength")]
        state = gr.State(lambda: {"vaes": modules.shared_items.sd_vae_items()})
        button = seen["img2img_generate" if is_img2img else "txt2img_generate"]
        button.click(lambda values: values, inputs=[state], outputs=[state])
        return [enabled, strength, state]

    def process(self, p, enabled, strength, state):
        self.vaes = state["vaes"]
        self.calls.append(("process", enabled, strength))
        script_callbacks.on_cfg_denoiser(self.each_step)

    def each_step(self, params):
        self.calls.append((params.denoiser.step, params.denoiser.steps, tuple(params.sigma.shape)))

    def postprocess_image(self, p, pp, enabled, strength, state):
        if getattr(p, "_detail_disabled", False):
            return
        self.place = p.iteration * p.batch_size + p.batch_index
        p.scripts.postprocess(copy(p), Processed(p, [], p.seed, ""))
        with patch.dict(opts.data, {"samples_format": "webp", "no_such_setting": 1}):
            self.inside = opts.samples_format, opts.data["no_such_setting"]
        self.outside = opts.samples_format, "no_such_setting" in opts.data
        p.scripts.before_process(copy(p))
        p.scripts.process(copy(p))
        runner = copy(p.scripts)
        runner.alwayson_scripts = [one for one in runner.alwayson_scripts if one.title() == "Other"]
        again = StableDiffusionProcessingImg2Img(
            init_images=[pp.image], prompt=p.all_prompts[0], steps=1, width=64, height=64, seed=3, subseed=3,
            sampler_name="Euler", denoising_strength=strength, do_not_save_samples=True, do_not_save_grid=True,
        )
        again.scripts, again.script_args, again._detail_disabled = runner, p.script_args, True
        pp.image = process_images(again).images[0]
        p.extra_generation_params["Detail strength"] = strength

    def postprocess(self, p, processed, *args):
        script_callbacks.remove_current_script_callbacks()
        self.calls.append(create_infotext(p, p.all_prompts, p.all_seeds, p.all_subseeds))
        processed.images.append(processed.images[0].convert("L").convert("RGB"))

class Other(scripts.Script):
    calls = []
    def title(self): return "Other"
    def show(self, is_img2img): return scripts.AlwaysVisible
    def ui(self, is_img2img):
        import gradio as gr
        return [gr.Number(5, label="n", precision=0)]
    def process(self, p, n):
        self.calls.append((type(p).__name__, n))
"""


NEAR = """
import modules.scripts as scripts

class Near(scripts.Script):
    calls = []
    def title(self): return "Near"
    def show(self, is_img2img): return scripts.AlwaysVisible
    def process(self, p): self.calls.append("process")
    def postprocess(self, p, processed): self.calls.append(("postprocess", len(processed.images)))
"""


def test_a_hook_makes_images_inside_with_defaults_of_its_controls(program: Program) -> None:
    services = program({"detail/scripts/detail.py": DETAIL, "near/scripts/near.py": NEAR})
    assert services.scripts.faults == []
    result = made(services, small_request())
    assert result.notices == ()
    found = module_of("detail", "detail")
    assert found.Detail.calls[0] == ("process", True, 0.4)
    assert [call[:2] for call in found.Detail.calls[1:3]] == [(0, 2), (1, 2)]
    assert "Steps: 2" in found.Detail.calls[-1] and "Detail strength: 0.4" in found.Detail.calls[-1]
    assert found.Other.calls == [("StableDiffusionProcessingTxt2Img", 5), ("StableDiffusionProcessingImg2Img", 5)]
    assert len(result.images) == 2 and "Detail strength: 0.4" in result.images[0].infotext
    script: Any = services.scripts.find_alwayson("Detail again")
    assert script.vaes[:2] == ["Automatic", "None"] and script.place == 0
    assert script.inside == ("webp", 1) and script.outside == ("png", False)
    assert module_of("near", "near").Near.calls == ["process", ("postprocess", 0), "process", ("postprocess", 2)]


def test_a_function_of_the_page_makes_images_by_the_queue(program: Program) -> None:
    source = (
        "from modules import processing, shared, scripts\n"
        "def pressed(prompt):\n"
        "    p = processing.StableDiffusionProcessingTxt2Img(prompt=prompt, steps=1, width=64, height=64, seed=4,\n"
        "        sampler_name='Euler', do_not_save_samples=True, do_not_save_grid=True)\n"
        "    shared.state.begin(job='button')\n"
        "    found = processing.process_images(p)\n"
        "    shared.state.end()\n"
        "    return found\n"
    )
    program({"button/scripts/button.py": source})
    found = module_of("button", "button").pressed("a cat")
    assert found.images[0].size == (64, 64) and found.seed == 4 and found.all_prompts == ["a cat"]


LISTS = """
from modules import sd_models, sd_samplers, sd_vae, shared, hashes, extensions, images, masking, scripts, devices
from modules import infotext_utils, generation_parameters_copypaste as gpc, prompt_parser, extra_networks, paths
from modules.paths_internal import extensions_dir, models_path, script_path
from modules.sd_samplers import samplers, samplers_for_img2img
from modules.shared import opts, sd_upscalers
from modules.api import api, models
from modules.call_queue import wrap_gradio_gpu_call, queue_lock, wrap_queued_call
from modules.ui_components import ToolButton, FormRow, InputAccordion, DropdownMulti
from modules.ui import create_refresh_button, gr_show, versions_html
from modules.launch_utils import is_installed
from launch import run_pip
from webui import wrap_gradio_gpu_call as by_its_first_name
from modules import safe, errors, sd_hijack, upscaler, styles, timer, util, modelloader, script_loading, shared_items
from modules.sd_samplers_kdiffusion import samplers_k_diffusion
from modules.sd_hijack import model_hijack
import modules.textual_inversion.preprocess as refused
refused.preprocess()
"""


def test_every_module_of_the_table_is_there_and_a_missing_one_says_why(program: Program) -> None:
    services = program({"lists/scripts/lists.py": LISTS})
    (fault,) = services.scripts.extensions["lists"].faults
    assert fault.missing == "modules.textual_inversion.preprocess.preprocess" and "Train tab" in fault.reason


def test_lists_and_pixels(program: Program, tmp_path: Path) -> None:
    services = program({"lists/scripts/lists.py": LISTS.rsplit("import modules", 1)[0]})
    assert services.scripts.faults == []
    m = module_of("lists", "lists")
    title = services.catalogue.entries[0].title
    assert m.sd_models.checkpoint_tiles() == [info.title for info in services.catalogue.entries]
    assert m.sd_models.get_closet_checkpoint_match(title[:4]).filename == str(services.catalogue.entries[0].path)
    assert m.sd_models.checkpoints_list[title].name == services.catalogue.entries[0].name
    assert m.shared.sd_model.sd_checkpoint_info.title and m.shared.sd_model.is_sdxl is False
    with pytest.raises(AttributeError, match="another tree here"):
        _ = m.shared.sd_model.model
    assert "Euler a" in [one.name for one in m.samplers] and m.sd_samplers.samplers_map["euler"] == "Euler"
    lanczos = next(one for one in m.sd_upscalers if one.name == "Lanczos")
    assert lanczos.scaler.upscale(Image.new("RGB", (32, 16)), 2, None).size == (64, 32)
    assert [one.name for one in m.extensions.active()][-1] == "lists"
    file = tmp_path / "x.txt"
    file.write_text("x")
    assert m.hashes.calculate_sha256(str(file)).startswith("2d711642")
    assert m.prompt_parser.parse_prompt_attention("a (b:1.5)") == [["a ", 1.0], ["b", 1.5]]
    text, data = m.extra_networks.parse_prompt("cat <lora:x:0.5>")
    assert text.strip() == "cat" and data["lora"][0].positional == ["x", "0.5"]
    parsed = m.gpc.parse_generation_parameters("cat\nSteps: 5, Sampler: Euler, Seed: 3, Size: 64x32, CFG scale: 7")
    assert parsed["Steps"] == "5" and parsed["Size-1"] == "64"
    saved, _ = m.images.save_image(
        Image.new("RGB", (8, 8)), str(tmp_path / "mine"), "word", seed=1, prompt="p", info="cat", save_to_dirs=False
    )
    with Image.open(saved) as image:
        assert Path(saved).name == "word-0000.png" and m.images.read_info_from_image(image)[0] == "cat"
    assert m.images.get_next_sequence_number(str(tmp_path / "mine"), "word") == 1
    assert m.images.resize_image(1, Image.new("RGB", (8, 4)), 16, 16).size == (16, 16)
    mask = Image.new("L", (64, 64))
    mask.paste(255, (10, 10, 20, 20))
    assert m.masking.get_crop_region(mask, 4) == (6, 6, 24, 24)
    assert m.masking.expand_crop_region((6, 6, 24, 24), 128, 64, 64, 64)[2:] != (24, 24)
    assert str(m.devices.cpu) == "cpu" and str(m.devices.device) == "cpu"
    assert m.api.decode_base64_to_image(m.api.encode_pil_to_base64(Image.new("RGB", (4, 4))).decode()).size == (4, 4)
    assert m.paths.models_path == m.models_path and Path(m.script_path, "webui.py").is_file()


def test_an_image_to_image_job_has_what_scripts_ask(program: Program) -> None:
    source = (
        "import modules.scripts as scripts\n"
        "from modules.processing import StableDiffusionProcessingImg2Img\n"
        "class Asks(scripts.Script):\n"
        "    seen = {}\n"
        "    def title(self): return 'Asks'\n"
        "    def show(self, is_img2img): return scripts.AlwaysVisible\n"
        "    def process_batch(self, p, *args, **kwargs):\n"
        "        names = 'sampler rng color_corrections cached_c tiling outpath_samples sd_model'.split()\n"
        "        names += 'all_hr_prompts scripts script_args is_api eta s_churn'.split()\n"
        "        self.seen.update({name: getattr(p, name) for name in names})\n"
        "        assert isinstance(p, StableDiffusionProcessingImg2Img)\n"
        "        p.comment('a remark of a script')\n"
        "        p.sample\n"
    )
    services = program({"asks/scripts/asks.py": source})
    result = made(services, image_request())
    assert any("a remark of a script" in note for note in result.notices)
    assert any("p.sample is not supported here" in note for note in result.notices)
    seen = module_of("asks", "asks").Asks.seen
    assert seen["outpath_samples"].endswith("img2img-images") and len(seen["cached_c"]) == 3


def test_axes_of_grids(program: Program) -> None:
    source = (
        "from modules import scripts, script_callbacks\n"
        "def before_ui():\n"
        "    grid = [x for x in scripts.scripts_data if x.script_class.__module__ == 'xyz_grid.py'][0].module\n"
        "    grid.axis_options.extend([grid.AxisOption('[Mine] Strength', float, grid.apply_field('mine_strength'))])\n"
        "script_callbacks.on_before_ui(before_ui)\n"
    )
    services = program({"axes/scripts/axes.py": source})
    from modules.scripts.axes import AXES
    from modules.scripts.callbacks import Moment

    services.scripts.callbacks.call(Moment.BEFORE_UI)
    assert services.scripts.extensions["axes"].faults == []
    assert AXES.get("[Mine] Strength").values("0.5, 1") == [0.5, 1.0]


def test_axes_that_are_added_before_the_page_reach_a_process_without_one(program: Program) -> None:
    source = (
        "from modules import scripts, script_callbacks\n"
        "def before_ui():\n"
        "    grid = [x for x in scripts.scripts_data if x.script_class.__module__ == 'xyz_grid.py'][0].module\n"
        "    def apply(p, x, xs): p.late = x\n"
        "    grid.axis_options.append(grid.AxisOption('[Late] Value', float, apply))\n"
        "script_callbacks.on_before_ui(before_ui)\n"
        "class Late(scripts.Script):\n"
        "    def title(self): return 'Late'\n"
        "    def show(self, is_img2img): return scripts.AlwaysVisible\n"
        "    def process(self, p, *args): p.extra_generation_params['Late'] = getattr(p, 'late', 0)\n"
    )
    services = program({"late/scripts/late.py": source})
    from modules.scripts.axes import AXES
    from modules.scripts.library import default_args

    script = services.scripts.find("x/y/z plot")
    args = default_args(script)
    services.scripts.before_ui()  # as the server's page does
    args[0], args[1] = list(AXES).index("[Late] Value"), "0.25, 0.75"
    services.scripts.has_told_before_ui = False  # as in a worker
    result = made(services, small_request(script="X/Y/Z plot", script_args=tuple(args)))
    assert services.scripts.has_told_before_ui and services.scripts.extensions["late"].faults == []
    assert any("Late: 0.25" in image.infotext for image in result.images)


TABS = """
import gradio as gr
from modules import scripts, sd_samplers
from modules.sd_samplers_kdiffusion import KDiffusionSampler

class Tabs(scripts.Script):
    seen = []
    def __init__(self):
        self.found, self.values = {}, []
        self.prompts = []
        self.on_after_component_elem_id = [("txt2img_prompt", lambda one: self.prompts.append(one.component))]
    def title(self):
        return "Per tab"
    def show(self, is_img2img):
        return scripts.AlwaysVisible
    def after_component(self, component, **kwargs):
        self.found[kwargs["elem_id"]] = component
        self.values.append(kwargs.get("value"))
    def ui(self, is_img2img):
        assert self.is_img2img == is_img2img and self.is_txt2img != is_img2img
        return [gr.Slider(0, 1, value=0, label="Shift")]
    def process(self, p, shift):
        self.seen.append((self.is_img2img, type(p).__name__))
        KDiffusionSampler.shift = shift
        for name in [name for name in dir(p) if not name.startswith("__")]:
            setattr(p, name, getattr(p, name))  # as those do that offer every attribute to the user
        self.seen.append(sd_samplers.samplers[p.sampler_index].name == p.sampler_name)
        p.all_hr_prompts = list(p.all_prompts)
        p.all_hr_negative_prompts = None
    def postprocess(self, p, processed, *args):
        processed.info = "written"
        self.seen.append((processed.info, processed.seed))

before = KDiffusionSampler.callback_state
def callback(self, d):
    Tabs.seen.append((d["i"], d["x"].shape == d["denoised"].shape))
    d["x"] += self.shift
    return before(self, d)
KDiffusionSampler.callback_state = callback
"""


def test_each_tab_has_its_own_script_which_hears_of_all_components(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compat.facades.sd_samplers_kdiffusion import KDiffusionSampler

    monkeypatch.setattr(KDiffusionSampler, "callback_state", KDiffusionSampler.callback_state)  # put back at the end
    services = program({"tabs/scripts/tabs.py": TABS})
    assert services.scripts.faults == []
    page_config(services)
    made_ = module_of("tabs", "tabs")
    text, image = (
        next(one for one in services.scripts.alwayson_of(tab) if one.title() == "Per tab") for tab in (False, True)
    )
    assert text is not image and not text.is_img2img and image.is_img2img
    found = (vars(text)["found"], vars(image)["found"])
    assert {"txt2img_prompt", "txt2img_generate", "txt2img_width", "txt2img_enable_hr"} <= set(found[0])
    assert "img2img_generate" in found[1] and "txt2img_prompt" not in found[1]
    said = vars(text)["values"]
    assert "Generate" in said and "Swap X/Y axes" in said, "also where it is the first word, or has no id"
    plain = made(services, small_request())
    shifted = made(services, small_request(alwayson_args={"Per tab": (0.5,)}))
    assert plain.images[0].image.tobytes() != shifted.images[0].image.tobytes()
    assert vars(text)["prompts"] == [found[0]["txt2img_prompt"]]
    assert made_.Tabs.seen[:4] == [(False, "StableDiffusionProcessingTxt2Img"), True, (0, True), (1, True)]
    assert made_.Tabs.seen[4] == ("written", 5)


def test_tokens_embeddings_and_the_model_that_was_loaded(program: Program) -> None:
    source = (
        "from modules import script_callbacks, sd_hijack, extras, localization\n"
        "from modules.textual_inversion.textual_inversion import Embedding, EmbeddingDatabase\n"
        "from modules.script_callbacks import cfg_denoiser_callback, callback_map\n"
        "loaded = []\n"
        "script_callbacks.on_model_loaded(lambda model: loaded.append(model))\n"
        "count = sd_hijack.model_hijack.get_prompt_lengths\n"
        "words = sd_hijack.model_hijack.embedding_db\n"
        "from ldm.modules.encoders.modules import FrozenCLIPEmbedder, FrozenOpenCLIPEmbedder\n"
        "def split(text):\n"
        "    clip = __import__('modules.shared').shared.sd_model.cond_stage_model.wrapped\n"
        "    assert isinstance(clip, FrozenCLIPEmbedder) and not isinstance(clip, FrozenOpenCLIPEmbedder)\n"
        "    ids = clip.tokenizer(text, truncation=False, add_special_tokens=False)['input_ids']\n"
        "    words = {index: word for word, index in clip.tokenizer.get_vocab().items()}\n"
        "    return [bytearray(clip.tokenizer.byte_decoder[c] for c in words[i]).decode() for i in ids], ids\n"
    )
    services = program({"names/scripts/names.py": source, "names/localizations/mine.json": "{}"})
    assert services.scripts.faults == []
    found = module_of("names", "names")
    assert found.localization.localizations["mine"].endswith("names/localizations/mine.json")
    assert found.count("a cat, a (dog:1.2)") == (5, 75) and found.count("cat " * 80)[1] == 150
    pieces, ids = found.split("a red café")
    assert pieces == ["a</w>", "red</w>", "cafe</w>"] or "".join(pieces).replace("</w>", " ") == "a red café "
    chunk, count, room = found.sd_hijack.model_hijack.tokenize("a (red:1.2) café")
    assert chunk[:count] == ids and (len(chunk), room) == (75, 75)
    (services.paths.embeddings_dirs[0] / "mine.pt").write_bytes(b"")
    assert found.words.word_embeddings.keys() <= {"mine"}
    made(services, small_request())
    assert found.loaded and found.loaded[-1].sd_checkpoint_info.title and found.loaded[-1].is_sdxl is False
    image = Image.new("RGB", (4, 4))
    assert found.extras.run_pnginfo(image)[1] == ""


def test_ours_steps_aside_for_theirs_and_does_the_work_of_one_that_fails(program: Program) -> None:
    good = (
        "from modules import scripts\nclass W(scripts.Script):\n    def title(self): return 'Words from files'\n"
        "    def show(self, is_img2img): return scripts.AlwaysVisible\n"
    )
    files = {
        "stable-diffusion-webui-wildcards/scripts/w.py": good,
        "adetailer/scripts/a.py": "import no_such_detector\n",
        "sd-webui-agent-scheduler/scripts/q.py": "raise RuntimeError\n",
    }
    found = program(files).scripts
    ours = {one.acting.owner.name for one in found.scripts if one.acting is not None}
    assert "dynamic-prompts" not in ours and "detailer" in ours
    assert found.extensions["adetailer"].replaced_by == "detailer" and found.extensions["adetailer"].faults
    assert "extension 'agent-scheduler'" in found.extensions["sd-webui-agent-scheduler"].notices[0]
    assert found.fault_notices == []


def test_an_extension_may_have_a_package_of_the_name_of_ours(program: Callable[[Files], Services]) -> None:
    """Its own is found while it loads, and names of the reference UI are found as well."""
    services = program(
        {
            "theirs/compat/__init__.py": "word = 'theirs'\n",
            "theirs/compat/more.py": "number = 3\n",
            "theirs/scripts/a.py": "import compat\n"
            "from compat.more import number\n"
            "from modules import masking, scripts\n"
            "class Mine(scripts.Script):\n    def title(self): return f'{compat.word} {number} {masking.__name__}'\n",
        }
    )
    assert not services.scripts.extensions["theirs"].faults
    assert "theirs 3 compat.facades.masking" in [script.title() for script in services.scripts.scripts]
    assert Path(str(sys.modules["compat"].__file__)).parent == Path(__file__).parents[2] / "compat"
