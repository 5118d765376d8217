"""VAE-approx networks, for previews."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from modules.errors import CheckpointError
from modules.models.autoencoders.approx_vae import read_approx
from modules.models.autoencoders.tiny_vae_files import TinyVaeFolders
from modules.models.files.catalogue import CheckpointInfo

WIDTHS = (4, 8, 16, 32, 64, 32, 16, 8, 3)
KERNELS = (7, 5, 3, 3, 3, 3, 3, 3)


def tensors(first: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = {}
    for number, kernel in enumerate(KERNELS, 1):
        enters = first if number == 1 else WIDTHS[number - 1]
        made[f"conv{number}.weight"] = torch.randn(WIDTHS[number], enters, kernel, kernel, generator=generator) * 0.1
        made[f"conv{number}.bias"] = torch.randn(WIDTHS[number], generator=generator) * 0.1
    return made


def written(folder: Path, content: dict[str, Tensor], name: str = "model.pt") -> Path:
    torch.save(content, folder / name)
    return folder / name


def test_it_is_the_row_of_convolutions_on_the_doubled_latent(tmp_path: Path) -> None:
    content = tensors()
    layers: list[nn.Module] = [nn.Upsample(scale_factor=2), nn.ZeroPad2d(11)]
    for number, kernel in enumerate(KERNELS, 1):
        convolution = nn.Conv2d(WIDTHS[number - 1], WIDTHS[number], kernel)
        convolution.load_state_dict({part: content[f"conv{number}.{part}"] for part in ("weight", "bias")})
        layers += [convolution, nn.LeakyReLU(0.1)]
    latents = torch.randn(2, 4, 3, 5)
    images = read_approx(written(tmp_path, content), 4).run(latents)
    assert images.shape == (2, 3, 6, 10)
    torch.testing.assert_close(images, nn.Sequential(*layers).requires_grad_(False)(latents))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv3.weight": torch.zeros(32, 16)}, "conv3 is missing or of another shape"),
        ({"conv3.bias": torch.zeros(31)}, "conv3 is missing"),
        ({"conv8.weight": torch.zeros(4, 8, 3, 3), "conv8.bias": torch.zeros(4)}, "makes 4 channels, not 3"),
        (tensors(16), "conv1 takes 16 channels and would be given 4. Use the file of this model's family"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"model\.pt: .*{message}"):
        read_approx(written(tmp_path, tensors() | change), 4)
    with pytest.raises(CheckpointError, match="conv1 is missing"):
        read_approx(written(tmp_path, {"a": torch.zeros(1)}), 4)


def test_files_are_found_by_the_reference_uis_names(tmp_path: Path) -> None:
    checkpoint = CheckpointInfo(Path("nice.safetensors"), "nice.safetensors", 1, 1)
    folders = TinyVaeFolders((), [tmp_path])
    assert folders.find_approx(checkpoint, "model") is None
    for name in ("model", "vaeapprox-sdxl", "vaeapprox-sd3"):
        (tmp_path / f"{name}.pt").touch()
        assert folders.find_approx(checkpoint, name) == tmp_path / f"{name}.pt"
