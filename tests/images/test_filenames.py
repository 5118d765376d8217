"""Names of images."""

from datetime import UTC, datetime
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.images.filenames import (
    apply_pattern,
    image_pattern,
    next_number,
    number_of,
    numbered_stem,
    subfolder_of,
)
from modules.images.naming import NameContext
from modules.images.patterns import PATTERNS, Source
from modules.settings.values import Settings
from modules.system.file_names import MAX_NAME_BYTES, sanitize_name, sanitize_part
from tests.cases import for_each

CONTEXT = NameContext(
    prompt="a red cat, (on: a) chair",
    negative_prompt="blurry",
    seed=7,
    seeds=(7, 8, 9),
    steps=20,
    cfg_scale=7.0,
    width=512,
    height=768,
    styles=("ink", "oil"),
    sampler="DPM++ 2M",
    scheduler="Karras",
    model_hash="905498d62f",
    model_name="tiny/sd1",
    vae_filename="v.pt",
    clip_skip=2,
    denoising_strength=0.5,
    user="ann",
    batch_index=1,
    batch_size=2,
    iteration=3,
    n_iter=4,
    now=datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
    job_timestamp=datetime(2023, 1, 2, 3, 4, 5, tzinfo=UTC),
)
SOURCE = Source(CONTEXT, Image.new("RGB", (2, 2)))


@for_each(
    ("pattern", "expected"),
    [
        ("[seed]", "7"),
        ("[seed_first]-[seed_last]", "7-9"),
        ("[steps] [cfg] [width]x[height]", "20 7.0 512x768"),
        ("[styles]", "ink, oil"),
        ("[sampler]", "DPM++ 2M"),
        ("[sampler_scheduler]", "DPM++ 2M Karras"),
        ("[model_name] [model_hash]", "tiny_sd1 905498d62f"),
        ("[date]", "2024-05-06"),
        ("[datetime]", "20240506070809"),
        ("[datetime<%Y>]", "2024"),
        ("[datetime<%H:%M><Asia/Tokyo>]", "16_08"),
        ("[datetime<%H><Nowhere/At all>]", "07"),
        ("[datetime<><Asia/Tokyo>]", "20240506160809"),
        ("[job_timestamp]", "20230102030405"),
        ("[prompt]", "a_red_cat,_(on__a)_chair"),
        ("[prompt_spaces]", "a red cat, (on_ a) chair"),
        ("[prompt_no_styles]", "a_red_cat,_(on__a)_chair"),
        ("[prompt_words]", "a red cat on a chair"),
        ("[prompt_hash]", "531b6f2f"),
        ("[prompt_hash<12>]", "531b6f2faebf"),
        ("[negative_prompt_hash<4>]", "a51b"),
        ("[batch_number] of [batch_size]", "2 of 2"),
        ("[generation_number]", "8"),
        ("[hasprompt<cat><dog|nodog><x|>]", "catnodog"),
        ("[clip_skip] [denoising] [user] [vae_filename]", "2 0.5 ann v.pt"),
        ("[none]", ""),
        ("[unknown]-[seed]", "[unknown]-7"),
        ("plain", "plain"),
        ("[SEED]", "7"),
        ("[seed", "[seed"),
    ],
)
def test_patterns(pattern: str, expected: str) -> None:
    assert apply_pattern(pattern, SOURCE) == expected


def test_a_pattern_that_does_not_apply_takes_the_text_before_it_along() -> None:
    single = Source(NameContext(seed=5))
    assert apply_pattern("[seed]-batch[batch_number]-g[generation_number]", single) == "5"
    assert apply_pattern("[seed]-batch[batch_number]", SOURCE) == "7-batch2"


def test_the_prompt_without_styles_is_used_if_known() -> None:
    assert apply_pattern("[prompt_no_styles]", Source(NameContext(prompt="a, ink", prompt_no_styles="a"))) == "a"


def test_hashes_tell_images_and_prompts_apart() -> None:
    other = Source(NameContext(), Image.new("RGB", (2, 2), "red"))
    for pattern in ("[image_hash]", "[prompt_hash]", "[full_prompt_hash]"):
        assert apply_pattern(pattern, SOURCE) != apply_pattern(pattern, other)
        assert len(apply_pattern(pattern, SOURCE)) == 8


def test_the_word_limit_is_the_settings() -> None:
    assert apply_pattern("[prompt_words]", Source(CONTEXT, max_prompt_words=2)) == "a red"
    assert apply_pattern("[prompt_words]", Source(NameContext())) == "empty"


@given(st.text(), st.text(max_size=200))
def test_no_prompt_and_no_pattern_breaks_a_name(pattern: str, prompt: str) -> None:
    source = Source(NameContext(prompt=prompt, negative_prompt=prompt, user=prompt), Image.new("L", (1, 1)))
    everything = "".join(f"[{name}]" for name in PATTERNS)
    stem = numbered_stem(1, apply_pattern(pattern + everything, source))
    assert stem.startswith("00001-")
    assert len(stem.encode()) <= MAX_NAME_BYTES
    assert not set(stem) & set('<>:"/\\|?*\0\n\r\t')
    allowed = pattern.replace("\0", "")  # the setting refuses null characters
    folder = subfolder_of(Settings().changed(directories_filename_pattern=allowed + everything), source)
    assert not folder.is_absolute()
    assert ".." not in folder.parts


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [
        ("[date]", "2024-05-06"),
        ("[date]/[model_name]", "2024-05-06/tiny_sd1"),
        ("../../etc/[seed]", "etc/7"),
        ("/abs\\x", "abs/x"),
        ("C:\\x", "C_/x"),
        ("con/nul.txt", "_con/_nul.txt"),
        ("", "a red cat on a chair"),
        ("[none]", "."),
    ],
)
def test_folders_stay_inside(pattern: str, folder: str) -> None:
    assert subfolder_of(Settings().changed(directories_filename_pattern=pattern), SOURCE) == PurePath(folder)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a b", "a_b"),
        (' a/b\\c:d*e?f"g<h>i|j#k\nl', "_a_b_c_d_e_f_g_h_i_j_k_l"),
        ("ends. . ", "ends._._"),
        ("猫🐈", "猫🐈"),
        ("\ud800", "_"),
        ("x" * 500, "x" * 128),
    ],
)
def test_parts_are_made_safe(text: str, safe: str) -> None:
    assert sanitize_part(text) == safe


@pytest.mark.parametrize(
    ("text", "safe"), [("CON", "_CON"), ("com1.txt", "_com1.txt"), ("console", "console"), ("..", ""), (" a. ", "a")]
)
def test_names_are_made_safe(text: str, safe: str) -> None:
    assert sanitize_name(text) == safe


def test_long_names_are_cut_by_bytes_and_not_inside_a_character() -> None:
    name = sanitize_name("猫" * 200)
    assert name == "猫" * (MAX_NAME_BYTES // 3)


def test_numbers_continue_the_largest_one() -> None:
    assert next_number([]) == 0
    assert next_number(["00003-1.png", "00010.txt", "00004-9-before-highres-fix.png", "grid-0099.png", "x.png"]) == 11
    assert next_number(["grid-0003.png", "00010-1.png"], "grid") == 4
    assert number_of("20240506123456789.png") is None
    assert number_of("00012abc.png") is None
    assert number_of("42.png") is None
    assert numbered_stem(123_456, "7") == "123456-7"
    assert numbered_stem(2, "", "grid") == "grid-0002"


def test_the_default_pattern_depends_on_the_folder() -> None:
    assert image_pattern(Settings(), in_subfolder=True) == "[seed]"
    assert image_pattern(Settings(), in_subfolder=False) == "[seed]-[prompt_spaces]"
    assert image_pattern(Settings().changed(samples_filename_pattern="x"), in_subfolder=True) == "x"
