"""The rules of gitleaks find, in a trace's texts, what they are made for."""

import random
import re
import string
import tomllib

import pytest

from tests.conftest import ROOT
from tests.report.update_gitleaks import python
from tracelib.report.redact import Redactor

RULES = tomllib.loads((ROOT / "tracelib" / "report" / "gitleaks.toml").read_text(encoding="utf-8"))["rule"]
CATEGORIES = {"DIGIT": string.digits, "WORD": string.ascii_letters + string.digits, "SPACE": " "}


def made(parts, dice):
    """Return a text that the parsed regular expression matches, but for what it says of its surroundings."""
    return "".join(_made(str(kind), value, dice) for kind, value in parts)


def _made(kind, value, dice):
    if kind == "LITERAL":
        return chr(value)
    if kind == "IN":
        return dice.choice([c for part in value for c in _characters(str(part[0]), part[1])] or ["x"])
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least, _, repeated = value
        return "".join(made(repeated, dice) for _ in range(least))
    if kind == "SUBPATTERN":
        return made(value[3], dice)
    return made(dice.choice(value[1]), dice) if kind == "BRANCH" else "x" * (kind in ("ANY", "NOT_LITERAL"))


def _characters(kind, value):
    if kind == "RANGE":
        return map(chr, range(value[0], value[1] + 1))
    return [chr(value)] if kind == "LITERAL" else CATEGORIES[str(value).removeprefix("CATEGORY_")]


def credential(rule, dice):
    """Return a text that a rule matches and has one of its words, and the credential in it."""
    pattern = re.compile(rule["pattern"])
    parsed = re._parser.parse(rule["pattern"])
    for _ in range(20):
        text = made(parsed, dice)
        match = pattern.search(text)
        if match and any(word in text.lower() for word in rule["keywords"]):
            ends = [n for n in range(1, pattern.groups + 1) if match.end(n) == match.end()]
            return text, match[ends[0] if ends else 0]
    return None


@pytest.fixture(scope="module")
def pairs():
    dice = random.Random(15)
    return {rule["id"]: credential(rule, dice) for rule in RULES}


@pytest.mark.parametrize("form", ["{}", 'run("{}")', "f({}, x)", "x/{}"])
def test_each_rule_finds_its_credential_wherever_it_stands(form, pairs):
    # A few ask for a word that their credential does not hold.
    assert list(pairs.values()).count(None) < 8
    texts = {name: (form.format(pair[0]), pair[1]) for name, pair in pairs.items() if pair}
    clean = {name: Redactor(level="standard").text(text, recorded=True) for name, (text, _) in texts.items()}
    middles = {name: secret[len(secret) // 3 :] for name, (_, secret) in texts.items()}
    assert [name for name in texts if middles[name] in clean[name]] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (r"ghp_[0-9a-z]{36}", r"ghp_[0-9a-z]{36}[\w-]*"),
        (
            r"""\b(p8e-(?i)[a-z]{3})(?:[\x60'"\s;]|\\[nr]|$)""",
            r"(?<![A-Za-z0-9])(p8e-(?i:[a-z]{3}))(?![A-Za-z0-9])",
        ),
        (r"(?i)[\w.-]{0,50}?(?:x)=([[:alnum:]]{2})", r"(?i:(?:x)=([A-Za-z0-9]{2})[\w-]*)"),
    ],
)
def test_regular_expressions_of_re2_are_said_in_python_s_syntax(given, expected):
    assert python(given) == expected
