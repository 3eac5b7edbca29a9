"""Untrusted text made safe for terminals and log lines: no control characters, no reversed text.

Names in programs, lines of scripts, data, messages and requests may hold any character. Code that prints such
text passes it through `printable`; `str` of the package's errors does so by itself.
"""

import re

# Controls (C0 without tab and line feed, DEL, C1), separators of lines and paragraphs, marks that turn
# the direction of text round, and halves of surrogate pairs, which no encoding takes.
_HOSTILE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_HOSTILE}]")
_IN_LINE = re.compile(f"[\n{_HOSTILE}]")


def printable(text: str, lines: bool = True) -> str:
    r"""Return the text with escapes, such as `\x1b` and `\u202e`, for characters that terminals interpret.

    Args:
        lines: False if the text must be one line: line feeds are written as `\n`.
    """
    if text.isascii() and text.isprintable():
        return text
    return (_IN_TEXT if lines else _IN_LINE).sub(_shown, text)


def printable_json(text: str) -> str:
    """Return a JSON document with hostile characters as JSON escapes; only strings hold such characters."""
    return _IN_TEXT.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def printable_message(text: str) -> str:
    """Return protobuf's text of a message with its hostile characters in octal, byte by byte.

    Only strings of the message hold such characters.
    """
    return _IN_TEXT.sub(lambda match: "".join(f"\\{byte:03o}" for byte in match.group().encode()), text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code == 10:
        return "\\n"
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
