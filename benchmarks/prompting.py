"""How long the prompt takes before any text is encoded: parsing and chunking, and a hit in the conditioning cache.

    python -m benchmarks.prompting

Prints a table and writes `benchmarks/results/prompting.json`. Times are the process's own, in milliseconds, the best
and the median of many runs: the best is what the code takes, the median also what else filled the caches.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from modules.prompting.cache import ConditioningCache, ResultIdentity
from modules.prompting.chunks import chunk_prompt
from modules.prompting.composition import split_composition
from modules.prompting.schedule import parse_schedule
from modules.prompting.tokens import ClipTokenizer

RESULTS = Path(__file__).parent / "results" / "prompting.json"
STEPS = 50
LIMITS_MS = {"parse and chunk": 5.0, "cache hit": 0.2}
NOUNS = ["cat", "chair", "lamp", "river", "castle", "forest", "cloud", "mirror", "garden", "bridge"]


def make_prompt(tokenizer: ClipTokenizer, tokens: int = 300, edits: int = 10) -> str:
    """A prompt of weighted phrases with edits spread over the steps, `tokens` long at its first step."""
    parts = [f"[{noun}:old {noun}:{(index + 1) * STEPS // (edits + 1)}]" for index, noun in enumerate(NOUNS[:edits])]
    while True:
        first = parse_schedule(", ".join(parts), STEPS)[0].text
        if len(tokenizer.encode(first)) >= tokens:
            return ", ".join(parts)
        noun = NOUNS[len(parts) % len(NOUNS)]
        parts.append(f"(detailed {noun}:1.{len(parts) % 5})" if len(parts) % 3 == 0 else f"a painted {noun}")


def parse_and_chunk(tokenizer: ClipTokenizer, prompt: str) -> int:
    """The number of chunks in all texts that the prompt stands for over the steps."""
    texts = {entry.text for part in split_composition(prompt) for entry in parse_schedule(part.text, STEPS)}
    return sum(len(chunk_prompt(tokenizer, text)) for text in texts)


@dataclass(frozen=True)
class Timing:
    """The process's time for one call, in milliseconds."""

    best: float
    median: float


def measure(call: Callable[[], object], runs: int = 300) -> Timing:
    """Time a call many times, after a warm-up."""
    call()
    durations = []
    for _ in range(runs):
        start = time.process_time()
        call()
        durations.append((time.process_time() - start) * 1000)
    return Timing(round(min(durations), 4), round(statistics.median(durations), 4))


def main() -> None:
    """Measure, print, write."""
    tokenizer = ClipTokenizer.standard()
    prompt = make_prompt(tokenizer)

    def identity() -> ResultIdentity:
        return ResultIdentity(checkpoint_hash="0" * 64, plan_fingerprint="fp32", prompts=(prompt,), steps=STEPS)

    cache: ConditioningCache[str] = ConditioningCache()
    cache.put(identity(), "encoded")
    start = time.process_time()
    fresh = ClipTokenizer.standard()
    load_ms = (time.process_time() - start) * 1000
    parse_schedule("[a:b:1]", STEPS)  # builds the grammar, once per process
    start = time.process_time()
    parse_and_chunk(fresh, prompt)  # nothing remembered yet
    first_ms = (time.process_time() - start) * 1000
    measured = {
        "parse and chunk": measure(lambda: parse_and_chunk(tokenizer, prompt)),
        "cache hit": measure(lambda: cache.get(identity())),
    }
    print(f"{'ms':20}{'best':>10}{'median':>10}{'limit':>10}")
    for name, timing in measured.items():
        print(f"{name:20}{timing.best:10.4f}{timing.median:10.4f}{LIMITS_MS[name]:10.1f}")
    print(f"{'first call':20}{first_ms:10.1f}\n{'load the vocabulary':20}{load_ms:10.1f}")
    report = {
        "prompt": {"tokens": 300, "edits": 10, "steps": STEPS},
        "measured_ms": {name: asdict(timing) for name, timing in measured.items()},
        "limit_ms": LIMITS_MS,
        "first_call_ms": round(first_ms, 1),
        "load_vocabulary_ms": round(load_ms, 1),
        "python": platform.python_version(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
