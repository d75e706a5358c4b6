"""What must not leave the machine: home directories, user and host names, addresses, keys, prompts.

Names in a trace are redacted before anything is computed from them (:func:`trace`), so that every table,
chart and ticket is clean by construction; what people typed (title, parameters) and what tools said
(tracebacks) by :meth:`Redactor.anything` on the way out. The counts of what was removed go into the report.
docs/redaction.md says what each level removes.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Any

import msgspec
import polars as pl

from tracelib.findings.document import Document
from tracelib.report import private
from tracelib.report.private import Shape
from tracelib.schema import SLICE_CATEGORY
from tracelib.trace import Trace

_HOME = re.compile(
    r"(?:(?:(?<![\w./-])(?:/[\w.-]++)*?)?/(?:home|homes|users|Users|user)/"
    r"|(?i:[A-Za-z]:\\+(?:Users|Documents[ ]and[ ]Settings)\\+))"
    r"(?P<user>[^/\\\s:'\"<>|\[\]]+(?:[ ][A-Z][\w.-]{0,30}(?=[/\\]))?)"
    r"|(?<![\w./\\~-])(?:home|Users)/(?P<owner>[^/\\\s:'\"<>|\[\]]+)(?=/)"
    r"|(?<![\w/.])/root(?=/|\b)|(?<![\w/.~])~(?P<other>[A-Za-z_][\w.-]+)(?=/)"
)
_PART = re.compile("[A-Za-z0-9]+")
#: A secret of this length is looked for wherever it may stand.
SHORTEST = 8
#: So many are looked for: where a file has more, they are names of something.
MOST_KNOWN = 500
#: A text of more characters is not a name: it goes as a whole. The longest kernel names have some thousand.
LONGEST = 1 << 15
#: A stand-in for fewer characters than this has no room for their number: names of threads have 15 bytes.
SHORT = 24

_COLUMNS = {
    "slices": ("name",),
    "gpu_ops": ("name", "group"),
    "samples": ("event",),
    "stacks": ("symbol", "library"),
    "counters": ("name", "track"),
    "threads": ("name", "process", "host"),
    "gpus": ("host", "name"),
    "sources": ("file", "recorder", "host", "tied_with"),
    "health": ("message", "fix"),
}
#: Categories of slices whose names a program's author wrote: any text.
WRITTEN = ("annotation", "gpu_annotation", "op", "other")
#: Rows of such names; elsewhere they are names of code, threads, programs, hardware.
_WRITTEN = {
    "slices": pl.col("category").is_in(pl.Series(WRITTEN, dtype=SLICE_CATEGORY).implode()),
    "counters": pl.lit(value=True),
}
#: Columns whose text this project wrote: words in them are nobody's prompt.
_OURS = {"message", "fix", "file", "tied_with", "recorder"}


class Redactor:
    """Replaces what gives people and machines away, a name always by the same stand-in, and counts it.

    `level` is one of :data:`tracelib.options.LEVELS`.
    """

    def __init__(
        self, users: Iterable[str] = (), hosts: Iterable[str] = (), *, level: str = "strict"
    ) -> None:
        self.level = level
        self._removed: dict[str, set[str]] = defaultdict(set)
        self._users: set[str] = set()
        self._hosts: dict[str, str] = {}
        self._by_part: dict[str, list[str]] = defaultdict(list)
        self._given: set[str] = set()  # values of secrets, which may stand elsewhere without their names
        self._known: re.Pattern[str] | None = None
        self._seen: dict[tuple[str, bool, bool], str] = {}
        self._values: dict[tuple[str, str, bool, bool], str] = {}
        for user in users:
            self._learn_user(user)
        for host in sorted(hosts):
            if host.lower() not in private.COMMON | private.VOCABULARY:
                self._learn_host(host)

    def text(self, text: str, *, recorded: bool = False, code: bool = False) -> str:
        """Return `text` redacted; `recorded` = out of a trace, where free text is a user's words.

        `code` = where only names of functions, kernels, threads and programs stand; elsewhere a text is such
        a name if its words are (:func:`private.code_words`).
        """
        if self.level == "off":
            return text
        if len(text) > LONGEST:
            return self._gone("free text", text)
        key = (text, recorded, code)
        if key not in self._seen:
            self._seen[key] = self._redacted(text, recorded=recorded, code=code)
        return self._seen[key]

    def value(self, name: str, text: str, *, recorded: bool = True, code: bool = False) -> str:
        """Return `text` redacted that is the value of `name`, which may tell of a secret, or of code."""
        key = (name, text, recorded, code)
        if key not in self._values:
            new = self._valued(name, text, recorded=recorded, code=code) if self.level != "off" else text
            self._values[key] = new
        return self._values[key]

    def _valued(self, name: str, text: str, *, recorded: bool, code: bool) -> str:
        text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair is not a character
        kind = private.kind_of_key(name)
        code = code or private.names_code(name)
        if not kind or private.STAND_IN.fullmatch(text) or (kind == "environment" and not recorded):
            return self.text(text, recorded=recorded, code=code)
        if private.tells_nothing(kind, name, text):
            return self.text(text, recorded=recorded, code=code) if kind == "number" else text
        if kind == "prompt":
            return self._gone("prompt-like text", text)
        if kind in ("secret", "number", "environment"):
            return self._assigned(name, text, given=kind == "secret")
        if kind == "host":
            return self.host(text)
        self._learn_user(text)
        return self.text(text, recorded=recorded, code=code)

    def names_secret(self, name: str) -> bool:
        """Say whether values under `name` are secrets, were they numbers: counts of tokens are not."""
        return private.kind_of_key(name) in ("secret", "number") and not private.is_count(name)

    def texts(self, name: str, texts: list[str]) -> list[str]:
        """Return the texts of a list redacted: words that are free text together are so one by one."""
        if private.foreign_words(" ".join(dict.fromkeys(texts))) >= private.WORDS[self.level]:
            texts = [self._gone("free text", text) if private.foreign_words(text) else text for text in texts]
        return [self.value(name, text) if text else text for text in texts]

    def leave_out(self, piece: str) -> None:
        """Count a piece of a file that is not in its copy, because nothing could be read of it."""
        self._removed["unreadable piece"].add(piece)

    def taught(self) -> "Redactor":
        """Return a redactor that knows the names and secrets of this one, and has removed nothing yet."""
        other = Redactor(self._users, level=self.level)
        for host in self._hosts:
            other._learn_host(host)
        known = [*sorted(self._given), *sorted(self._removed["secret"] - self._given)]
        known = [re.escape(each) for each in known if len(each) >= SHORTEST and "[" not in each][:MOST_KNOWN]
        other._known = re.compile("|".join(sorted(known, key=len, reverse=True))) if known else None
        return other

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
        clean = {**self.anything(parts), "parameters": self.parameters(parts["parameters"])}
        return msgspec.convert({**clean, **fixed}, Document)

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters redacted; but for the title and the ticket, they hold no free text."""
        own = ("title", "ticket")
        return self.anything(  # type: ignore[no-any-return]
            {name: value if name in own else self._unprosed(value) for name, value in given.items()}
        )

    def _unprosed(self, value: Any) -> Any:
        """Return a parameter without free text: a pattern of names may quote what a trace holds."""
        if isinstance(value, str):
            prose = self.level != "off" and private.foreign_words(value) >= private.WORDS[self.level]
            return self._gone("free text", value) if prose else value
        if isinstance(value, dict):
            return {self._unprosed(name): self._unprosed(item) for name, item in value.items()}
        return [self._unprosed(item) for item in value] if isinstance(value, (list, tuple)) else value

    @property
    def counts(self) -> Counter[str]:
        """Return how many different things of each kind were removed."""
        return Counter({kind: len(texts) for kind, texts in self._removed.items() if texts})

    def secrets(self) -> set[str]:
        """Return the secrets that were removed, with the names that they were assigned to."""
        return self._removed["secret"] | self._removed["assignment"] | self._given

    def summary(self) -> str:
        """Return one line that says what was removed; "" if nothing was."""
        parts = [
            f"{n} {kind if n == 1 else kind.replace('address', 'addresse') + 's'}"
            for kind, n in sorted(self.counts.items())
        ]
        return f"Removed before writing: {', '.join(parts)}." if parts else ""

    def _redacted(self, text: str, *, recorded: bool, code: bool) -> str:
        """Return `text` redacted until nothing more is to be removed: what it returns, it leaves as it is."""
        for _ in range(5):
            plain = private.decoded(text)
            new = self._once(plain, recorded=recorded, code=code)
            if new == plain and plain != text:  # nothing is hidden in it
                new = self._once(text, recorded=recorded, code=code)
            if new == text:
                return text
            text = new
        return self._gone("free text", text)

    def _once(self, text: str, *, recorded: bool, code: bool) -> str:
        if self._known and (again := self._known.search(text)):
            self._removed["secret"].add(again[0])
            text = self._known.sub("[secret]", text)
        lower = text.lower()
        for pattern in private.credentials(lower):
            text = pattern.sub(self._credential, text)
        for shape in private.SHAPES:
            if shape.matters(lower, recorded=recorded):
                text = self._replaced(shape, text)
        if "/" in text or "\\" in text:
            text = _HOME.sub(self._home, text)
        text = self._names(text)
        if not recorded:
            return text
        if self.level == "strict":
            text = self._shorter("command-line value", text, private.command(text))
            text = self._shorter("folder", text, private.paths(text))
        if private.foreign_words(text) >= private.WORDS[self.level]:
            return self._gone("free text", text)
        return text if code or self.level != "strict" else self._named(text)

    def _named(self, text: str) -> str:
        """Return free text of unknown kind as far as names of programs are made of its words."""
        new = private.code_words(text)
        return self._gone("free text", text) if new is None else self._shorter("free text", text, new)

    def _assigned(self, name: str, value: str, *, given: bool) -> str:
        self._removed["assignment"].add(f"{name}={value}")
        bare = value.strip("\\\"'")
        if given and re.search(r"[^a-zA-Z]", bare) and not private.is_plain(bare):
            self._given.add(bare)
        return "[removed]"

    def _shorter(self, kind: str, text: str, new: str) -> str:
        if new != text:
            self._removed[kind].add(text)
        return new

    def _gone(self, kind: str, text: str) -> str:
        self._removed[kind].add(text)
        return "[text]" if len(text) < SHORT else f"[text of {len(text)} characters]"

    def _replaced(self, shape: Shape, text: str) -> str:
        def new(match: re.Match[str]) -> str:
            if not shape.holds(match):
                return match[0]
            if shape.stand_in == "host":
                return match[0][: match.start("host") - match.start()] + self.host(match["host"])
            if shape.kind == "assignment":
                self._assigned(match["name"].rstrip("=: "), match["value"], given=not shape.recorded)
            else:
                self._removed[shape.kind].add(match[0])
            return match.expand(shape.stand_in)

        return shape.pattern.sub(new, text)

    def _credential(self, match: re.Match[str]) -> str:
        start = private.start_of_credential(match) - match.start()
        self._removed["secret"].add(match[0][start:])
        return f"{match[0][:start]}[secret]"

    def _home(self, path: re.Match[str]) -> str:
        self._removed["home directory path"].add(path[0])
        self._learn_user(path["user"] or path["owner"] or path["other"] or "")
        return "~"

    def _learn_user(self, user: str) -> None:
        if len(user) > 2 and user.lower() not in private.COMMON and not self._is_stand_in(user):
            self._learn(user, self._users)
            self._users.add(user)

    def _learn_host(self, host: str) -> str:
        self._learn(host, self._hosts)
        return self._hosts.setdefault(host, f"host-{len(self._hosts) + 1}")

    def _learn(self, name: str, known: Container[str]) -> None:
        """Keep a name under its part that the fewest share: a file with very many names takes no longer."""
        if name not in known:
            part = min(_PART.findall(name) or [""], key=lambda part: len(self._by_part[part]))
            self._by_part[part].append(name)

    def _is_stand_in(self, name: str) -> bool:
        numbered = re.fullmatch(r"host-(\d{1,9})", name)
        given = numbered and 0 < int(numbered[1]) <= len(self._hosts)
        return bool(given or private.STAND_IN.fullmatch(name))

    def host(self, name: str) -> str:
        """Return the stand-in for the host called `name`."""
        lower = name.lower()
        if lower in private.COMMON or lower in private.VOCABULARY or self._is_stand_in(name):
            return name
        self._removed["host name"].add(name)
        return self._learn_host(name)

    def _names(self, text: str) -> str:
        parts = {"", *_PART.findall(text)} if self._by_part else ()
        near = {name for part in parts for name in self._by_part.get(part, ()) if name in text}
        for name in sorted(near, key=lambda name: (name not in self._hosts, -len(name), name)):
            stand_in = self._hosts.get(name, "[user]")
            kind = "host name" if name in self._hosts else "user name"
            # "vm" is a word of many names: one so short counts only where it stands alone.
            before, after = ("[A-Za-z0-9]", "[A-Za-z0-9]") if len(name) > 2 else (r"\S", r"[^\s,.;:]")
            whole = re.compile(rf"(?<!{before}){re.escape(name)}(?!{after})")
            new = whole.sub(stand_in, text)
            if new != text:
                self._removed[kind].add(name)
            text = new
        return text


def trace(run: Trace, level: str = "strict") -> tuple[Trace, Redactor]:
    """Return `run` with every recorded name redacted, and the redactor, which knows what it removed.

    Names of threads, kernels, annotations and libraries keep what rules need: only private parts are
    replaced.
    """
    hosts = {
        host for frame in (run.threads, run.gpus, run.sources) for host in frame["host"].drop_nulls().unique()
    }
    redactor = Redactor(users=current_user(), hosts=hosts, level=level)
    if level == "off":
        return run, redactor
    _learn(run, redactor)
    frames = {
        name: _frame(getattr(run, name), columns, redactor, _WRITTEN.get(name, pl.lit(value=False)))
        for name, columns in _COLUMNS.items()
    }
    return run.replace(**frames), redactor


def request_ids(log: pl.DataFrame | None, redactor: Redactor) -> pl.DataFrame | None:
    """Return a log of requests whose private ids are numbers: two requests never become one."""
    if log is None:
        return None
    new = {
        name: f"request-{number}"
        for number, name in enumerate(log["id"].cast(pl.String).drop_nulls().unique(maintain_order=True), 1)
        if redactor.text(name, recorded=True) != name
    }
    return log.with_columns(pl.col("id").cast(pl.String).replace(new)) if new else log


def _learn(run: Trace, redactor: Redactor) -> None:
    """Learn user names from the home directories in libraries' paths before other names are looked at."""
    for library in run.stacks["library"].cast(pl.String).unique().drop_nulls():
        redactor.text(library, recorded=True, code=True)


def _frame(frame: pl.DataFrame, columns: Iterable[str], redactor: Redactor, written: pl.Expr) -> pl.DataFrame:
    """Return `frame` with `columns` redacted; `written` = in rows whose text is not code's name."""
    for column in columns:
        dtype, text = frame.schema[column], pl.col(column).cast(pl.String)
        changed: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for name, free in frame.select(column, free=written).unique().drop_nulls().iter_rows():
            new = _name(name, column, redactor, code=not free)
            changed[free] |= {name: new} if new != name else {}
        if any(changed.values()):
            parts = (text.replace(changed[free]) if changed[free] else text for free in (True, False))
            frame = frame.with_columns(pl.when(written).then(next(parts)).otherwise(next(parts)).cast(dtype))
    return frame


def _name(name: str, column: str, redactor: Redactor, *, code: bool) -> str:
    if column == "host":
        return redactor.host(name)
    if column in _OURS:
        # A file that could not be read is named with the folders that it lies in.
        return redactor.text(re.sub(r"^not read: .*?(?=[^/]+: not readable as)", "not read: ", name))
    return redactor.text(name, recorded=True, code=code)


def current_user() -> set[str]:
    """Return the names of who runs this."""
    return {name for variable in ("USER", "LOGNAME", "USERNAME") if (name := os.environ.get(variable))}
