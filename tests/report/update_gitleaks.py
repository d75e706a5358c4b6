"""Writes tracelib/report/gitleaks.toml from a release of gitleaks: `config/gitleaks.toml` and `LICENSE`.

python -m tests.report.update_gitleaks v8.30.1 FOLDER_OF_THE_RELEASE
"""

import json
import re
import sys
import tomllib
from pathlib import Path

from tests.conftest import ROOT

TARGET = ROOT / "tracelib" / "report" / "gitleaks.toml"
#: Rules that go by a secret's place: private.toml knows those places. The names of files that gitleaks asks
#: for stand in no trace, and the gaps of the two for curl take time exponential in the number of lines.
BY_PLACE = {"generic-api-key", "private-key", "curl-auth-header", "curl-auth-user"}
#: What stands before the issuer's name changes no match, and makes each place of a text a start.
BEFORE = r"[\w.-]{0,50}?"
#: In code a credential ends at a quote or a blank; in a trace, at what cannot belong to it.
ENDS = (
    r"""(?:[\x60'"\s;]|\\[nr]|$)""",
    r"""(?:[\x60'"\s;]|\\[nr]|$|\b)""",
    r"""(?:$|[\\'"\x60\s<),])""",
    r"(?:[^\w-]|\z)",
    r"(?:[^a-zA-Z0-9+/]|\z)",
)
STARTS = re.compile(r"""^(\(\?i\))?(?:\\b|\(\?:\^\|\[[^\]]*\]\))""")
#: One without an end may be longer than the rule says.
REST = r"[\w-]*"


def python(pattern: str) -> str:
    """Return a regular expression of RE2 in Python's syntax: flags hold to the end of their group there."""
    pattern = pattern.replace(BEFORE, "").replace("[[:alnum:]]", "[A-Za-z0-9]")
    open_end = not pattern.endswith((*ENDS, r"\b"))
    for end in ENDS:
        pattern = pattern.replace(end, "(?![A-Za-z0-9])")
    pattern = STARTS.sub(r"\1(?<![A-Za-z0-9])", pattern) + REST * open_end
    while flag := re.search(r"\(\?([is]+)\)", pattern):
        end = _end_of_group(pattern, flag.end())
        pattern = f"{pattern[: flag.start()]}(?{flag[1]}:{pattern[flag.end() : end]}){pattern[end:]}"
    return pattern


def _end_of_group(pattern: str, start: int) -> int:
    depth = 0
    for part in re.finditer(r"\\.|\[(?:\\.|[^\]\\])*\]|[()]", pattern[start:]):
        depth += (part[0] == "(") - (part[0] == ")")
        if depth < 0:
            return start + part.start()
    return len(pattern)


def written(version: str, folder: Path) -> str:
    """Return the file's text."""
    rules = tomllib.loads((folder / "config" / "gitleaks.toml").read_text(encoding="utf-8"))["rules"]
    kept = [rule for rule in rules if "path" not in rule and rule["id"] not in BY_PLACE]
    told = (
        f"The rules of gitleaks {version}, https://github.com/gitleaks/gitleaks, in Python's syntax.\n"
        "Made by `python -m tests.report.update_gitleaks`, which says what is left out. Do not edit.\n\n"
    )
    licence = (folder / "LICENSE").read_text(encoding="utf-8")
    head = "".join(f"# {line}".rstrip() + "\n" for line in (told + licence).splitlines())
    lines = (
        f"[[rule]]\nid = {json.dumps(rule['id'])}\nkeywords = {json.dumps(rule['keywords'])}\n"
        f"pattern = '''{python(rule['regex'])}'''\n"
        for rule in kept
    )
    return "\n".join([head, *lines])


if __name__ == "__main__":
    TARGET.write_text(written(sys.argv[1], Path(sys.argv[2])), encoding="utf-8")
