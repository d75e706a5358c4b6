"""Prompts and a tokenizer of our own: a byte-pair encoding trained on made-up words, nothing from a hub."""

import random
from pathlib import Path

WORDS = 4000


def words(seed: int = 1) -> list[str]:
    """Return made-up words: pronounceable, so that byte pairs repeat as in a language."""
    rng = random.Random(seed)
    part = [c + v for c in "bcdfghklmnprstvwz" for v in ("a", "e", "i", "o", "u", "ar", "en", "is", "on")]
    return ["".join(rng.choices(part, k=rng.randint(1, 4))) for _ in range(WORDS)]


def prompt(tokens: int, seed: int) -> str:
    """Return a prompt of roughly `tokens` tokens."""
    rng = random.Random(seed)
    return " ".join(rng.choices(words(), k=max(1, int(tokens / 1.25))))


def tokenizer(cache: Path):
    """Return the byte-pair tokenizer (Hugging Face `tokenizers`), trained once and kept in `cache`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    if cache.exists():
        return Tokenizer.from_file(str(cache))
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=6000, show_progress=False)
    made.train_from_iterator((prompt(500, seed) for seed in range(200)), trainer)
    made.save(str(cache))
    return made
