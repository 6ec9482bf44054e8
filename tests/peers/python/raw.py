"""The text of a part of a JSON text, as it stands: parsing would round numbers and drop repeated keys."""

import json
import re
from typing import Iterator

# Possessive: strings of megabytes are matched without a way back.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_MARK = re.compile(_STRING.pattern + r"|[{}\[\]]")
_PLAIN_END = re.compile(r"[\s,:\]}]|$")
_BLANK = re.compile(r"[ \n\r\t]*")


def members(text: str) -> Iterator[tuple[str, str]]:
    """Each member of an object, with the text of its value."""
    at = _after(text, 0, "{")
    while text[at] != "}":
        key_end = _skip(text, at)
        value = _after(text, key_end, ":")
        end = _skip(text, value)
        yield json.loads(text[at:key_end]), text[value:end]
        at = _next(text, end)


def items(text: str) -> Iterator[str]:
    """The text of each item of an array."""
    at = _after(text, 0, "[")
    while text[at] != "]":
        end = _skip(text, at)
        yield text[at:end]
        at = _next(text, end)


def member(text: str, name: str) -> str:
    return next(value for key, value in members(text) if key == name)


def _blank(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()


def _after(text: str, at: int, mark: str) -> int:
    at = _blank(text, at)
    if text[at] != mark:
        raise ValueError(f"no {mark} at {at} of {text[:80]}")
    return _blank(text, at + 1)


def _next(text: str, at: int) -> int:
    at = _blank(text, at)
    return _blank(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    if text[at] == '"':
        return _STRING.match(text, at).end()
    if text[at] not in "{[":
        return _PLAIN_END.search(text, at).start()
    depth = 0
    for mark in _MARK.finditer(text, at):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark[0], 0)
        if depth == 0:
            return mark.end()
    raise ValueError("the JSON text ends too early")
