"""Text to token files that are mapped into memory, made once and cached. Needs no torch."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moebench.arms.config import Preset
from moebench.arms.corpus import Corpus, Document, load_corpus
from moebench.errors import UsageError

FORMAT = 1
ENCODED_AT_ONCE_BYTES = 2**23

Tokens = NDArray[np.uint32]


class TextFacts(BaseModel):
    """What was trained and evaluated on, as the report states it."""

    model_config = ConfigDict(extra="forbid")
    source: str
    sha256: str = Field(description="of all documents and of which are held out")
    bytes: int
    documents: int
    heldout_documents: int
    split: str
    train_tokens: int
    heldout_tokens: int
    tokenizer: str
    tokenizer_sha256: str
    tokenizer_vocab: int
    occurring_share: float = Field(description="of the model's vocabulary: tokens that occur in the training text")


class Text:
    """An encoded corpus in a folder: `facts`, and the token files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = TextFacts.model_validate_json((folder / "text.json").read_bytes())

    def train(self) -> Tokens:
        return self._tokens("train", self.facts.train_tokens)

    def heldout(self) -> Tokens:
        return self._tokens("heldout", self.facts.heldout_tokens)

    def ranks_by_frequency(self, vocab: int) -> NDArray[np.int64]:
        """Of each token id, its place when the most frequent in the training text comes first; ties by id."""
        counts = np.bincount(self.train(), minlength=vocab)
        ranks = np.empty(vocab, np.int64)
        ranks[np.argsort(-counts, kind="stable")] = np.arange(vocab)
        return ranks

    def _tokens(self, name: str, expected: int) -> Tokens:
        tokens: Tokens = np.memmap(self.folder / f"{name}.bin", dtype="<u4", mode="r")
        if len(tokens) != expected:
            raise ValueError(f"{len(tokens)} tokens instead of {expected}")
        return tokens


def prepare(
    preset: Preset, data: Sequence[Path] | None, tokenizer: Path | None, tell: Callable[[str], None], cache: Path
) -> Text:
    """The encoded text of a run: from the cache, or made and put there; `tell` hears what takes long.

    Raises UsageError where the tokenizer's vocabulary does not fit into the model's, or either part of the text is
    shorter than one sequence.
    """
    corpus = load_corpus(data, preset.data)
    tokenizer_sha256 = None if tokenizer is None else hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    key = hashlib.sha256(f"{FORMAT} {corpus.sha256} {tokenizer_sha256} {preset.model.vocab}".encode()).hexdigest()[:24]
    folder = cache / key
    try:
        text = Text(folder)
        text.train(), text.heldout()
    except (OSError, ValueError, ValidationError):
        shutil.rmtree(folder, ignore_errors=True)
        _make(corpus, preset, tokenizer, tell, folder)
        text = Text(folder)
    for name, tokens in (("training", text.facts.train_tokens), ("held-out", text.facts.heldout_tokens)):
        if tokens < preset.model.seq + 1:
            raise UsageError(
                f"the {name} text has {tokens} tokens, and a sequence needs {preset.model.seq + 1}. "
                "Give more text with --data, or a shorter seq."
            )
    return text


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moebench" / "arms"


def _make(corpus: Corpus, preset: Preset, given: Path | None, tell: Callable[[str], None], folder: Path) -> None:
    """Build in a folder of its own, and move it into place at once."""
    from moebench.arms.tokenizer import load_tokenizer, train_tokenizer

    vocab = preset.model.vocab
    if given is None:
        tell(f"training a tokenizer on {corpus.size_bytes / 1e6:.1f} MB ({corpus.source})")
        tokenizer = train_tokenizer((document.text() for document in corpus.train), vocab)
    else:
        tokenizer = load_tokenizer(given)
    size = tokenizer.get_vocab_size()
    if size > vocab:
        raise UsageError(
            f"--tokenizer {given}: its vocabulary has {size} tokens and the model's {vocab}. "
            f"Give a smaller tokenizer, or a model with vocab = {size} or more."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        tell(f"encoding {corpus.size_bytes / 1e6:.1f} MB")
        tokenizer.save(str(made / "tokenizer.json"))
        counts = {
            name: _encode(tokenizer, getattr(corpus, name), made / f"{name}.bin") for name in ("train", "heldout")
        }
        occurring = len(np.unique(np.memmap(made / "train.bin", "<u4", "r"))) if counts["train"] else 0
        facts = TextFacts(
            source=corpus.source,
            sha256=corpus.sha256,
            bytes=corpus.size_bytes,
            documents=len(corpus.train) + len(corpus.heldout),
            heldout_documents=len(corpus.heldout),
            split=f"held out: documents whose SHA-256, as a fraction, is below {preset.data.heldout_share:g}",
            train_tokens=counts["train"],
            heldout_tokens=counts["heldout"],
            tokenizer="byte-level BPE trained on the training text" if given is None else given.name,
            tokenizer_sha256=hashlib.sha256((made / "tokenizer.json").read_bytes()).hexdigest(),
            tokenizer_vocab=size,
            occurring_share=round(occurring / vocab, 4),
        )
        (made / "text.json").write_text(facts.model_dump_json(indent=1), encoding="utf-8")
        with contextlib.suppress(OSError):  # another run has just put the same text there
            made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _encode(tokenizer: object, documents: Sequence[Document], path: Path) -> int:
    """Write the token ids of all documents, an end token after each; their number."""
    from tokenizers import Tokenizer

    from moebench.arms.tokenizer import end_token

    encoder = cast(Tokenizer, tokenizer)
    end = end_token(encoder)
    written = 0
    with path.open("wb") as file:
        for texts in _batches(documents):
            for encoding in encoder.encode_batch_fast(texts, add_special_tokens=False):
                ids = np.array(encoding.ids if end is None else [*encoding.ids, end], dtype="<u4")
                file.write(ids.tobytes())
                written += len(ids)
    return written


def _batches(documents: Sequence[Document]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document.text())
        size += document.end - document.start
        if size >= ENCODED_AT_ONCE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
