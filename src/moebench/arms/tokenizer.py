"""The byte-pair tokenizer: a given one, or one trained on the training text. Needs no torch."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from moebench.errors import UsageError
from moebench.inert import quoted
from moebench.reading import MIB, read_user_file

END = "<|end|>"
ENDS = (END, "<|endoftext|>")
"""Tokens that stand between documents, where a tokenizer has one of them."""

LEARNT_FROM_BYTES = 64 * MIB
"""Of training text, at most."""


def train_tokenizer(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Byte-level BPE with at most `vocab` tokens; pairs that occur twice merge. Equal texts give equal ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first(texts, LEARNT_FROM_BYTES), trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json of the `tokenizers` library. Raises UsageError for anything else."""
    text = read_user_file(path, 256 * MIB, "a tokenizer.json").decode("utf-8", errors="replace")
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself
        raise UsageError(f"{path}: not a tokenizer.json of the tokenizers library: {quoted(error)}.") from error


def end_token(tokenizer: Tokenizer) -> int | None:
    return next((found for name in ENDS if (found := tokenizer.token_to_id(name)) is not None), None)


def _first(texts: Iterable[str], at_most: int) -> Iterable[str]:
    left = at_most
    for text in texts:
        if left <= 0:
            return
        left -= len(text)
        yield text
