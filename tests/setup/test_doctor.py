"""`launch.py doctor`: facts without PyTorch, each fault with its remedy."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from modules.flags.flags import parse_flags
from modules.setup import doctor, launcher
from modules.setup.doctor import Findings, examine, memory_free_bytes, old_glibc, slow_cores, slow_instructions
from modules.setup.environment import Environment
from modules.setup.process import Outcome
from modules.setup.torch_choice import TORCH_VERSION
from modules.setup.torch_question import what_to_expect
from modules.system.cores import Cores
from modules.system.paths import resolve_paths
from tests.setup.fakes import add_package, make_environment, make_root

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program folder in which nothing is wrong."""
    environment = Environment(tmp_path / ".venv")
    make_environment(environment)
    for name, version in (("torch", f"{TORCH_VERSION}+cpu"), ("alpha", "1.0"), ("beta-pack", "2.0"), ("gamma", "3.0")):
        add_package(environment, name, version)
    folder = tmp_path / "models" / "Stable-diffusion"
    folder.mkdir(parents=True)
    (folder / "a.safetensors").touch()
    monkeypatch.setattr(doctor, "nvidia_smi", lambda: "nvidia-smi")
    monkeypatch.setattr(doctor, "MIN_DISK_BYTES", 0)
    monkeypatch.setattr(doctor, "MIN_MEMORY_BYTES", 0)
    return make_root(tmp_path)


def answer(command: Sequence[str], device: str = "cuda") -> Outcome:
    """nvidia-smi and PyTorch of a machine with a GPU."""
    if command[0] == "nvidia-smi":
        return Outcome(0, "Test GPU, 24576 MiB, 20000 MiB, 580.1\n")
    facts = {
        "version": TORCH_VERSION,
        "type": device,
        "device": "Test GPU",
        "rows": "encoded by a compiled kernel",
        "decoding": "decoded by a kernel in Triton",
    }
    return Outcome(0, json.dumps(facts))


def look(root: Path, device: str = "cuda") -> Findings:
    paths = resolve_paths(parse_flags([]), root)
    return examine(paths, Environment(root / ".venv"), lambda command: answer(command, device))


def test_it_says_what_there_is_and_nothing_is_wrong(root: Path) -> None:
    (root / "config.json").write_text('{"a": 1}', encoding="utf-8")
    with closing(sqlite3.connect(root / "history.sqlite")) as db:
        db.execute("CREATE TABLE images (path TEXT)")
    (root / "cache").mkdir()
    measured = {"Some CPU, PyTorch 2, float32": {"ratio": 0.4, "problem": ""}}
    (root / "cache" / "int8.json").write_text(json.dumps(measured), encoding="utf-8")
    threads = {"Some CPU, 4 cores": {"threads": 4, "milliseconds": {"2": 9.0, "4": 5.0}}}
    (root / "cache" / "threads.json").write_text(json.dumps(threads), encoding="utf-8")
    found = look(root)
    text = "\n".join(found.lines)
    assert found.faults == []
    assert "4 compute (2: 9 ms, 4: 5 ms) on Some CPU, 4 cores" in text
    for words in (
        *("Test GPU, 24576 MiB (20000 MiB free), driver 580.1", f"{TORCH_VERSION}+cpu", "cores", "Two workers on it"),
        *(f"1 in {root / 'models' / 'Stable-diffusion'}", "1 entries", "in order, 1 tables", "0.40 of the time"),
        *(
            "rows in 8 bits:        encoded by a compiled kernel",
            "8 bits on the GPU:     decoded by a kernel in Triton",
        ),
        "not used: numba is not installed",
    ):
        assert words in text


def test_numba_is_looked_for_where_the_program_runs(root: Path) -> None:
    add_package(Environment(root / ".venv"), "numba", "0.62.0")
    assert any("attention in int8:" in line and "not measured yet" in line for line in look(root).lines)


def test_kernels_that_are_missing_are_named_where_they_pay(root: Path) -> None:
    facts = {"version": TORCH_VERSION, "type": "cpu", "device": "the CPU", "instructions": "AVX512", "extra": ["VNNI"]}

    def run(command: Sequence[str]) -> Outcome:
        return Outcome(1, "") if command[0] == "nvidia-smi" else Outcome(0, json.dumps(facts))

    paths = resolve_paths(parse_flags([]), root)
    found = examine(paths, Environment(root / ".venv"), run)
    assert any("numba==" in reason and "requirements-kernels.txt" in reason for reason in found.slow)
    assert any("AVX512 with VNNI" in line for line in found.lines)
    facts["instructions"] = "AVX2"
    found = examine(paths, Environment(root / ".venv"), run)
    assert not any("kernels" in reason for reason in found.slow) and any("AVX2 alone" in line for line in found.lines)


@pytest.mark.parametrize(
    ("instructions", "extra", "words"),
    [
        ("AVX512", ["AMX", "VNNI"], "with AMX"),
        ("AVX512", [], "without VNNI"),
        ("DEFAULT", [], "DEFAULT"),
        ("", [], "not told"),
    ],
)
def test_a_cpu_has_a_class(instructions: str, extra: list[str], words: str) -> None:
    assert words in what_to_expect({"instructions": instructions, "extra": extra})


def test_faults_name_their_remedies(root: Path) -> None:
    (root / "config.json").write_text("[", encoding="utf-8")
    (root / "history.sqlite").write_bytes(b"no database at all" * 100)
    (root / "models" / "Stable-diffusion" / "a.safetensors").unlink()
    gone = str(root / "gone")
    (root / "model-folders.json").write_text(json.dumps({"Lora": [gone]}), encoding="utf-8")
    (root / "requirements.txt").write_text("alpha==9.0\n", encoding="utf-8")
    faults = look(root, device="cpu").faults
    for number, words in enumerate(
        (
            "1 packages are missing or have another version: alpha==9.0. Start python launch.py once.",
            "There is an NVIDIA GPU",
            f"{gone} is not there, and",
            "There is no checkpoint. Put one into",
            "config.json cannot be read",
            "history.sqlite cannot be read",
        )
    ):
        assert words in faults[number]
    assert len(faults) == 6


def test_a_folder_that_cannot_be_written_to(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**keywords: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert "cannot be written to: Permission denied" in look(root).faults[0]


def test_too_little_disk_and_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_DISK_BYTES", 1 << 62)
    monkeypatch.setattr(doctor, "MIN_MEMORY_BYTES", 1 << 62)
    monkeypatch.setattr(doctor, "memory_free_bytes", lambda: 1_000_000_000)
    disk, memory = look(root).faults
    assert "GB left. Free some" in disk and "start with --lowvram" in memory


def test_it_runs_before_any_set_up_and_without_packages(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("nothing may be installed")

    monkeypatch.setattr(launcher, "prepare", forbidden)
    monkeypatch.setattr(doctor, "Runner", lambda environ: lambda command: Outcome(1, "No module named 'torch'"))
    monkeypatch.setattr(doctor, "ROOT", root)
    for info in Environment(root / ".venv").site_packages[0].glob("torch-*"):
        (info / "RECORD").unlink()
    assert launcher.launch(root, ["doctor"], {}) == 1
    out = capsys.readouterr().out
    assert "not installed" in out and "PyTorch is not installed. Start python launch.py once" in out
    code = "import sys, modules.setup.doctor; print([m for m in ('torch', 'numpy', 'PIL') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-S", "-c", code], cwd=ROOT, text=True).strip() == "[]"


def test_limits_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2000000 kB\n", encoding="ascii")
    assert memory_free_bytes(tmp_path / "meminfo", tmp_path) == 2_048_000_000
    for name, text in (("memory.max", "1000"), ("memory.current", "900"), ("memory.stat", "inactive_file 50\n")):
        (tmp_path / name).write_text(text, encoding="ascii")
    assert memory_free_bytes(tmp_path / "meminfo", tmp_path) == 150


@pytest.mark.parametrize(
    ("cores", "environment", "words"),
    [
        (Cores(8, 4), {}, []),
        (Cores(8, 4, 0.5), {}, ["may use 0.5 of a core: one thread computes"]),
        (Cores(8, 4, 2.0), {}, ["may use 2 of 4 cores"]),
        (Cores(8, 4), {"OMP_NUM_THREADS": "lots"}, ["OMP_NUM_THREADS is 'lots', which is no number of threads"]),
        (Cores(8, 4), {"OMP_NUM_THREADS": "999"}, ["more than there are cores: 8 compute"]),
        (Cores(8, 4), {"OMP_NUM_THREADS": "1"}, ["OMP_NUM_THREADS has 1 of 4 cores compute"]),
        (Cores(8, 4, 0.5), {"OMP_NUM_THREADS": "0"}, ["0.5 of a core", "OMP_NUM_THREADS is '0'"]),
    ],
)
def test_why_few_cores_compute(cores: Cores, environment: dict[str, str], words: list[str]) -> None:
    found = slow_cores(cores, environment)
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found, strict=True))


def test_a_cpu_without_avx2_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (without,) = slow_instructions("DEFAULT", "x86_64", {})
    assert "This CPU has no AVX2" in without
    (switched,) = slow_instructions("DEFAULT", "x86_64", {"ATEN_CPU_CAPABILITY": "default"})
    assert "ATEN_CPU_CAPABILITY=default" in switched
    assert not slow_instructions("AVX2", "x86_64", {}) and not slow_instructions("DEFAULT", "aarch64", {})
    facts = {"version": TORCH_VERSION, "type": "cpu", "device": "the CPU", "instructions": "DEFAULT"}
    paths = resolve_paths(parse_flags([]), root)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "nvidia_smi", lambda: None)
    found = examine(paths, Environment(root / ".venv"), lambda command: Outcome(0, json.dumps(facts)))
    assert found.faults == [] and any("AVX2" in text for text in found.slow)


def test_glibc_that_is_too_old_for_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert old_glibc((2, 28)) is None and old_glibc((2, 36)) is None
    old, other = old_glibc((2, 17)), old_glibc(None)
    assert old is not None and "need glibc 2.28 or newer; this system has glibc 2.17" in old and "Dockerfile" in old
    assert other is not None and "musl" in other
    monkeypatch.setattr("sys.platform", "darwin")
    assert old_glibc(None) is None
