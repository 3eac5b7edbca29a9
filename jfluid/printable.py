"""Text of others on terminals and in lines of logs: nothing in it moves the cursor, colours or turns round.

Names in programs, lines of scripts, data, messages and requests may hold anything. What shows them
passes them through `printable`; `str` of the package's errors does so by itself.
"""

import re

# Controls (C0 without tab and line feed, DEL, C1), separators of lines and paragraphs, marks that turn
# the direction of text round, and halves of surrogate pairs, which no encoding takes.
_HOSTILE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_HOSTILE}]")
_IN_LINE = re.compile(f"[\n{_HOSTILE}]")


def printable(text: str, lines: bool = True) -> str:
    """Return the text with each character that terminals obey as Python writes it: `\\x1b`, `\\u202e`.

    Args:
        lines: whether it may have several lines; False shows line feeds as `\\n`.
    """
    if text.isascii() and text.isprintable():
        return text
    return (_IN_TEXT if lines else _IN_LINE).sub(_shown, text)


def printable_json(text: str) -> str:
    """Return a JSON document with such characters, which only its strings hold, as JSON writes them."""
    return _IN_TEXT.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def printable_message(text: str) -> str:
    """Return protobuf's text of a message with such characters, which only its strings hold, as it
    writes others: byte by byte.
    """
    return _IN_TEXT.sub(lambda match: "".join(f"\\{byte:03o}" for byte in match.group().encode()), text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code == 10:
        return "\\n"
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
