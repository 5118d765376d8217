"""Which images a step sees, in which crop and with which words: a function of the seed and the step alone, so that a
training that was cut off goes on with the same."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from lib_training.config import DataConfig
from lib_training.failures import TrainingError
from lib_training.folders import Sample
from lib_training.texts import Caption

Size = tuple[int, int]
CROPS = 4  # places of a random crop, so that all can be encoded ahead
MIN_FOR_VALIDATION = 5


@dataclass(frozen=True)
class View:
    """A sample as it is shown: scaled to cover its bucket, cut at `crop` (0 to 1 along what is too much), mirrored."""

    sample: Sample
    bucket: Size
    crop: float = 0.5
    is_flipped: bool = False


@dataclass(frozen=True)
class Item:
    """One image of a batch."""

    view: View
    caption: Caption


@dataclass(frozen=True)
class Dataset:
    """Samples in buckets. `held_out` are never trained on."""

    samples: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    options: DataConfig
    resolution: int
    step_px: int
    batch: int
    seed: int

    @cached_property
    def buckets(self) -> tuple[Size, ...]:
        """Width and height, multiples of `step_px`, of no more pixels than a square of `resolution`."""
        side = self.resolution // self.step_px * self.step_px
        if not self.options.buckets:
            return ((side, side),)
        limit = self.resolution**2
        found = {(side, side)}
        for width in range(self.step_px, int(self.resolution * self.options.max_aspect) + 1, self.step_px):
            height = limit // width // self.step_px * self.step_px
            if height and max(width, height) / min(width, height) <= self.options.max_aspect:
                found |= {(width, height), (height, width)}
        return tuple(sorted(found))

    def bucket_of(self, sample: Sample) -> Size:
        """The bucket of the nearest aspect; of equal ones the largest."""
        aspect = math.log(sample.size_px[0] / sample.size_px[1])
        return min(
            self.buckets, key=lambda size: (round(abs(math.log(size[0] / size[1]) - aspect), 6), -size[0] * size[1])
        )

    def views(self, sample: Sample) -> tuple[View, ...]:
        """All that a sample may be shown as."""
        bucket = self.bucket_of(sample)
        crops = [index / (CROPS - 1) for index in range(CROPS)] if self.options.crop == "random" else [0.5]
        flips = (False, True) if self.options.flip else (False,)
        return tuple(View(sample, bucket, crop, flip) for crop in crops for flip in flips)

    def captions(self, sample: Sample) -> tuple[str, ...]:
        """All texts that a sample may be shown with."""
        wordings = sample.captions or ("",)
        varies = self.options.shuffle_tags or self.options.tag_dropout > 0
        count = self.options.caption_variants if varies else 1
        return tuple(dict.fromkeys(self._worded(text, sample, number) for text in wordings for number in range(count)))

    def all_captions(self) -> list[Caption]:
        """Everything that training and validation show."""
        found: dict[Caption, None] = {}
        for sample in (*self.samples, *self.held_out):
            bucket = self.bucket_of(sample)
            found.update({Caption(text, bucket): None for text in self.captions(sample)})
            if self.options.caption_dropout:
                found[Caption("", bucket, True)] = None
        return list(found)

    def all_views(self) -> list[View]:
        """Everything that training and validation show."""
        held = [View(sample, self.bucket_of(sample)) for sample in self.held_out]
        return [*(view for sample in self.samples for view in self.views(sample)), *held]

    def _worded(self, text: str, sample: Sample, number: int) -> str:
        """A caption with its tags in the order of a variant; the first is as it is written."""
        options = self.options
        if number:
            tags = [tag.strip() for tag in text.split(",") if tag.strip()]
            fixed, rest = tags[: options.keep_tokens], tags[options.keep_tokens :]
            random = Random(f"{self.seed}/{sample.path.name}/{text}/{number}")
            rest = [tag for tag in rest if random.random() >= options.tag_dropout]
            if options.shuffle_tags:
                random.shuffle(rest)
            text = ", ".join([*fixed, *rest])
        return f"{options.prefix}{text}{options.suffix}".strip()

    # -- order ---------------------------------------------------------------------------------------------------------

    def epoch(self, number: int) -> list[tuple[Sample, ...]]:
        """The batches of an epoch, each of one bucket. A bucket's last batch may be smaller."""
        random = Random(f"{self.seed}/epoch {number}")
        by_bucket: dict[Size, list[Sample]] = {}
        for sample in self.samples:
            wanted = sample.repeats * sample.weight
            count = int(wanted) + (random.random() < wanted % 1)
            by_bucket.setdefault(self.bucket_of(sample), []).extend([sample] * count)
        batches: list[tuple[Sample, ...]] = []
        for members in by_bucket.values():
            random.shuffle(members)
            batches.extend(tuple(members[start : start + self.batch]) for start in range(0, len(members), self.batch))
        random.shuffle(batches)
        return batches

    @cached_property
    def epoch_length(self) -> int:
        """Batches of the first epoch; fractions of weights make others differ."""
        return len(self.epoch(0))

    def batches_from(self, position: tuple[int, int]) -> Iterable[tuple[tuple[int, int], tuple[Sample, ...]]]:
        """The batches from `position` (epoch, batch in it) on, each with the position behind it; without end."""
        epoch, start = position
        while True:
            batches = self.epoch(epoch)
            if not batches and start == 0 and epoch > position[0] + 1000:
                raise TrainingError("The weights of all folders are so small that no image comes up. Raise them.")
            for index in range(start, len(batches)):
                yield (epoch, index + 1), batches[index]
            epoch, start = epoch + 1, 0

    def items(self, samples: Sequence[Sample], step: str) -> list[Item]:
        """How these samples are shown in a step."""
        found = []
        for index, sample in enumerate(samples):
            random = Random(f"{self.seed}/{step}/{index}")
            view = random.choice(self.views(sample))
            text = random.choice(self.captions(sample))
            is_dropped = random.random() < self.options.caption_dropout
            found.append(Item(view, Caption("" if is_dropped else text, view.bucket, is_dropped)))
        return found

    def validation_items(self) -> list[Item]:
        """The held-out images, always alike."""
        views = [View(sample, self.bucket_of(sample)) for sample in self.held_out]
        return [Item(view, Caption(self.captions(view.sample)[0], view.bucket)) for view in views]


def make_dataset(
    samples: Sequence[Sample], options: DataConfig, resolution: int, step_px: int, batch: int, seed: int
) -> Dataset:
    """Hold out the share for validation, the same images each time; none of a handful."""
    if resolution < step_px:
        raise TrainingError(f"{resolution} px is too small for this model: its images are multiples of {step_px} px.")
    trained = [sample for sample in samples if not sample.is_regularization]
    count = round(len(trained) * options.validation)
    if options.validation and len(trained) >= MIN_FOR_VALIDATION:
        count = max(count, 1)
    if len(trained) < MIN_FOR_VALIDATION:
        count = 0
    by_name = sorted(trained, key=lambda sample: hashlib.sha256(sample.path.name.encode()).digest())
    held = {sample.path for sample in by_name[:count]}
    kept = tuple(sample for sample in samples if sample.path not in held)
    held_out = tuple(replace(sample, repeats=1, weight=1.0) for sample in by_name[:count])
    return Dataset(kept, held_out, options, resolution, step_px, batch, seed)
