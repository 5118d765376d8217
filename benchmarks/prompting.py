"""How long the prompt takes before any text is encoded: parsing and chunking, and a hit in the conditioning cache.

    python -m benchmarks.prompting

Prints a table and writes `benchmarks/results/prompting.json`. Times are the median of many runs, in milliseconds.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from modules.prompting.cache import ConditioningCache, ResultIdentity
from modules.prompting.chunks import chunk_prompt
from modules.prompting.composition import split_composition
from modules.prompting.schedule import parse_schedule
from modules.prompting.tokens import ClipTokenizer

RESULTS = Path(__file__).parent / "results" / "prompting.json"
STEPS = 50
LIMITS_MS = {"parse and chunk": 5.0, "cache hit": 0.2}
NOUNS = "cat chair lamp river castle forest cloud mirror garden bridge".split()


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


def median_ms(call: Callable[[], object], runs: int = 200) -> float:
    """Median wall time of one call, after a warm-up."""
    call()
    durations = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations) * 1000


def main() -> None:
    """Measure, print, write."""
    tokenizer = ClipTokenizer.from_package()
    prompt = make_prompt(tokenizer)

    def identity() -> ResultIdentity:
        return ResultIdentity(checkpoint_hash="0" * 64, plan_fingerprint="fp32", prompts=(prompt,), steps=STEPS)

    cache: ConditioningCache[str] = ConditioningCache()
    cache.put(identity(), "encoded")
    start = time.perf_counter()
    ClipTokenizer.from_package()
    load_ms = (time.perf_counter() - start) * 1000
    measured = {
        "parse and chunk": median_ms(lambda: parse_and_chunk(tokenizer, prompt)),
        "cache hit": median_ms(lambda: cache.get(identity())),
    }
    print(f"{'':20}{'ms':>10}{'limit':>10}")
    for name, value in measured.items():
        print(f"{name:20}{value:10.4f}{LIMITS_MS[name]:10.1f}")
    print(f"{'load the vocabulary':20}{load_ms:10.1f}")
    report = {
        "prompt": {"tokens": 300, "edits": 10, "steps": STEPS},
        "median_ms": {name: round(value, 4) for name, value in measured.items()},
        "limit_ms": LIMITS_MS,
        "load_vocabulary_ms": round(load_ms, 1),
        "python": platform.python_version(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
