"""Outputs of the model on disk, so that an interrupted pass continues where it was.

A sampler is begun again from its first step, and each call of the model that was recorded is answered from the file.
That costs the sampler's own arithmetic and makes every sampler continue exactly, whatever it keeps between steps: noise
comes from seeds, and hooks, masks and prompt schedules around the model run as they did. An answer is used only where
all that goes into the model is equal to the bit; from the first difference on, the model is called.

The file is a header with the identity of the pass, then frames: sizes and digest, a line of JSON (shape, dtype, digest
of the inputs), and the tensor's bytes. A frame that does not fit its digest, as a kill leaves it, ends the recording.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from modules.models.families.denoiser_context import DenoiserContext, Extra
from modules.models.files.catalogue import CheckpointInfo
from modules.processing.pipeline.guidance import GuidedDenoiser
from modules.processing.record.recordings import SUFFIX, RunRecording
from modules.processing.request.model_use import ConditionedDenoise
from modules.processing.request.request import GenerationRequest, request_to_json
from modules.system.atomic_files import sync_folder
from modules.system.bounded import read_json
from modules.version import PROGRAM_VERSION

log = logging.getLogger(__name__)

MAGIC = b"FWSTEPS1"
DIGEST_BYTES = 16
FRAME = struct.Struct(f"<IQ{DIGEST_BYTES}s")  # bytes of the JSON, bytes of the tensor, digest of both
MAX_WORDS_BYTES = 4096
TIMED_CALLS = 3  # model calls after which it is known how long the pass takes
MAX_SHARE = 0.05  # of the time may go into writing
MIB = 2**20


@dataclass(frozen=True)
class RecordingLimits:
    """`after_s`: a pass that takes less is not recorded. `every_s`: how often what is new is written. `total_bytes`: of
    all recordings together; 0: nothing is recorded."""

    after_s: float
    every_s: float
    total_bytes: int

    @classmethod
    def of(cls, request: GenerationRequest) -> RecordingLimits:
        """Read the limits from the settings of a job."""
        system = request.settings.system
        return cls(system.queue_resume_after, system.queue_resume_every, system.queue_resume_megabytes * MIB)


def pass_identity(
    request: GenerationRequest, place: Sequence[object], models: Sequence[CheckpointInfo], facts: Sequence[object]
) -> bytes:
    """A digest of everything that the model's answers depend on besides its inputs: the request with the settings that
    affect images, which files the models are, and `facts` (precision, adapters). `place` tells batch and pass."""
    asked = {**request_to_json(request, lambda image: image.sha256), "settings": request.settings.of_images()}
    files = [(str(info.path), info.size_bytes, info.mtime_ns) for info in models]
    whole = [PROGRAM_VERSION, torch.__version__, asked, list(place), files, [repr(fact) for fact in facts]]
    text = json.dumps(whole, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True)
class BatchRecorder:
    """Recordings of the passes of one run of a job; `run` None: nothing is recorded."""

    request: GenerationRequest
    run: RunRecording | None = None

    def begin(self, batch: int, name: str, identity: Callable[[], bytes], calls: int | None) -> PassRecording:
        """The recording of one pass, with what an earlier try has left of it. `calls`: how many calls of the model it
        makes, None where that is not known."""
        limits = RecordingLimits.of(self.request)
        if self.run is None or limits.total_bytes <= 0:
            return PassRecording(None, b"", limits, calls)
        return PassRecording(self.run.path(batch, name), identity(), limits, calls, self.run.all_of)

    def forget_batch(self, batch: int) -> None:
        """Its images are finished."""
        if self.run is not None:
            self.run.forget_batch(batch)


class PassRecording:
    """The recording of one pass of sampling. A context manager: what is recorded is on disk when it ends, however it
    ends."""

    def __init__(
        self,
        path: Path | None,
        identity: bytes,
        limits: RecordingLimits,
        calls: int | None,
        all_of: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._identity = identity
        self._limits = limits
        self._calls = calls
        self._all_of = all_of
        self._clock = clock
        self._reader = _Reader.of(path, identity) if path is not None else None
        self._is_on = path is not None
        self._is_long = limits.after_s <= 0 or self._reader is not None  # whether the pass is worth recording
        self._file: BinaryIO | None = None
        self._frames: list[bytes] = []
        self._others_bytes = 0  # of other recordings
        self._written_bytes = 0
        self._begun = 0  # calls of the model itself
        self._first_at = self._second_at = 0.0
        self._due_at = clock() + limits.every_s
        self.replayed = 0

    def __enter__(self) -> PassRecording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_on and self._is_long and self._reader is None:
            self._write()
        self._close()

    @property
    def is_replaying(self) -> bool:
        """Whether the model has not been called yet, because its answers are known."""
        return self._reader is not None

    def around(self, denoiser: GuidedDenoiser) -> GuidedDenoiser:
        """A denoiser whose model's answers are recorded, and taken from what is recorded."""
        if not self._is_on:
            return denoiser
        inner = denoiser.denoise

        def denoise(x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
            return self._answer(inner, x, sigma, context)

        return replace(denoiser, denoise=denoise)

    def counting(self, before_model_call: Callable[[], None]) -> Callable[[], None]:
        """`before_model_call`, which is called before each step, however many calls of the model that is."""

        def counted() -> None:
            before_model_call()
            if self._is_on and self._reader is None:
                self._evaluation()

        return counted

    def _answer(self, denoise: ConditionedDenoise, x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
        if not self._is_on:
            return denoise(x, sigma, context)
        asked = _inputs_digest(x, sigma, context)
        if self._reader is not None:
            found = self._reader.answer(asked)
            if found is not None:
                self.replayed += 1
                return found.to(x.device)
            self._go_on()
        output = denoise(x, sigma, context)
        if self._is_on:
            self._take(asked, output)
        return output

    def _evaluation(self) -> None:
        """Another model call begins: decide whether the pass is long enough, as soon as that can be said. The first one
        does not count, because it may wait for weights."""
        now = self._clock()
        self._begun += 1
        if self._begun == 1:
            self._first_at = now
        elif self._begun == 2:
            self._second_at = now
        if self._is_long:
            return
        self._is_long = now - self._first_at >= self._limits.after_s
        if not self._is_long and self._begun > TIMED_CALLS and self._calls is not None:
            per_call = (now - self._second_at) / (self._begun - 2)
            self._is_long = per_call * self._calls >= self._limits.after_s
            if not self._is_long:
                self._give_up()

    def _take(self, asked: str, output: Tensor) -> None:
        self._frames.append(_frame(asked, output))
        if sum(map(len, self._frames)) > self._limits.total_bytes:
            self._give_up()
        elif self._is_long and self._clock() >= self._due_at:
            self._write()

    def _go_on(self) -> None:
        """Record from here on, after the end of what was recorded."""
        reader, self._reader = self._reader, None
        assert reader is not None and self._path is not None
        try:
            self._file = reader.for_writing()
            self._written_bytes = reader.good_bytes
            self._others_bytes = self._size_of_others()
        except OSError as error:
            self._failed(error)
        log.info("%d calls of the model were recorded by an earlier try; the image goes on from there.", self.replayed)

    def _write(self) -> None:
        if not self._frames:
            return
        assert self._path is not None
        began = self._clock()
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._others_bytes = self._size_of_others()
                self._file = self._path.open("wb")
                self._written_bytes = self._file.write(MAGIC + self._identity)
                sync_folder(self._path.parent)
            new_bytes = sum(map(len, self._frames))
            if self._others_bytes + self._written_bytes + new_bytes > self._limits.total_bytes:
                log.info("The steps of this image are no longer recorded: the limit queue_resume_megabytes is reached.")
                self._give_up()
                return
            for frame in self._frames:
                self._file.write(frame)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._failed(error)
            return
        self._written_bytes += new_bytes
        self._frames.clear()
        now = self._clock()
        self._due_at = now + max(self._limits.every_s, (now - began) / MAX_SHARE)

    def _failed(self, error: OSError) -> None:
        log.warning(
            "The steps of this image cannot be recorded (%s). It is made all the same; after a crash it starts again.",
            error,
        )
        self._give_up()

    def _give_up(self) -> None:
        """Record nothing more of this pass, and leave no file."""
        self._is_on = False
        self._frames.clear()
        self._close()
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s cannot be deleted: %s", self._path, error)

    def _size_of_others(self) -> int:
        total = 0
        for path in self._all_of.rglob(f"*{SUFFIX}") if self._all_of is not None else ():
            try:
                total += path.stat().st_size if path != self._path else 0
            except FileNotFoundError:  # another job has just ended
                continue
        return total

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:  # a full disk says so once more
                log.info("The recorded steps could not be closed: %s", error)


class _Reader:
    """A reader of what an earlier try has recorded of a pass, frame by frame."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self.good_bytes = file.tell()  # up to the last frame that was used

    @classmethod
    def of(cls, path: Path, identity: bytes) -> _Reader | None:
        """None where there is nothing, or something of another pass."""
        try:
            file = path.open("rb")
            if file.read(len(MAGIC) + len(identity)) == MAGIC + identity:
                return cls(path, file)
            file.close()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("The recorded steps in %s cannot be read: %s", path, error)
        return None

    def answer(self, asked: str) -> Tensor | None:
        """Return the model's next recorded output, if its inputs were exactly these."""
        try:
            found = self._next()
            if found is None or found[0]["asked"] != asked:
                return None
            output = _tensor(*found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            log.info("The recorded steps end with a frame that cannot be read: %s", error)
            return None
        self.good_bytes = self._file.tell()
        return output

    def _next(self) -> tuple[dict[str, Any], bytearray] | None:
        head = self._file.read(FRAME.size)
        if len(head) < FRAME.size:
            return None
        words_bytes, data_bytes, digest = FRAME.unpack(head)
        if words_bytes > MAX_WORDS_BYTES or self._file.tell() + words_bytes + data_bytes > self._size:
            return None
        words = self._file.read(words_bytes)
        data = bytearray(self._file.read(data_bytes))
        if _digest(words, data) != digest:
            return None
        return read_json(words, constant=float), data

    def for_writing(self) -> BinaryIO:
        """The file, cut after the last frame that was used. Raises OSError."""
        self._file.close()
        file = self._path.open("r+b")
        file.truncate(self.good_bytes)
        file.seek(self.good_bytes)
        return file

    def close(self) -> None:
        self._file.close()


def _frame(asked: str, output: Tensor) -> bytes:
    is_channels_last = not output.is_contiguous() and output.is_contiguous(memory_format=torch.channels_last)
    words = {
        "asked": asked,
        "shape": list(output.shape),
        "dtype": str(output.dtype).removeprefix("torch."),
        "channels_last": is_channels_last,
    }
    text, data = json.dumps(words).encode(), _bytes_of(output)
    return FRAME.pack(len(text), len(data), _digest(text, data)) + text + data


def _tensor(words: dict[str, Any], data: bytearray) -> Tensor:
    dtype = getattr(torch, words["dtype"])
    found = torch.frombuffer(data, dtype=dtype).reshape(words["shape"])
    # The layout too: sums over a tensor depend on the order in which its numbers lie.
    return found.contiguous(memory_format=torch.channels_last) if words["channels_last"] else found


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().to("cpu").contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _digest(*parts: bytes | bytearray) -> bytes:
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def _inputs_digest(x: Tensor, sigma: Tensor, context: DenoiserContext) -> str:
    """Return the digest of all that goes into the model."""
    parts: dict[str, Extra | None] = {"x": x, "sigma": sigma, "crossattn": context.crossattn}
    parts |= {"vector": context.vector, "image": context.image, **context.extra}
    if context.mask is not None:
        parts["mask"] = context.mask
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, part in parts.items():
        for tensor in part if isinstance(part, tuple) else (part,):
            hashed.update(name.encode())
            if tensor is not None:
                hashed.update(f" {tuple(tensor.shape)} {tensor.dtype}\n".encode())
                hashed.update(_bytes_of(tensor))
    return hashed.hexdigest()
