"""One answer to what becomes of a tensor: what the estimate adds up is what loading does and conversion writes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lib_workbench.merging.conversion import report_precision, save_as
from modules.memory.formats.format import FORMATS
from modules.memory.storage import StorageRules, stored_bytes
from modules.models.files.tensor_file import TensorEntry
from modules.models.loading.load_model import load_model
from modules.models.loading.meta_model import build_meta_model
from modules.models.loading.precision import PrecisionPlan
from modules.models.placing import Layer, PlacingRules, Way, format_in_file, placed
from modules.processing.engine.precision import storage_rules
from tests.models.family_files import write_family
from tests.models.gguf_files import write_gguf
from tests.models.test_conversion import info_of
from tests.recordings import CONFIGS

CPU = torch.device("cpu")
FP8_ROW = "fp8_e4m3fn_row"


def in_16_bits(source: Path, target: Path) -> Path:
    return source


def saved(storage: str, ending: str = ".safetensors") -> Callable[[Path, Path], Path]:
    def write(source: Path, target: Path) -> Path:
        path = target.with_suffix(ending)
        save_as(info_of(source), CONFIGS, storage_rules(storage), path)
        return path

    return write


def all_in_blocks(source: Path, target: Path) -> Path:
    """A GGUF file with blocks wherever rows are whole ones, in the VAE too."""
    path = target.with_suffix(".gguf")
    return write_gguf(path, load_file(source), "Q8_0", "sd1", lambda _, tensor: tensor.ndim == 2)


def bare_fp8(source: Path, target: Path) -> Path:
    """A file with everything in fp8, norms and embeddings too."""
    tensors = load_file(source)
    floats = {key: value.to(torch.float8_e4m3fn) for key, value in tensors.items() if value.is_floating_point()}
    save_file({**tensors, **floats}, target)
    return target


FILES = {
    "16 bits": in_16_bits,
    "fp8 with scales": saved(FP8_ROW),
    "int8 with scales": saved("int8_row"),
    "4 bits": saved("code4"),
    "gguf": saved("gguf_q8_0", ".gguf"),
    "gguf with a vae in blocks": all_in_blocks,
    "bare fp8": bare_fp8,
}


@pytest.mark.parametrize("storage", [None, FP8_ROW])
@pytest.mark.parametrize("kind", FILES)
def test_the_estimate_adds_up_what_loading_does(kind: str, storage: str | None, tmp_path: Path) -> None:
    path = FILES[kind](write_family(tmp_path, "sd1"), tmp_path / "small.safetensors")
    skip = storage_rules(storage).skip.texts if storage else ()
    plan = PrecisionPlan(
        device=CPU,
        compute_dtype=torch.float16,
        vae_dtype=torch.float32,
        unet_storage=storage,
        text_storage=storage,
        skip=skip,
        map_files=False,
    )
    meta = build_meta_model(info_of(path), CONFIGS)
    model = load_model(info_of(path), CONFIGS, lambda _: plan)
    for component in meta.components:
        parameters = dict(component.module.named_parameters())
        expected = sum(size for key, size in meta.weights(plan)[component.name].items() if key in parameters)
        loaded = {"unet": model.unet, "vae": model.vae, **model.text_encoders}[component.name]
        assert expected == stored_bytes(loaded), (kind, component.name)


@pytest.mark.parametrize("kind", ["16 bits", "fp8 with scales", "4 bits"])
def test_the_report_says_the_bytes_of_the_estimate(kind: str, tmp_path: Path) -> None:
    path = FILES[kind](write_family(tmp_path, "sd1"), tmp_path / "small.safetensors")
    rules = storage_rules(FP8_ROW)
    plan = PrecisionPlan(
        device=CPU,
        compute_dtype=torch.float16,
        vae_dtype=torch.float16,
        unet_storage=FP8_ROW,
        text_storage=FP8_ROW,
        skip=rules.skip.texts,
    )
    meta = build_meta_model(info_of(path), CONFIGS)
    report = report_precision(info_of(path), CONFIGS, rules)
    for name in ("unet", "vae"):
        sizes = meta.weights(plan)[name]
        assert sum(sizes.values()) == report.bytes_of(name)[1]


def entry(dtype: torch.dtype, shape: tuple[int, ...], **facts: str) -> TensorEntry:
    count = torch.Size(shape).numel()
    return TensorEntry(dtype, shape, 0, count * dtype.itemsize, **facts)  # type: ignore[arg-type]


def layer(module: nn.Module, shape: tuple[int, ...], name: str = "weight", component: str = "unet") -> Layer:
    return Layer(component, module, "a", name, shape)


def test_each_way_has_its_bytes_and_its_error() -> None:
    linear, norm = nn.Linear(64, 128), nn.LayerNorm(64)
    rules = PlacingRules(torch.float16, StorageRules(FP8_ROW))
    encoded = placed(entry(torch.float32, (128, 64)), layer(linear, (128, 64)), rules)
    assert (encoded.way, encoded.format) == (Way.ENCODED, FORMATS.get(FP8_ROW))
    assert encoded.size_bytes == 128 * 64 + 4 * 128 and encoded.error == pytest.approx(0.026)
    plain = placed(entry(torch.float32, (64,)), layer(norm, (64,)), rules)
    assert (plain.way, plain.size_bytes, plain.error) == (Way.PLAIN, 128, 0.0)
    whole = placed(entry(torch.int64, (1, 77)), layer(norm, (1, 77), "position_ids"), rules)
    assert (whole.way, whole.size_bytes) == (Way.PLAIN, 8 * 77)
    scaled = Layer("unet", linear, "a", "weight", (128, 64), entry(torch.float32, ()))
    kept = placed(entry(torch.float8_e4m3fn, (128, 64)), scaled, rules)
    assert (kept.way, kept.size_bytes, kept.error) == (Way.KEPT, 128 * 64 + 4, 0.0)
    wide = placed(entry(torch.float8_e4m3fn, (128, 64)), scaled, PlacingRules(torch.float16, keeps=False))
    assert (wide.way, wide.size_bytes) == (Way.PLAIN, 2 * 128 * 64)


def test_a_vae_keeps_no_blocks_and_a_table_stays_in_its_file() -> None:
    linear, table = nn.Linear(64, 128), nn.Embedding(8192, 64)
    blocks = TensorEntry(torch.float32, (128, 64), 0, 128 * 2 * 34, packed="gguf_q8_0")
    rules = PlacingRules(torch.float16, tables_in_file=True)
    assert placed(blocks, layer(linear, (128, 64)), rules).way is Way.KEPT
    assert placed(blocks, layer(linear, (128, 64), component="vae"), rules).way is Way.PLAIN
    large = entry(torch.float16, (8192, 64))
    assert placed(large, layer(table, (8192, 64)), rules).way is Way.IN_FILE
    assert placed(large, layer(table, (8192, 64)), PlacingRules(torch.float16)).way is Way.PLAIN
    assert placed(entry(torch.float16, (64, 64)), layer(table, (64, 64)), rules).way is Way.PLAIN


def test_the_format_in_the_file_is_named() -> None:
    assert format_in_file(entry(torch.float16, (4, 4)), has_scale=False) is None
    assert format_in_file(entry(torch.float16, (4, 4), coded="nf4"), has_scale=False) == "nf4"
    assert format_in_file(entry(torch.int8, (4, 4)), has_scale=True) == "int8_row"
    assert format_in_file(entry(torch.float8_e5m2, (4, 4)), has_scale=False) == "fp8_e5m2"
