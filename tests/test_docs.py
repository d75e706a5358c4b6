"""The documentation: its commands are ones that exist, its snippets give what it says, the site is whole."""

import ast
import contextlib
import gzip
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from statistics import median

import pytest

from tests.conftest import ROOT
from tracelib import cli

PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "sample_traces/**/*.md", "tracelib/**/*.md", "benchmarks/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"  # tells of what was
]
FENCE = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SAMPLE = ROOT / "sample_traces" / "starved"


def shell_words(line):
    """Return the words of the `tracelib` commands of a line as lists, each up to a pipe or the like."""
    lexer = shlex.shlex(line.replace("…", ""), posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    commands, into_file = [[]], False
    try:
        for word in lexer:
            if re.fullmatch(r"[|&;()<>]+", word):
                into_file = "<" in word or ">" in word
                commands += [] if into_file else [[]]
            elif into_file:
                into_file = False
            else:
                commands[-1].append(word)
    except ValueError:  # a quote that ends on another line, or an apostrophe
        return []
    return [words[1:] for words in commands if words and words[0].rpartition("/")[2] == "tracelib"]


def fenced(text):
    """Return the commands in a page's blocks; a backslash joins lines."""
    lines = [line for block in FENCE.findall(text) for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [words for line in lines for words in shell_words(re.sub(r"^\$ ", "", line.strip()))]


def inline(text):
    """Return the commands that stand in a sentence; they may leave out what does not matter there."""
    spans = re.findall(r"`(tracelib [^`]+)`", FENCE.sub("", text))
    return [words for span in spans for words in shell_words(span.replace("\n", " "))]


def examples():
    """Return the examples of every command's help, without what is said beside them."""
    text = (ROOT / "tracelib" / "cli" / "commands.toml").read_text()
    helped = [about["help"] for about in tomllib.loads(text).values()]
    lines = [re.split(r" {2,}", line.strip())[0] for each in helped for line in each.splitlines()]
    return [words for line in lines if line.startswith("tracelib ") for words in shell_words(line)]


PARSER = cli.parser()


def refused(words):
    """Return what the command line says against a command; None if it takes it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            PARSER.parse_args(words)
    except SystemExit as stopped:
        return None if stopped.code == 0 else said.getvalue().splitlines()[-1]
    return None


def test_every_command_in_a_block_or_in_a_command_s_help_is_one_that_the_parser_takes():
    commands = [(path.name, words) for path in PAGES for words in fenced(path.read_text())]
    commands += [("--help", words) for words in examples()]
    assert {words[0] for _, words in commands} >= {run.__name__ for run in cli.RUNS} - {"manual"}
    wrong = [(page, shlex.join(words), said) for page, words in commands if (said := refused(words))]
    assert wrong == []


def test_every_command_in_a_sentence_has_flags_that_exist():
    commands = [(path.name, words) for path in PAGES for words in inline(path.read_text())]
    assert len(commands) > 40
    wrong = [
        (page, shlex.join(words), said)
        for page, words in commands
        if words[0] != "COMMAND"
        and (said := refused(words))
        and "the following arguments are required" not in said
        and "expected one argument" not in said
    ]
    assert wrong == []


def test_a_command_that_does_not_exist_would_be_found():
    assert fenced("```\n.venv/bin/tracelib reprot x > /b/tracelib -v | head\n```") == [["reprot", "x", "-v"]]
    assert "invalid choice" in refused(["reprot", "x"])
    assert "unrecognized arguments: --colour" in refused(["report", "x", "--colour"])
    assert refused(["report", "x", "--redact", "strict"]) is None


def snippets(page):
    """Return a page's Python blocks with what stands under each, or None."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)\n```\n)?", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def answers():
    """Give the values of the cookbook's ten questions, and what the page says of each."""
    names, given = {}, []
    with contextlib.chdir(ROOT):
        for code, said in snippets("cookbook.md"):
            body = ast.parse(code).body
            if not said:
                exec(code, names)
                continue
            exec(compile(ast.Module(body[:-1], []), "cookbook", "exec"), names)
            given.append((eval(compile(ast.Expression(body[-1].value), "cookbook", "eval"), names), said))
    return given


@pytest.fixture(scope="module")
def events():
    """Give the events of the workers by rank, read by the standard library."""
    files = [SAMPLE / f"worker_TP{rank}.pt.trace.json.gz" for rank in (0, 1)]
    read = [json.loads(gzip.decompress(file.read_bytes()))["traceEvents"] for file in files]
    return [[event for event in each if event.get("ph") == "X"] for each in read]


def on_gpu(events):
    return [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def test_the_cookbook_gives_what_it_says(answers):
    assert len(answers) == 10
    for value, said in answers:
        assert str(value) == said


def test_the_kernels_of_the_cookbook(answers, events):
    spent, calls = Counter(), Counter()
    for event in (e for rank in events for e in on_gpu(rank) if e["cat"] == "kernel"):
        spent[event["name"]] += event["dur"]
        calls[event["name"]] += 1
    ((name, us),) = spent.most_common(1)
    assert answers[0][0] == (name[:37], pytest.approx(us / 1e3, abs=0.001), calls[name])


def test_the_idle_time_of_the_cookbook(answers, events):
    for rank, each in enumerate(events):
        free, until = 0.0, None
        for event in sorted(on_gpu(each), key=lambda e: e["ts"]):
            free += 0 if until is None else max(0.0, event["ts"] - until)
            until = max(until or 0.0, event["ts"] + event["dur"])
        assert answers[1][0][rank] == (rank, pytest.approx(free / 1e3, abs=0.01))


def test_what_the_workload_logged_is_what_the_cookbook_says(answers):
    truth = json.loads((SAMPLE / "truth.json").read_text())
    count, ms = answers[2][0]
    assert count == truth["requests"]
    assert 0.99 * truth["tokenize_ns_total"] < ms * 1e6 < truth["tokenize_ns_total"]
    assert answers[9][0][0] == truth["steps"]


def test_the_launches_of_the_cookbook(answers, events):
    delays, slow = [], {}
    for each in events:
        calls = [e for e in each if e.get("cat") in ("cuda_runtime", "cuda_driver")]
        begun = {e["args"]["correlation"]: e["ts"] for e in calls}
        delays += [e["ts"] - begun[e["args"]["correlation"]] for e in on_gpu(each)]
        for event in (e for e in calls if "LaunchKernel" in e["name"]):
            slow.setdefault(event["name"], []).append(event["dur"])
    count, middle = answers[3][0]
    assert (count, middle) == (len(delays), pytest.approx(median(delays), abs=0.01))
    p99 = {name: sorted(durations)[round(0.99 * (len(durations) - 1))] for name, durations in slow.items()}
    name, us, calls = answers[4][0]
    assert name == max(p99, key=p99.get)
    assert (us, calls) == (pytest.approx(p99[name], abs=0.01), len(slow[name]))


def test_the_collectives_of_the_cookbook(answers, events):
    starts = [sorted(e["ts"] for e in on_gpu(each) if "AllReduce" in e["name"]) for each in events]
    late = [one - zero for zero, one in zip(*starts, strict=True)]
    last, of, middle = answers[5][0]
    assert (last, of) == (sum(each > 0 for each in late), len(late))
    assert middle == pytest.approx(median(map(abs, late)), abs=0.01)


def test_the_threads_of_the_cookbook(answers):
    text = gzip.decompress((SAMPLE / "perf.txt.gz").read_bytes()).decode()
    # A thread has the name of its process until it gives itself one: it counts under its last.
    last = {tid: name for name, tid in re.findall(r"prev_comm=(\S+) prev_pid=(\d+)", text)}
    left = Counter(last[tid] for tid in re.findall(r"prev_pid=(\d+) .* prev_state=R\+? ==>", text))
    samples = re.findall(r"^(\S+) +\d+/(\d+) .* cpu-clock/freq=499/: *$", text, flags=re.MULTILINE)
    seen = Counter(last.get(tid, name) for name, tid in samples)
    assert answers[6][0] == left.most_common(3)
    assert answers[7][0] == seen.most_common(3)
    inner = re.findall(r"^tokenizer +.*cpu-clock/freq=499/: *\n\s+\S+ .*\((.*)\)$", text, re.MULTILINE)
    assert answers[8][0] == Counter(path.rpartition("/")[2] for path in inner).most_common(1)[0]


#: Those of the tutorial's commands that a machine with the samples alone can run; two need its report.
RUNS_HERE = {"inspect": False, "whatif": False, "compare": False, "capacity": False, "report": True}


def steps():
    """Return the tutorial's commands, each with what stands under it."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    parts = re.findall(r"```\n(tracelib .*?)```\n(?:\n```text\n(.*?)```\n)?", text, flags=re.DOTALL)
    return [(words, said) for block, said in parts for words in fenced(f"```\n{block}```")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough) if long else n for n, long in RUNS_HERE.items()]
)
def test_the_tutorial_s_commands_print_what_it_says(name, tmp_path, monkeypatch, capsys):
    (words, said) = next((words, said) for words, said in steps() if words[0] == name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert said.splitlines()
    for line in said.splitlines():
        assert line in shown, line
    if name == "report":
        later = [words for words, _ in steps() if words[0] in ("attach", "monitor")]
        assert len(later) == 2
        for words in later:
            assert cli.main(words) == 0


@pytest.mark.slow
def test_the_site_is_whole_asks_no_other_host_and_can_be_searched_from_disk(tmp_path):
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", "-b", "html"]
    done = subprocess.run(
        [*build, "-d", str(tmp_path / "trees"), ".", str(tmp_path / "site")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.relative_to(tmp_path / "site"): path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) > 30
    fetched = re.compile(r"""(?:\bsrc|<link\b[^>]*\bhref|<form\b[^>]*\baction)=["'](?:https?:)?//[^"']+""")
    styles = [path.read_text() for path in (tmp_path / "site").rglob("*.css")]
    assert {name: found for name, text in pages.items() if (found := fetched.findall(text))} == {}
    assert [
        found for text in styles for found in re.findall(r"(?:url\(|@import)\W*(?:https?:)?//", text)
    ] == []
    assert "tracelib whatif" in next(text for name, text in pages.items() if name.name == "commands.html")
    index = (tmp_path / "site" / "searchindex.js").read_text()
    assert index.startswith("Search.setIndex(")  # a script, not a request: it works from disk
    assert "throttl" in index
