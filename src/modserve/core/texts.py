"""Foreign texts: of models, of files and their names, of the command line. Invalid Unicode goes no further.

A lone surrogate is no character: Python makes one of a byte that is not UTF-8 (``os.fsdecode``), and no JSON document,
message, metric or terminal can carry it.
"""

from typing import Final

LONGEST: Final = 64 * 1024
"""Maximum characters kept of a message: much more than anyone reads."""


def is_unicode(text: str) -> bool:
    """Return True if a text has characters only, and no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def unicode_text(text: str) -> str:
    """Return the text with each lone surrogate as a backslash escape, for logs and terminals."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def message_text(text: str) -> str:
    """Return the text of a message, as Unicode and without the middle of a very long one."""
    if len(text) > LONGEST:
        note = f" [... {len(text)} characters in all ...] "
        half = (LONGEST - len(note)) // 2
        text = text[:half] + note + text[-half:]
    return unicode_text(text)
