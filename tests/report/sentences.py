"""`python -m tests.report.sentences`: write docs/sentences.md, every sentence that tracelib can print.

Read off the sources, so that none is missing: texts of the TOML files, of Python (an f-string's values as
examples, "12 %", or as their names) and of the page's templates. A sentence that is put together from pieces
stands there in its pieces.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tracelib"
PAGE = ROOT / "docs" / "sentences.md"
HEAD = """# Every sentence that tracelib can print

Written by `python -m tests.report.sentences` from the sources; a test keeps it in step. After a change of
words, read it as a whole, with [style.md](style.md) beside it. Figures are examples, names in braces stand
for values, `[a|b]` is one or the other, and a sentence that is put together from pieces stands here in its
pieces.
"""
#: What of the sources stands under which heading.
PARTS = {
    "What everything is called": ["words.toml", "words.py", "charts/words.toml"],
    "Verdict and findings": ["findings"],
    "Analyses: windows, requests, capacity, why something is not known": ["analyses"],
    "Charts": ["charts"],
    "The page, the ticket, the index, monitoring, redaction": ["report"],
    "Files, clocks and roles": ["sources", "align", "companions.py", "manifest.py", "loading.py"],
    "Errors": ["errors.py"],
    "Recording and checking": ["record"],
    "Commands, parameters and exports": ["cli", "options.py", "options.toml", "export"],
}
#: Files that hold patterns and data, or write documents of the project.
NOT_PRINTED = {"private.toml", "rules.toml", "roles.toml", "schema.toml", "looks.toml", "__main__.py"}
#: What a function makes of a value, as an example.
EXAMPLES = {
    "share": "12 %",
    "seen_share": "at least 12 %",
    "share_in": "12 %",
    "duration": "3.45 ms",
    "count": "1,234",
    "cpus": "2 CPUs",
    "moment": "+1.234567 s",
}
#: So many words make a text worth reading.
FEWEST_WORDS = 4
WORD = re.compile(r"(?<![\w.\\/$-])[A-Za-z][a-z']*(?![\w\\/=(]|:\S)")
NOT_PROSE = re.compile(
    r"^\s*[<^(\\#@.|]|</|\(\?|\\[bdws.]|^[A-Z_]+=|^SELECT |^CREATE |^CASE |^import |;\}|px;|^-|\{%|=\"|"
    r"^(?:sum|avg) by |:seconds5m|^np\.|^mkdir |^echo |^for e in |^cleaned\(|\Z(?<=done)"
)


def generated() -> str:
    """Return the page."""
    seen: set[str] = set()
    files = {
        head: [file for name in names for file in _files(SOURCES / name)] for head, names in PARTS.items()
    }
    told = {file for listed in files.values() for file in listed}
    files["Everything else"] = [file for file in _files(SOURCES) if file not in told]
    parts = [f"## {head}\n\n{_listed(listed, seen)}" for head, listed in files.items()]
    return "\n\n".join([HEAD.rstrip(), *parts]) + "\n"


def _listed(files: list[Path], seen: set[str]) -> str:
    blocks = []
    for file in files:
        new = [text for text in dict.fromkeys(texts(file)) if text not in seen]
        seen.update(new)
        if new:
            lines = "\n".join(f"- {text}" for text in new)
            blocks.append(f"**{file.relative_to(SOURCES)}**\n\n{lines}")
    return "\n\n".join(blocks)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(file for suffix in READERS for file in path.rglob(f"*{suffix}"))
    return [file for file in found if file.name not in NOT_PRINTED]


def texts(file: Path) -> Iterator[str]:
    """Yield the sentences in a file, each on one line."""
    source = file.read_text(encoding="utf-8")
    for text in READERS[file.suffix](source):
        line = re.sub(r"\s+", " ", text).strip().replace("<", "&lt;").replace("|", "\\|")
        words = WORD.findall(re.sub(r"\{[^}]*\}", "", line))
        if len(words) >= FEWEST_WORDS and not NOT_PROSE.search(text):
            yield line


# -------------------- Python
def _of_python(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    silent = {id(node) for each in ast.walk(tree) for node in _never_printed(each)}
    yield from _strings(tree, silent)


def _never_printed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what of a node no user sees: docstrings, patterns, descriptions of the schema."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr):
            yield first.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("re.compile", "Meta", "TypeError"):
        yield from (child for child in ast.walk(node) if isinstance(child, ast.Constant | ast.JoinedStr))


def _strings(node: ast.AST, silent: set[int]) -> Iterator[str]:
    if id(node) in silent:
        return
    if isinstance(node, ast.JoinedStr | ast.Constant):
        text = _text(node)
        if text is not None:
            yield text
        for child in ast.walk(node):
            if isinstance(child, ast.FormattedValue):
                yield from _strings(child.value, silent)
        return
    for child in ast.iter_child_nodes(node):
        yield from _strings(child, silent)


def _text(node: ast.expr) -> str | None:
    """Return a string as a reader may see it; None for what is not one."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_value(part) for part in node.values)
    return None


def _value(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.IfExp):
        return f"[{_choice(value.body)}|{_choice(value.orelse)}]"
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rsplit(".", 1)[-1]
        if name == "counted" and len(value.args) > 1:
            nouns = ast.unparse(value.args[-1]).strip("'")
            return f"3 {nouns}{'' if len(value.args) > 2 else 's'}"
        return EXAMPLES.get(name) or f"{{{name.strip('_')}}}"
    return f"{{{re.sub(r'[^A-Za-z_]+', ' ', ast.unparse(value)).strip()[:30]}}}"


def _choice(node: ast.expr) -> str:
    text = _text(node)
    return _value(node) if text is None else text


# -------------------- TOML, and the page's templates
def _of_toml(source: str) -> Iterator[str]:
    yield from _leaves(tomllib.loads(source))


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():
            yield from _leaves(child)
    elif isinstance(value, list):
        if len(value) == 2 and all(isinstance(child, str) for child in value) and " " not in value[0][:1]:
            yield ": ".join(value) if len(value[0]) < 40 else value[0]
            yield from value[1:] if len(value[0]) >= 40 else ()
        else:
            for child in value:
                yield from _leaves(child)


def _of_template(source: str) -> Iterator[str]:
    """Yield the texts between a template's tags, and those in the calls of its macros."""
    bare = re.sub(r"\{#.*?#\}|<style>.*?</style>|<script.*?</script>", "", source, flags=re.DOTALL)
    quoted = re.compile(r'"([^"{}]*)"')
    for block in re.findall(r"\{%.*?%\}|\{\{.*?\}\}", bare, flags=re.DOTALL):
        yield from quoted.findall(block)
    inline = re.sub(r"</?(?:b|em|small|strong|code|span|a|i)\b[^<>]*>", "", bare)
    plain = re.sub(r"\{\{.*?\}\}", "{…}", inline, flags=re.DOTALL)
    plain = re.sub(r"\{%-? *(?:if|elif|else|endif|for|endfor).*?%\}", " ", plain, flags=re.DOTALL)
    yield from re.split(r"<[^<>]*>|\{%.*?%\}", plain)


READERS = {".py": _of_python, ".toml": _of_toml, ".j2": _of_template}


def main() -> None:
    """Write the page."""
    PAGE.write_text(generated(), encoding="utf-8")


if __name__ == "__main__":
    main()
