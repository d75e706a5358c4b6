"""What must not leave the machine: home directories, user and host names, addresses, keys, prompts.

Names in a trace are redacted before anything is computed from them (:func:`trace`), so that every table,
chart and ticket is clean by construction; what people typed (title, parameters) and what tools said
(tracebacks) by :meth:`Redactor.anything` on the way out. The counts of what was removed go into the report.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import polars as pl

from tracelib.data import data
from tracelib.findings.document import Document
from tracelib.trace import Trace

_DATA = data(__file__, "redact.toml")
_PATTERNS = {name: re.compile(pattern) for name, pattern in _DATA.items() if isinstance(pattern, str)}
_COLUMNS: dict[str, list[str]] = _DATA["columns"]
_COMMON, _HARMLESS = _PATTERNS["common"], _PATTERNS["harmless"]
PROMPT_CHARACTERS = 120
PROMPT_WORDS = 12
#: Columns whose text this project wrote: prose in them is nobody's prompt.
_OURS = {"message", "fix"}


class Redactor:
    """Replaces what gives people and machines away, a name always by the same stand-in, and counts it."""

    def __init__(self, users: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        self._removed: dict[str, set[str]] = defaultdict(set)
        self._users = {name for name in users if len(name) > 2 and not _COMMON.fullmatch(name)}
        self._hosts: dict[str, str] = {}
        self._seen: dict[tuple[str, bool], str] = {}
        for host in sorted(hosts):
            if not _COMMON.fullmatch(host):
                self._hosts[host] = f"host-{len(self._hosts) + 1}"

    def text(self, text: str, *, recorded: bool = False) -> str:
        """Return `text` redacted; `recorded` = out of a trace, where long prose is a user's words."""
        key = (text, recorded)
        if key not in self._seen:
            self._seen[key] = self._redacted(text, recorded=recorded)
        return self._seen[key]

    def value(self, name: str, text: str) -> str:
        """Return a recorded `text` redacted that is the value of `name`, which may tell of a secret."""
        pair = f"{name}={text}"
        if (
            text
            and "\0" not in pair
            and self._each(_PATTERNS["assigned"], pair, "assignment", _assignment).endswith("=[removed]")
        ):
            return "[removed]"
        return self.text(text, recorded=True)

    def taught(self) -> Redactor:
        """Return a redactor that knows the names this one has learned, and has removed nothing yet."""
        return Redactor(self._users, self._hosts)

    def anything(self, value: Any) -> Any:
        """Return `value`, made of dicts, lists and plain values, with every string in it redacted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.anything(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.anything(item) for item in value]
        return value

    def document(self, findings: Document) -> Document:
        """Return a findings document with every text in it redacted, but for the file's own fixed words."""
        parts = msgspec.to_builtins(findings)
        fixed = {name: parts[name] for name in ("schema", "tool", "generated_utc")}
        return msgspec.convert({**self.anything(parts), **fixed}, Document)

    @property
    def counts(self) -> Counter[str]:
        """Return how many different things of each kind were removed."""
        return Counter({kind: len(texts) for kind, texts in self._removed.items() if texts})

    def summary(self) -> str:
        """Return one line that says what was removed; "" if nothing was."""
        parts = [
            f"{n} {kind if n == 1 else kind.replace('address', 'addresse') + 's'}"
            for kind, n in sorted(self.counts.items())
        ]
        return f"Removed before writing: {', '.join(parts)}." if parts else ""

    def _redacted(self, text: str, *, recorded: bool) -> str:
        if recorded and _is_prose(text):
            self._removed["prompt-like text"].add(text)
            return f"[text of {len(text)} characters]"
        text = self._each(_PATTERNS["environment"], text, "environment", lambda _: "[environment]")
        text = self._each(_PATTERNS["secrets"], text, "secret", lambda _: "[secret]")
        text = self._each(
            _PATTERNS["prompt_value"],
            text,
            "prompt-like text",
            lambda m: f"{m['name']}[text of {len(m['value']) - 2} characters]",
        )
        text = self._each(_PATTERNS["assigned"], text, "assignment", _assignment)
        text = self._each(_PATTERNS["home"], text, "home directory path", self._home)
        text = self._each(_PATTERNS["email"], text, "email address", lambda _: "[email]")
        text = self._each(_PATTERNS["ipv4"], text, "IP address", _address)
        text = self._each(_PATTERNS["ipv6"], text, "IP address", _address)
        text = self._each(_PATTERNS["fqdn"], text, "host name", lambda m: self.host(m[0]))
        return self._names(text)

    def _each(
        self, pattern: re.Pattern[str], text: str, kind: str, stand_in: Callable[[re.Match[str]], str]
    ) -> str:
        def replaced(match: re.Match[str]) -> str:
            new = stand_in(match)
            if new != match[0]:
                self._removed[kind].add(match[0])
            return new

        return pattern.sub(replaced, text)

    def _home(self, path: re.Match[str]) -> str:
        user = path["user"]
        if user and len(user) > 2 and not _COMMON.fullmatch(user):
            self._users.add(user)
        return "~"

    def host(self, name: str) -> str:
        """Return the stand-in for the host called `name`."""
        if _COMMON.fullmatch(name):
            return name
        self._removed["host name"].add(name)
        return self._hosts.setdefault(name, f"host-{len(self._hosts) + 1}")

    def _names(self, text: str) -> str:
        for name, stand_in, kind in (
            *(
                (host, new, "host name")
                for host, new in sorted(self._hosts.items(), key=lambda pair: -len(pair[0]))
            ),
            *((user, "[user]", "user name") for user in sorted(self._users, key=len, reverse=True)),
        ):
            if name in text:
                # "vm" is a word of many names: one so short counts only where it stands alone.
                before, after = ("[A-Za-z0-9]", "[A-Za-z0-9]") if len(name) > 2 else (r"\S", r"[^\s,.;:]")
                whole = re.compile(rf"(?<!{before}){re.escape(name)}(?!{after})")
                text = self._each(whole, text, kind, lambda _, new=stand_in: new)  # type: ignore[misc]
        return text


def trace(run: Trace) -> tuple[Trace, Redactor]:
    """Return `run` with every recorded name redacted, and the redactor, which knows what it removed.

    Names of threads, kernels, annotations and libraries keep what rules need: only private parts are
    replaced.
    """
    hosts = {
        host for frame in (run.threads, run.gpus, run.sources) for host in frame["host"].drop_nulls().unique()
    }
    redactor = Redactor(users=_current_user(), hosts=hosts)
    _learn(run, redactor)
    frames = {name: _frame(getattr(run, name), columns, redactor) for name, columns in _COLUMNS.items()}
    return run.replace(**frames), redactor


def _learn(run: Trace, redactor: Redactor) -> None:
    """Learn user names from the home directories in libraries' paths before other names are looked at."""
    for library in run.stacks["library"].cast(pl.String).unique().drop_nulls():
        redactor.text(library, recorded=True)


def _frame(frame: pl.DataFrame, columns: Iterable[str], redactor: Redactor) -> pl.DataFrame:
    for column in columns:
        dtype = frame.schema[column]
        names = frame[column].cast(pl.String).unique().drop_nulls()
        redacted = {name: _name(name, column, redactor) for name in names}
        changed = {name: new for name, new in redacted.items() if new != name}
        if changed:
            frame = frame.with_columns(pl.col(column).cast(pl.String).replace(changed).cast(dtype))
    return frame


def _name(name: str, column: str, redactor: Redactor) -> str:
    if column == "host":
        return redactor.host(name)
    if column in _OURS:
        # A file that could not be read is named with the folders that it lies in.
        return redactor.text(re.sub(r"^not read: .*?(?=[^/]+: not readable as)", "not read: ", name))
    return redactor.text(name, recorded=True)


def _current_user() -> set[str]:
    return {name for variable in ("USER", "LOGNAME", "USERNAME") if (name := os.environ.get(variable))}


def _assignment(match: re.Match[str]) -> str:
    harmless = _HARMLESS.fullmatch(match["value"]) or match["value"].startswith("[")
    return match[0] if harmless else f"{match['name']}{match['equals']}[removed]"


def _address(match: re.Match[str]) -> str:
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return match[0]
    return match[0] if address.is_loopback or address.is_unspecified else "[address]"


def _is_prose(text: str) -> bool:
    """Say whether `text` reads like a person's words: long, many plain words, hardly any marks of code."""
    if len(text) < PROMPT_CHARACTERS:
        return False
    words = re.findall(r"(?<!\S)[^\W\d_]+[.,;:!?]?(?!\S)", text)
    code = sum(text.count(mark) for mark in "<>(){}[]=&*|_/:\\")
    return len(words) >= PROMPT_WORDS and code * 20 < len(text)
