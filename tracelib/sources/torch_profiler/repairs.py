"""What a damaged event may have been: texts of JSON made from one that is not, least changed first."""

import bisect
import itertools
import re
from collections.abc import Iterator

import msgspec

#: What decoders raise at a text that is not JSON.
UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BYTES_STRING = re.compile(_STRING.pattern.encode(), re.DOTALL)
#: A pair of surrogates; half of one; another escape; a backslash that begins none.
_ESCAPE = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r'|(?P<other>\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|(?P<lone>\\)'
)
_MEANT = {"half": r"\ufffd", "lone": r"\\"}
_CONTROL = re.compile(r"[\x00-\x1f]")
#: A value other than a string; those that JSON does not know mean nothing: NaN, 0x7f, 007, None, a word.
_BARE = re.compile(r"([:\[,]\s*+)([^\s\[\]{},:]++(?:\s++[^\s\[\]{},:]++)*+)(?=\s*+[,\]}])")
_LITERAL = re.compile(r"-?(?:0|[1-9]\d{0,200})(?:\.\d+)?(?:[eE][+-]?\d{1,2})?|true|false|null")
_NO_VALUE = re.compile(r":(?=\s*[,\]}])")
#: Where a string value begins, and where it may end: before the next key or the end of its object.
_VALUE = re.compile(r'"\w[\w .%/()-]*"\s*:\s*"')
_VALUE_END = re.compile(r'"(?=\s*(?:,\s*"\w[\w .%/()-]*"\s*:|\}|\]))')
_MISSING_COMMA = re.compile(r"\}(\s*)\{")
_EXTRA_COMMA, _COMMAS = re.compile(r",(?=\s*[}\]])"), re.compile(r"([{\[,])(?:\s*,)+")

#: What a program printed to the file that its profiler wrote: "WARNING:2024-…", "STAGE:…".
_LOG_LINE = re.compile(r"^[ \t]*[A-Z][^\n]*\n", re.MULTILINE)
#: Where an event's name begins, and where it may end: before another key of an event, or with the event.
_NAME = re.compile(r'"name"\s*:\s*"')
_NAME_END = re.compile(r'"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|\}\s*$)')
_BARE_QUOTE = re.compile(r'(\\.)|"', re.DOTALL)
#: So many ends of a name are tried, of texts up to so many bytes.
MOST_ENDS, LONGEST = 8, 1 << 16


def depth_of(part: bytes) -> int:
    """Return how many more brackets and strings open in `part` than close."""
    bare = _BYTES_STRING.sub(b"", part)
    return sum(bare.count(c) for c in (b"{", b"[", b'"')) - bare.count(b"}") - bare.count(b"]")


def _in_string(match: re.Match[str]) -> str:
    if "\\" not in match[0] and match[0].isprintable():
        return match[0]
    text = _CONTROL.sub(" ", match[0])
    return _ESCAPE.sub(lambda m: _MEANT.get(m.lastgroup or "", m[0]), text)


def _outside(text: str) -> str:
    if text.strip() in (":", ","):  # what stands between most strings
        return text
    text = _COMMAS.sub(r"\1", _MISSING_COMMA.sub(r"},\1{", text))
    text = _BARE.sub(lambda m: m[0] if _LITERAL.fullmatch(m[2]) else f"{m[1]}null", text)
    return _NO_VALUE.sub(": null", _EXTRA_COMMA.sub("", text))


def _quotes_escaped(text: str) -> str:
    """Escape quotes inside of string values: a value ends where the next key follows or its object ends."""
    ends = [match.start() for match in _VALUE_END.finditer(text)]
    out, position = [], 0
    while begin := _VALUE.search(text, position):
        place = bisect.bisect_left(ends, begin.end())
        if place == len(ends):
            break
        value = text[begin.end() : ends[place]]
        out += [text[position : begin.end()], re.sub(r'(?<!\\)"', r"\"", value), '"']
        position = ends[place] + 1
    return "".join([*out, text[position:]])


def repaired(text: bytes) -> list[str]:
    """Return what the writer of the invalid JSON `text` may have meant, least changed first."""
    readable = text.decode("utf-8", "replace")
    return [_mended(candidate) for candidate in dict.fromkeys((readable, _quotes_escaped(readable)))]


def _mended(text: str) -> str:
    out, position = [], 0
    for string in _STRING.finditer(text):
        out += [_outside(text[position : string.start()]), _in_string(string)]
        position = string.end()
    return "".join([*out, _CONTROL.sub(" ", _outside(text[position:]))])


def guessed(text: bytes) -> Iterator[str]:
    """Yield what an event may have been: without log lines in it, or with each text that may be its name."""
    if len(text) > LONGEST:
        return
    readable = text.decode("utf-8", "replace")
    if (quiet := _LOG_LINE.sub("", readable)) != readable:
        yield _mended(quiet)
    if begin := _NAME.search(readable):
        for end in itertools.islice(_NAME_END.finditer(readable, begin.end()), MOST_ENDS):
            name = _BARE_QUOTE.sub(lambda m: m[1] or r"\"", readable[begin.end() : end.start()])
            odd = (len(name) - len(name.rstrip("\\"))) % 2  # a path that ends with a lone backslash
            yield _mended(readable[: begin.end()] + name + "\\" * odd + readable[end.start() :])
