"""Files of other programs: what each is told to be, whose it is, and where it belongs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from modules.models.detection.files import Detected, detected, detected_at
from modules.models.detection.formats import FORMATS, stored_format
from modules.models.detection.kinds import FOLDERS, Kind
from modules.models.files.header import Header, Stored
from tests.models.detection.strangers import SDXL as LAYERS
from tests.models.detection.strangers import STRANGERS, lora


@pytest.mark.parametrize("name", STRANGERS)
def test_files_of_other_programs_are_called_by_what_they_are(name: str) -> None:
    stranger = STRANGERS[name]
    found = stranger.found
    if stranger.folder:
        assert (found.line, found.folder, found.refusal) == (stranger.line, stranger.folder, "")
    else:
        assert stranger.line in found.refusal and found.folder == "" and not found.is_supported


@pytest.mark.parametrize("name", STRANGERS)
def test_a_tensor_more_or_less_never_changes_the_kind_silently(name: str) -> None:
    stranger = STRANGERS[name]
    before = stranger.found
    for key in [*stranger.shapes][:20]:
        if name == "CLIP with both halves" and "token_embedding" in key:
            continue  # what is left is an image encoder
        less = {other: shape for other, shape in stranger.shapes.items() if other != key}
        for shapes in (less, {**less, f"odd.{key}": (3, 3)}, {**stranger.shapes, "odd.weight": (3, 3)}):
            found = replace(stranger, shapes=shapes).found
            # without what a file is told by it is no file of another kind
            assert found.kind is before.kind or found.refusal, (key, found)


def test_every_kind_is_told_of_some_file() -> None:
    told = {stranger.found.kind for stranger in STRANGERS.values()}
    of_other_tests = {
        *(Kind.CHECKPOINT, Kind.DENOISER, Kind.VAE, Kind.IMAGE_ENCODER, Kind.T2I_ADAPTER),
        Kind.UNKNOWN,
    }
    assert told | of_other_tests == set(Kind)
    assert set(Kind) - set(FOLDERS) == {Kind.LANGUAGE_MODEL, Kind.MEDIA, Kind.UNKNOWN}


def test_articles_of_kinds() -> None:
    words = [Kind.UPSCALER.words, Kind.IP_ADAPTER.words, Kind.LORA.words, Kind.VAE.words, Kind.EMBEDDING.words]
    assert words == ["an upscaler", "an IP-adapter", "a LoRA", "a VAE", "an embedding"]


def form(dtype: str, *ends: str, **metadata: str) -> str:
    tensors = {"a.weight": Stored((64, 64), dtype), **{f"a{end}": Stored((64,), "F32") for end in ends}}
    return stored_format(Header("safetensors", tensors, metadata)).label


@pytest.mark.parametrize(
    ("dtype", "ends", "label"),
    [
        ("BF16", (), "bf16"),
        ("F8_E4M3", (), "fp8 e4m3fn"),
        ("F8_E4M3", (".scale_weight",), "fp8 e4m3fn, with scales"),
        ("F8_E5M2", (".weight_scale",), "fp8 e5m2, with scales"),
        ("I8", (".weight_scale", ".comfy_quant"), "int8, with scales"),
        ("U8", (".weight_scale", ".weight_scale_2"), "nvfp4"),
        ("U8", (".weight.absmax", ".weight.quant_state.bitsandbytes__nf4"), "nf4 (bitsandbytes)"),
        ("U8", (".weight.absmax",), "codes of bitsandbytes without their shapes"),
        ("I32", (".qweight", ".qzeros"), "the codes of GPTQ or AWQ"),
        ("I8", (".qweight", ".wscales"), "SVDQuant (Nunchaku)"),
    ],
)
def test_the_format_of_most_weights_is_named(dtype: str, ends: tuple[str, ...], label: str) -> None:
    assert form(dtype, *ends) == label
    assert any(one.label == label for one in FORMATS)


def test_declared_formats_go_before_types() -> None:
    layers = {"a": {"format": "int8_tensorwise", "convrot": True}}
    assert form("I8", ".weight_scale", _quantization_metadata=json.dumps({"layers": layers})) == (
        "int8_tensorwise, rotated"
    )
    assert form("U8", featherweight_packed=json.dumps({"a.weight": ["gguf_q4_k", [64, 64]]})) == "gguf_q4_k"
    assert form("BF16", _quantization_metadata="[") == "bf16"
    gguf = Header("gguf", {"a.weight": Stored((64, 64), "Q4_K"), "b.bias": Stored((64,), "F32")})
    assert stored_format(gguf).label == "GGUF Q4_K"


def test_a_file_in_codes_that_are_not_read_is_refused() -> None:
    tensors = {name: Stored(shape, "I32") for name, shape in lora(LAYERS).items()}
    tensors |= {"a.qweight": Stored((9, 9), "I32"), "a.qzeros": Stored((9, 9), "I32")}
    found = detected(Header("safetensors", tensors))
    assert found.refusal == (
        "is a LoRA in the codes of GPTQ or AWQ, which is not read. Use a copy in 16 bits, fp8 or GGUF."
    )
    assert not found.folder


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x08\x07\x12\x07pytorch\x1a\x05", "is an ONNX model: of these detectors alone"),
        (b"<html>", "is damaged, or no model file."),
        (b"", "is damaged, or no model file."),
        (b"version https://git-lfs.github.com/spec/v1\n", "is damaged, or no model file."),
    ],
)
def test_what_is_no_file_of_tensors_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    assert detected_at(path).refusal.startswith(said)
    assert detected_at(tmp_path / "none").refusal and isinstance(detected_at(tmp_path), Detected)
