"""Reading a file that a user named: no device, and no more than a sane size."""

from pathlib import Path

from moebench.errors import UsageError

MIB = 2**20


def read_user_file(path: Path, at_most_bytes: int, what: str) -> bytes:
    """The bytes of a file. Raises UsageError, naming the file and what to give instead."""
    try:
        if path.is_dir():
            raise UsageError(f"{path}: a folder, not {what}. Give {what}.")
        if path.is_char_device() or path.is_block_device():
            raise UsageError(f"{path}: a device, not {what}. Give {what}.")
        size = path.stat().st_size
        if size > at_most_bytes:
            raise UsageError(f"{path}: {size / MIB:.0f} MiB is more than {what} can have ({at_most_bytes // MIB} MiB).")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: not there. Give {what}.") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}. Give {what}.") from error
