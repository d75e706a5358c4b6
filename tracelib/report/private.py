"""What is private in one text: secrets by their shape and place, and words that no program wrote.

The patterns are data, beside this file: credentials by their form are gitleaks' rules (``gitleaks.toml``);
``private.toml`` has the forms that it lacks, and everything else.
:class:`tracelib.report.redact.Redactor` says
what becomes of what they find.
"""

import functools
import html
import ipaddress
import itertools
import re
import tomllib
import unicodedata
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from tracelib.data import data

#: So many words that are not of the field make a text a person's; so do as many letters that are not ASCII.
WORDS = {"strict": 2, "standard": 6}

#: A value of fewer characters behind a colon is a word of a sentence.
SHORT_WORD = 6
_HARMLESS = re.compile(
    r"\\*[\"']?(?:[-+]?\d{1,6}(?:\.\d{1,3})?|true|false|none|null|on|off|\*+|<.*>|\[.*)?\\*[\"']?",
    re.IGNORECASE,
)
_IDS = re.compile(r"\[\s*-?\d")
_NUMBER = re.compile(r"[-+]?[\d.,:x]+[a-zA-Z%]{0,2}")
_OPEN, _CLOSE = (
    r"[(\"'<\[{\u00ab\u201c\u201e\u2018\u2039\u00a1\u00bf]{0,2}",
    r"[)\"'>\]}\u00bb\u201d\u2019\u203a]{0,2}",
)
_WORD = re.compile(
    rf"(?<!\S){_OPEN}([A-Za-z]?[a-z]+(?:['\u2019-][a-z]+)*|[A-Z]+){_CLOSE}[.,;:!?\u2026]*(?!\S)"
)
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}|&(?:#x?)?\w{1,8};|(?<!\\)\\++u[0-9A-Fa-f]{4}")
_ESCAPE = re.compile(r"(?<!\\)\\++u([0-9A-Fa-f]{4})")
_CAPITALISED = re.compile(r"[A-Z][a-z]{3,}")
_VARIABLE = re.compile(r"(?:.*\s)?[A-Za-z_]\w*=", re.DOTALL)
_FOREIGN = re.compile(r"[^\W\d_a-zA-Z]")
_COMMAND = re.compile(r"\S\s+--?[A-Za-z]")
_FLAG = re.compile(r"(-[A-Za-z]|--[a-z][a-z0-9-]*)(?:=(.*))?")
_CODE_FILE = re.compile(r"[\w./~\[\]-]+\.(?:py|sh|so[\d.]*)|\[\w+\]|-+")
_FOLDER = r"[\w.@+~#%!$&{}\[\]=-]++"
#: A folder's name may have blanks where another slash follows; `://host` begins an address, not a path.
_PATH = re.compile(
    r"(?:(?<![\w./\]~-])(?!(?<=:)//(?!/))(?P<path>~(?=/)|(?=/))|(?<![\w./])(?P<up>\.\.?(?=/)))"
    rf"(?P<folders>(?:/++{_FOLDER}(?:(?:[ ]{_FOLDER}){{1,4}}+(?=/))?)+)/?"
)
_DRIVE = re.compile(r"(?<![\w\\])[A-Za-z]:(?P<folders>(?:\\{1,4}[^\\/:*?\"'<>|\r\n,;()\[\]]{1,200})+)")
#: A relative path, or what follows the host of an address.
_RELATIVE = re.compile(
    rf"(?<![\w./\\~%-])(?<!\d:)(?P<first>[\w.@+~#-]*[A-Za-z][\w.@+~#-]*)(?P<more>(?:/++{_FOLDER})+)"
    rf"|(?P<address>(?<=://)(?:\[secret\]@)?\[?[\w.:-]+\]?)(?P<place>(?:/[^\s\"'<>,)]*)?)"
)
#: A word of three letters and more in a name: `worker` and `Queue` in `workerQueue_TP0`.
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[^\W\d_a-zA-Z]+")
_ENDING = re.compile(r"\.[A-Za-z]\w{0,7}$")
_FILE = re.compile(r"[\w.+-]+\.(?:py|pyx|so[\w.]*|c|cc|cpp|cxx|h|hpp|cu|cuh|rs|go|js|json|gz|txt|sqlite|ko)")


def _vocabulary() -> frozenset[str]:
    """Return the words that names are made of: those in private.toml and in our own rules' patterns."""
    texts = list(_DATA["vocabulary"].values())
    for package, name in (("tracelib", "rules.toml"), ("tracelib.align", "roles.toml")):
        tables = tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8"))
        rows = [row for rows in tables.values() for row in rows if isinstance(row, dict)]
        keys = ("name", "match", "symbol", "library", "inside")
        texts += [row[key] for row in rows for key in keys if isinstance(row.get(key), str)]
    return frozenset(word.lower() for text in texts for word in re.findall(r"[A-Za-z]+", text))


@dataclass(frozen=True)
class Shape:
    """One pattern; `stand_in` is a template, `check` a further condition on a match."""

    kind: str
    pattern: re.Pattern[str]
    stand_in: str
    needs: tuple[str, ...] = ()
    check: str = ""
    recorded: bool = False

    def matters(self, lower: str, *, recorded: bool) -> bool:
        """Say whether the shape may be in a text, which is given in lower case."""
        return (recorded or not self.recorded) and (
            not self.needs or any(need in lower for need in self.needs)
        )

    def holds(self, match: re.Match[str]) -> bool:
        """Say whether a match is one."""
        return not self.check or bool(CHECKS[self.check](match))


def _shapes() -> Iterator[Shape]:
    for row in _DATA["shape"]:
        pattern = row["pattern"]
        for name, part in _DATA["parts"].items():
            pattern = pattern.replace(f"{{{name}}}", part)
        needs = tuple(row.get("needs", ()))
        yield Shape(**{**row, "pattern": re.compile(pattern, re.DOTALL), "needs": needs})


def _credentials() -> dict[str, list[tuple[str, str]]]:
    """Return words in lower case, each a part of credentials of one pattern, by their first three letters."""
    rules = data(__file__, "gitleaks.toml")["rule"]
    pairs = [(word, rule["pattern"]) for rule in rules for word in rule["keywords"]]
    for words, pattern in _DATA["credentials"].items():
        pairs += [(word, rf"(?<![A-Za-z0-9])(?:{pattern})") for word in words.split()]
    by_start: dict[str, list[tuple[str, str]]] = {"": []}
    for word, pattern in pairs:
        by_start.setdefault(word[:3] if len(word) > 2 else "", []).append((word, pattern))
    return by_start


def credentials(lower: str) -> list[re.Pattern[str]]:
    """Return the patterns of the credentials that may be in a text, which is given in lower case."""
    starts = {lower[at : at + 3] for at in range(len(lower) - 2)} & CREDENTIALS.keys()
    known = itertools.chain.from_iterable(CREDENTIALS[start] for start in ("", *sorted(starts)))
    return [_compiled(pattern) for word, pattern in known if word in lower]


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def start_of_credential(match: re.Match[str]) -> int:
    """Return where the credential starts in a match, which may begin with its issuer's name."""
    parts = [n for n in range(1, match.re.groups + 1) if match.end(n) == match.end()]
    return match.start(parts[0]) if parts else match.start()


def is_harmless(value: str) -> bool:
    """Say whether a value is a small number or a word of state, which tells nobody's secret."""
    return bool(_HARMLESS.fullmatch(value))


def is_count(name: str) -> bool:
    """Say whether numbers under a name that is one of a secret are counts of tokens, or times of one."""
    return name.lower().endswith(("token", "tokens")) and not _A_TOKEN.fullmatch(name)


def tells_nothing(kind: str, name: str, value: str) -> bool:
    """Say whether a value under `name`, of this kind, is a word of state or a number that opens nothing."""
    if kind == "number":
        return not re.search(r"(?:\d[ -]?){4}", value)
    if kind == "secret" and not is_count(name) and re.search(r"(?<![\d.])\d{4}", value):
        return False
    return kind in ("prompt", "secret", "environment") and is_harmless(value) and not _IDS.match(value)


@functools.cache
def kind_of_key(name: str) -> str:
    """Return what a key names: prompt, secret, number, host, user, environment, or "" for anything."""
    name = unicodedata.normalize("NFKC", name)
    return next((kind for kind, pattern in _KEYS.items() if pattern.fullmatch(name)), "") if name else ""


@functools.cache
def names_code(name: str) -> bool:
    """Say whether under a key there are only names of functions, threads and programs."""
    return bool(_CODE_KEYS.fullmatch(name))


def tells(match: re.Match[str]) -> bool:
    """Say whether the value of an assignment tells anything: not a small number or a word of state.

    Behind a colon a short word is none: "time to first token: p50".
    """
    short = (
        match["name"].rstrip().endswith(":") and match["value"].isalnum() and len(match["value"]) < SHORT_WORD
    )
    if short and not re.search("(?i:pass|pwd|pw)", match["name"]):
        return False
    many = re.search(r"tokens?\W*$", match["name"]) and re.fullmatch(r"\d+", match["value"])
    return not (many or is_harmless(match["value"]))


def is_address(match: re.Match[str]) -> bool:
    """Say whether a match is an address of a machine other than this one."""
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def is_environment(match: re.Match[str]) -> bool:
    """Say whether a text holds several variables behind each other, as a process has its environment."""
    return sum(bool(_VARIABLE.match(part)) for part in match[0].split("\0")) > 1


def is_card(match: re.Match[str]) -> bool:
    """Say whether the check digit of a card's number is right (ISO/IEC 7812-1)."""
    digits = [int(digit) for digit in reversed(match[0]) if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def is_random(match: re.Match[str]) -> bool:
    """Say whether kinds of characters change as often as in random text, or it is a long hexadecimal number.

    In names a capital or a digit comes every few characters; in base64 two in three neighbours differ in
    kind. Separators between words of a name do not count.
    """
    text = match[0]
    words = sum(map(len, _CAPITALISED.findall(text))) > 0.45 * len(text)
    if words or (text.count("_") > 3 and len(text) < 10 * text.count("_")):
        return False
    if _RANDOM_NAMES.fullmatch(text) or STAND_IN.fullmatch(text):
        return False
    if re.fullmatch(r"[0-9a-f]{32,}|[0-9A-F]{32,}", text):
        return len(set(text)) > 6 and not text.isdigit()
    text = "_".join(part for part in re.split(r"[_-]", text) if not _RANDOM_NAMES.fullmatch(part))
    kinds = [1 if c.islower() else 2 if c.isupper() else 3 if c.isdigit() else 0 for c in text]
    changes = sum(a != b and a * b != 0 for a, b in itertools.pairwise(kinds))
    digits = kinds.count(3)
    often = 0.35 if digits > 2 and {1, 2} <= set(kinds) else 0.25 if digits and len(text) >= 32 else 0.6
    return changes >= often * max(len(text), 20)


def decoded(text: str) -> str:
    """Return `text` with each character as itself: no %3D, no &#61;, none escaped or invisible."""
    if text.isascii() and not _ENCODED.search(text):
        return text
    plain = html.unescape(urllib.parse.unquote(text, errors="replace")) if _ENCODED.search(text) else text
    plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), plain)
    return "".join(c for c in unicodedata.normalize("NFKC", plain) if unicodedata.category(c) != "Cf")


def is_own(text: str, level: str) -> bool:
    """Say whether perf or nsys may have said this of itself: words that neither uses are a person's."""
    return foreign_words(text, OWN) < WORDS[level]


def foreign_words(text: str, known: frozenset[str] | None = None) -> int:
    """Return how many words of `text` no name of a program is made of, or letters that are not ASCII."""
    known = VOCABULARY if known is None else known
    bare = STAND_IN.sub(" x_ ", text)
    words = sum(not known.issuperset(word.lower().split("-")) for word in _WORD.findall(bare))
    return max(words, len(_FOREIGN.findall(bare)))


def code_words(text: str) -> str | None:
    """Return `text` with `[word]` for each word that no name of a program is made of; None if most are such.

    However words are glued, by underscores, dots or capitals, each is looked at.
    """
    known = unknown = done = 0
    new: list[str] = []
    for token in _TOKEN.finditer(text):
        if token[0][0] == "[" or _HASHES.fullmatch(token[0]):  # a stand-in has no words
            continue
        for part in _PART.finditer(text, token.start(), token.end()):
            if len(part[0]) < 3 and part[0].isascii():
                continue
            if part[0].lower() in IDENTIFIERS:
                known += 1
                continue
            unknown += 1
            new += [text[done : part.start()], "[word]"]
            done = part.end()
    return None if unknown > known else "".join([*new, text[done:]])


def command(text: str) -> str:
    """Return a command line with its flags and numbers, without other values; any other text as it is."""
    if not _COMMAND.search(text):
        return text
    kept = words_of_command(text.split(" "))
    return " ".join(
        word for word, again in itertools.groupby(kept) for _ in ([0] if word == "[removed]" else again)
    )


def words_of_command(words: Sequence[str]) -> list[str]:
    """Return the program, flags, numbers, files of code and recorded events; `[removed]` for other words."""
    kept = []
    for before, word in itertools.pairwise(["", *words]):
        flag = _FLAG.fullmatch(word)
        if flag and flag[2] is not None and not is_plain(flag[2]):
            kept.append(f"{flag[1]}=[removed]")
        else:
            said = not before or before in ("-m", "-e", "-k")
            kept.append(word if flag or said or is_plain(word) else "[removed]")
    return kept


def is_plain(word: str) -> bool:
    """Say whether a word of a command line is a number, a file of code or a word of the field."""
    code = _NUMBER.fullmatch(word) or is_harmless(word) or _CODE_FILE.fullmatch(word)
    return bool(code) or word.lower() in VOCABULARY


def short_path(path: re.Match[str]) -> str:
    """Return a path from the first folder on that belongs to a known package, or its last part if a file."""
    parts = [part for part in re.split(r"[/\\]+", path["folders"]) if part]
    before = path.groupdict()
    absolute = path["folders"][0] == "/" and not (before["path"] or before["up"])
    if absolute and parts[0] in _DATA["names"]["roots"]:
        return path[0]
    start = next((n for n in range(len(parts) - 1) if _is_package(parts, n)), None)
    if start is None and parts[-2:-1] and parts[-2] in _DATA["names"]["folders"]:
        start = len(parts) - 2
    if start is None and not _FILE.fullmatch(parts[-1]):
        return "/..."
    return "/".join(["/...", *parts[len(parts) - 1 if start is None else start :]])


def _is_package(parts: Sequence[str], at: int) -> bool:
    """Say whether a folder is a known package's: installed, or with a folder or a file that one has in it.

    A folder may be called as a package is, and hold anything.
    """
    if not _PACKAGE.fullmatch(parts[at]):
        return False
    inside = parts[at + 1]
    known = at + 2 == len(parts) or _INSIDE.fullmatch(inside) or _PACKAGE.fullmatch(inside)
    return bool(known or parts[at].endswith("-packages") or parts[at].startswith("python"))


def paths(text: str) -> str:
    """Return `text` with each path that tells its folders shortened (:func:`short_path`, `_own_folders`)."""
    text = _RELATIVE.sub(_own_folders, _PATH.sub(short_path, text)) if "/" in text else text
    return _DRIVE.sub(short_path, text) if ":\\" in text else text


def _own_folders(path: re.Match[str]) -> str:
    """Return a relative path, or an address, with `[word]` for each folder that no program's name is."""
    if path["address"]:
        place, _, query = path["place"].partition("?")
        kept = "/".join(_folder(part) for part in place.split("/"))
        return f"{path['address']}{kept}{'?[removed]' if query else ''}"
    *folders, last = path[0].split("/")
    if folders[0] in PACKAGES or _is_package(path[0].split("/"), 0):
        return path[0]
    if len(folders) < 2 and not _ENDING.search(last):
        return path[0]
    if not _FILE.fullmatch(last):
        last = _folder(last)
    return "/".join([*map(_folder, folders), last])


def _folder(name: str) -> str:
    return name if not name or code_words(name) == name else "[word]"


_DATA = data(__file__, "private.toml")
#: What stands for something removed; other words in brackets are as good as any.
STAND_IN = re.compile(
    r"\[(?:text of \d+ characters|"
    + "|".join(sorted({*re.findall(r"\[([a-z]+)\]", str(_DATA["shape"])), "text", "removed", "user", "word"}))
    + r")\]"
)
CHECKS = {check.__name__: check for check in (tells, is_address, is_environment, is_card, is_random)}
_TOKEN = re.compile(rf"{STAND_IN.pattern}|\w+")
SHAPES = tuple(_shapes())
CREDENTIALS = _credentials()
VOCABULARY = _vocabulary()
IDENTIFIERS = VOCABULARY | frozenset(data(__file__, "identifiers.toml")["words"].split())
PACKAGES = frozenset(data(__file__, "identifiers.toml")["packages"].split())
OWN = VOCABULARY | frozenset(_DATA["own"]["words"].split())
COMMON = frozenset(_DATA["names"]["users"])
_KEYS = {
    "prompt": re.compile(_DATA["names"]["prompt_keys"]),
    "secret": re.compile(f".*?{_DATA['parts']['NAME']}"),
    "number": re.compile(_DATA["names"]["number_keys"]),
    "host": re.compile(_DATA["names"]["host_keys"]),
    "user": re.compile(_DATA["names"]["user_keys"]),
    "environment": re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+"),
}
_A_TOKEN = re.compile(_DATA["names"]["a_token"])
_RANDOM_NAMES, _HASHES, _PACKAGE, _INSIDE, _CODE_KEYS = (
    re.compile(_DATA["names"][name]) for name in ("random", "hashes", "packages", "inside", "code_keys")
)
