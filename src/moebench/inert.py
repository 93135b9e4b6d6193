"""Text from anywhere, made fit to be shown: a terminal finds nothing in it to obey."""

import unicodedata


def clean(text: object) -> str:
    """One printable line: control, format and surrogate characters become visible escapes, so none acts."""
    return "".join(_visible(character) for character in str(text))


def quoted(text: object, at_most: int = 120) -> str:
    """Clean text of a file for a message: cut where it is long."""
    shown = clean(str(text)[: at_most + 1])
    return shown if len(shown) <= at_most else shown[: at_most - 3] + "..."


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    if not unicodedata.category(character).startswith("C"):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
