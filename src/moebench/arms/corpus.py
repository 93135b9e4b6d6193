"""Text: which documents there are, and which are held out. Needs no torch."""

import hashlib
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moebench.arms.config import DataConfig
from moebench.errors import UsageError

PIECE_BYTES = 2**20
"""Text is read and encoded in pieces of about this size, cut at ends of lines."""

FEW_FILES = 20
"""Fewer files than this are held out by pieces, not as a whole."""

_NOT_SOURCES = ("site-packages", "dist-packages", "__pycache__")


@dataclass(frozen=True)
class Document:
    """Bytes `start` to `end` of a file, and their SHA-256."""

    path: Path
    start: int
    end: int
    sha256: bytes

    def text(self) -> str:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Corpus:
    """Documents to train on, and held-out ones."""

    source: str
    train: Sequence[Document]
    heldout: Sequence[Document]

    @property
    def sha256(self) -> str:
        """Of all documents' hashes, in order, with what is held out."""
        digest = hashlib.sha256()
        for documents in (self.train, self.heldout):
            for document in documents:
                digest.update(document.sha256)
            digest.update(b"|")
        return digest.hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(document.end - document.start for document in (*self.train, *self.heldout))


def standard_library() -> tuple[str, list[Path]]:
    """A name for it, and the sources of the running Python's standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if not set(path.parts) & set(_NOT_SOURCES)]
    return f"standard library of Python {platform.python_version()}", paths


def load_corpus(paths: Sequence[Path] | None, config: DataConfig) -> Corpus:
    """The documents of some files, or of the standard library, in the order of their hashes, up to `corpus_bytes`.

    A document is held out if its hash, as a fraction, is below `heldout_share`, and at least one is: the split depends
    on contents alone. Raises UsageError where a file cannot be read or there are fewer than two documents.
    """
    source, files = standard_library() if paths is None else (f"{len(paths)} files", list(paths))
    documents = [document for path in files for document in _documents(path, whole=len(files) >= FEW_FILES)]
    documents.sort(key=lambda document: (document.sha256[8:], str(document.path), document.start))
    taken, size = [], 0
    for document in documents:
        if size < config.corpus_bytes:
            taken.append(document)
            size += document.end - document.start
    if len(taken) < 2:
        raise UsageError(
            f"{source}: {size} bytes are too little text to train on one part and hold out another. "
            "Give more, or larger, files with --data."
        )
    lowest = min(document.sha256[:8] for document in taken)
    limit = max(int(config.heldout_share * 2**64).to_bytes(8), lowest)
    return Corpus(
        source,
        [document for document in taken if document.sha256[:8] > limit],
        [document for document in taken if document.sha256[:8] <= limit],
    )


def _documents(path: Path, *, whole: bool) -> Iterator[Document]:
    try:
        if not path.is_file():
            raise UsageError(
                f"--data {path}: {'not a regular file' if path.exists() else 'not there'}. Name text files."
            )
        with path.open("rb") as file:
            start, digest = 0, hashlib.sha256()
            while piece := file.read(PIECE_BYTES if whole else PIECE_BYTES // 16) + file.readline():
                digest.update(piece)
                if not whole:
                    yield Document(path, start, start + len(piece), digest.digest())
                    start, digest = start + len(piece), hashlib.sha256()
            if whole and file.tell():
                yield Document(path, 0, file.tell(), digest.digest())
    except OSError as error:
        raise UsageError(f"--data {path}: cannot be read: {error.strerror}. Name text files.") from error
