"""Taking over a folder of the reference UI: what is taken, what stays, what is named; there nothing changes."""

import json
import time
from pathlib import Path

import pytest
from PIL import Image

from lib_takeover.reference_folder import count_models
from lib_takeover.takeover import Report, Target, take_over
from modules.cli.commands import load_command
from modules.errors import InvalidValueError
from modules.flags.flags import parse_flags
from modules.history.store import History
from modules.prompting.styles import StyleBook
from modules.settings.store import SettingsStore
from modules.settings.values import Settings
from modules.system.folder_lock import FolderLock
from modules.system.paths import Paths, resolve_paths

STYLES = "name,prompt,negative_prompt\nInk,ink of {prompt},blurry\nOil,an oil painting,\n"


def put(path: Path, data: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data, encoding="utf-8")
    return path


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of the reference UI with one of everything."""
    folder = tmp_path / "their webui"
    for name in (
        *("models/Stable-diffusion/big/a.safetensors", "models/VAE/v.pt", "models/Lora/l.safetensors"),
        *("models/ESRGAN/4x.pth", "models/karlo/k.ckpt", "embeddings/style.png", "webui.py"),
        *("extensions/some-extension/install.py", "elsewhere/b.ckpt", "user.css"),
    ):
        put(folder / name)
    put(folder / "models/Stable-diffusion/Put Stable Diffusion checkpoints here.txt")
    put(folder / "styles.csv", STYLES)
    config = {
        **{"CLIP_stop_at_last_layers": 2, "samples_format": "webp", "outdir_txt2img_samples": str(folder / "made")},
        **{"of_an_extension": 1, "eta_ddim": "much", "sd_checkpoint_hash": "00", "disabled_extensions": ["Lora"]},
    }
    put(folder / "config.json", json.dumps(config))
    ui_config = {
        **{"txt2img/Width/value": 512, "img2img/CFG Scale/value": 5.5},
        **{"customscript/x.py/txt2img/Thing/value": 1, "customscript/sampler.py/txt2img/Sampling steps/value": 28},
        "customscript/sampler.py/txt2img/Sampling method/value": "DPM++ 2M SDE Karras",
        "customscript/sampler.py/img2img/Sampling method/value": "Euler a",
        "customscript/seed.py/txt2img/Seed/value": 7,
    }
    put(folder / "ui-config.json", json.dumps(ui_config))
    put(
        folder / "webui-user.sh",
        '#!/bin/bash\n#export X=1\nexport COMMANDLINE_ARGS="--xformers --ckpt-dir elsewhere"\n',
    )
    for name in ("outputs/txt2img-images/1.png", "made/2.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / name)
    return folder


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = resolve_paths(parse_flags(["--data-dir", str(tmp_path / "ours")]), tmp_path / "program")
    found.ensure()
    return found


def take(folder: Path, paths: Paths) -> tuple[Report, list[Path]]:
    history = History(None, paths.outputs_dir / "trash")
    asked: list[Path] = []
    try:
        return take_over(folder, Target(paths, SettingsStore(paths.config_file), history, asked.append)), asked
    finally:
        history.close()


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_everything_is_taken_by_path_and_named(theirs: Path, paths: Paths) -> None:
    before = state(theirs)
    report, asked = take(theirs, paths)
    assert state(theirs) == before
    now = resolve_paths(parse_flags(["--data-dir", str(paths.data_dir)]), paths.root)
    assert {theirs / "models" / "Stable-diffusion", theirs / "elsewhere"} < set(now.checkpoint_dirs)
    assert theirs / "models" / "VAE" in now.vae_dirs and theirs / "models" / "Lora" in now.lora_dirs
    assert now.embeddings_dirs[1] == theirs / "embeddings"
    assert now.all_upscaler_dirs["ESRGAN"][1] == theirs / "models" / "ESRGAN"
    settings = SettingsStore(paths.config_file).current
    assert (settings["CLIP_stop_at_last_layers"], settings["samples_format"]) == (2, "webp")
    assert settings["disabled_extensions"] == ()
    assert not str(settings["outdir_txt2img_samples"]).startswith(str(theirs)), "new images would be saved there"
    assert set(StyleBook.read(paths.styles_files).styles) == {"Ink", "Oil"}
    entries = json.loads(paths.ui_config_file.read_text(encoding="utf-8"))
    assert entries == {
        **{"txt2img/Sampling steps/value": 28, "img2img/CFG Scale/value": 5.5, "txt2img/Seed/value": 7},
        **{"txt2img/Sampling method/value": "DPM++ 2M SDE", "txt2img/Schedule type/value": "Karras"},
        "img2img/Sampling method/value": "Euler a",
    }
    assert asked == [theirs / "outputs", theirs / "made"]
    without = "\n".join(report.without)
    for words in ("karlo", "of_an_extension", "eta_ddim", "some-extension", "--xformers", "user.css"):
        assert words in without


def test_a_second_run_changes_nothing(theirs: Path, paths: Paths) -> None:
    take(theirs, paths)
    before = state(paths.data_dir)
    report, _ = take(theirs, paths)
    assert state(paths.data_dir) == before
    assert [line for line in report.taken if not line.startswith("images in")] == []


def test_what_is_ours_stays_and_is_named(theirs: Path, paths: Paths) -> None:
    put(paths.styles_files[0], "name,prompt,negative_prompt\nInk,mine,\n")
    put(paths.config_file, '{"samples_format": "jpg"}')
    put(paths.ui_config_file, '{"txt2img/Sampling steps/value": 9}')
    report, _ = take(theirs, paths)
    assert StyleBook.read(paths.styles_files).styles["Ink"].prompt == "mine"
    assert SettingsStore(paths.config_file).current["samples_format"] == "jpg"
    assert json.loads(paths.ui_config_file.read_text(encoding="utf-8"))["txt2img/Sampling steps/value"] == 9
    kept = "\n".join(report.kept)
    assert "Ink" in kept and "samples_format" in kept and "txt2img/Sampling steps/value" in kept


def test_broken_files_there_are_named_and_the_rest_is_taken(theirs: Path, paths: Paths) -> None:
    put(theirs / "config.json", "{")
    put(theirs / "webui-user.sh", "export COMMANDLINE_ARGS='--lora-dir gone\n")
    report, _ = take(theirs, paths)
    without = "\n".join(report.without)
    assert "config.json was left out" in without and "--lora-dir of its start file names gone" in without
    assert any("Stable-diffusion" in line for line in report.taken)


def test_folders_that_are_none_are_refused(tmp_path: Path, theirs: Path, paths: Paths) -> None:
    with pytest.raises(InvalidValueError, match="not a folder on this machine"):
        take(tmp_path / "gone", paths)
    with pytest.raises(InvalidValueError, match="no folder of the reference UI or Forge"):
        take(tmp_path, paths)
    put(paths.data_dir / "webui.py")
    with pytest.raises(InvalidValueError, match="this program's own folder"):
        take(paths.data_dir, paths)
    put(paths.extra_folders_file, "{")
    with pytest.raises(InvalidValueError, match=r"model-folders\.json was left out"):
        take(theirs, paths)


def test_the_command_remembers_outputs_for_the_next_start(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    words = (str(theirs), "--data-dir", str(data))
    assert load_command("import")(words) == 0
    out = capsys.readouterr().out
    assert "Taken over:" in out and "Without a counterpart:" in out
    history = History(data / "history.sqlite", data / "outputs" / "trash")
    assert {(item["folder"], item["state"]) for item in history.imports.all()} == {
        (str(theirs / "outputs"), "running"),
        (str(theirs / "made"), "running"),
    }
    history.close()
    assert load_command("import")(words) == 0
    assert "nothing new" in capsys.readouterr().out


def test_the_command_is_refused_while_a_server_runs(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = FolderLock(tmp_path / "data", "port 7860")
    assert load_command("import")((str(theirs), "--data-dir", str(tmp_path / "data"))) == 1
    assert "port 7860" in capsys.readouterr().err
    lock.close()


def test_no_power_is_taken_over(theirs: Path, paths: Paths, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "b.ckpt")
    (theirs / "models" / "hypernetworks").symlink_to(tmp_path / "elsewhere")
    put(theirs / "webui-user.sh", 'export COMMANDLINE_ARGS="--vae-dir ../../../.. --lora-dir ../elsewhere"\n')
    config = {
        **{"queue_done_command": "touch /x", "outdir_samples": "/etc", "outdir_txt2img_samples": "../../evil"},
        **{"api_enable_requests": True, "api_forbid_local_requests": False, "font": "/etc/passwd"},
        **{"localization": "../../x", "outdir_grids": "C:\\Windows", "samples_format": "webp"},
    }
    put(theirs / "config.json", json.dumps(config))
    report, asked = take(theirs, paths)
    current = SettingsStore(paths.config_file).current
    assert {key for key in config if current[key] != Settings()[key]} == {"samples_format"}
    without = "\n".join(report.without)
    assert all(f"setting {key}: " in without for key in config if key != "samples_format")
    now = resolve_paths(parse_flags(["--data-dir", str(paths.data_dir)]), paths.root)
    every = (*now.vae_dirs, *now.lora_dirs, *now.hypernetwork_dirs)
    assert not {Path("/"), tmp_path / "elsewhere", theirs / "models" / "hypernetworks"} & set(every)
    assert without.count("outside of the folder") >= 3
    assert all(one.resolve().is_relative_to(theirs) for one in asked)


def test_a_count_of_models_ends(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path / str(number) / "a.ckpt")
    assert count_models(tmp_path, time.monotonic() + 120) == 5
    assert count_models(tmp_path, time.monotonic()) <= 1


def test_settings_that_were_never_chosen_or_do_nothing_are_left_out_silently(theirs: Path, paths: Paths) -> None:
    config = json.loads((theirs / "config.json").read_text(encoding="utf-8"))
    config |= {"face_restoration_model": None, "upscaler_for_img2img": None, "realesrgan_enabled_models": None}
    config |= {"multiple_tqdm": False, "memmon_poll_rate": 4, "use_scale_latent_for_hires_fix": True}
    config |= {"enable_emphasis": False}
    (theirs / "config.json").write_text(json.dumps(config))
    report, _ = take(theirs, paths)
    said = "\n".join(report.lines)
    for key in ("face_restoration_model", "upscaler_for_img2img", "realesrgan", "multiple_tqdm", "memmon", "use_scale"):
        assert key not in said
    assert SettingsStore(paths.config_file).current["emphasis"] == "None"
