"""`run.toml`: what it says is used, what it says wrongly is told, what is typed goes before it."""

import json
import shutil
import tomllib

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tracelib.cli import main
from tracelib.errors import BadParameter, BadTrace
from tracelib.manifest import ANY, TABLES, Manifest, manifest, manifest_of
from tracelib.options import OPTIONS


def _written(folder, text):
    (folder / "run.toml").write_text(text)
    return folder / "run.toml"


def test_the_example_of_the_documentation_is_read_whole(tmp_path):
    for name in ("cpu.stat.before", "cpu.stat.after", "requests.jsonl"):
        (tmp_path / name).touch()
    said = manifest(_written(tmp_path, _page_parts()[0]))
    assert said == Manifest(
        title="decode stalls, node 7",
        ticket="OPS-42",
        clocks={"realtime": 1796006342707545412, "monotonic": 28099634646, "boottime": 28099641082},
        ftrace_clock="mono",
        offsets={"perf.*": 1796006314607910766},
        roles={"my_server.*": "api_server"},
        pids={"*": {1: 4155}, "worker_TP1.*": {1: 4290}},
        host="gpu-node-7",
        cpus=32,
        allowed_cpus=16,
        cpu_max="200000 100000",
        changed=(
            "allowed_cpus was 32 when the recording began, 16 at its end",
            "cpu_max was 400000 100000 when the recording began, 200000 100000 at its end",
        ),
        cpu_stat=(tmp_path / "cpu.stat.before", tmp_path / "cpu.stat.after"),
        seconds=26.5,
        requests=tmp_path / "requests.jsonl",
        requests_clock="monotonic",
        mean_input_tokens=24850,
    )


def test_the_page_names_every_key_and_no_other():
    example, rest = _page_parts()
    tables = tomllib.loads(example)
    top = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    shown = {"": top, **{key: tables[key] for key in tables if key not in top}}
    assert shown.keys() == TABLES.keys()
    for table, keys in TABLES.items():
        if ANY not in keys:
            assert set(shown[table]) <= set(keys)
            assert all(key in example for key in keys), table
    assert table_of_flags() in rest


def _page_parts():
    page = (ROOT / "docs" / "run-toml.md").read_text()
    example = page.split("```toml")[1].split("```")[0]
    return example, page.replace(example, "")


def table_of_flags():
    rows = ["| key | flag | value |", "|---|---|---|"]
    for each in OPTIONS.values():
        keys = ", ".join(f"`[{key}]`" if each.kind is dict else f"`{key}`" for key in each.keys)
        rows += [f"| {keys} | `{each.flag}` | {each.help} |"] if keys else []
    return "\n".join(rows) + "\n"


def test_a_folder_without_one_says_nothing(tmp_path):
    assert manifest_of([tmp_path, tmp_path / "absent"]) == Manifest()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[clock]\n", r"clock.*Did you mean 'clocks'"),
        ("[host]\ncpu = 3\n", r"cpu.*Did you mean 'cpus'"),
        ("titel = 'x'\n", r"titel.*Did you mean 'title'"),
    ],
)
def test_a_name_that_does_not_exist_is_told_with_the_one_meant(tmp_path, text, told):
    with pytest.raises(BadParameter, match=told):
        manifest(_written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[host\n", "line 1"),
        ("schema = 'tracelib.run/9'\n", r"tracelib\.run/1"),
        ("[host]\ncpus = '3'\n", r"host\.cpus.*whole number"),
        ("[host]\ncpus = true\n", r"host\.cpus.*whole number"),
        ("[offsets]\n'a' = 1.5\n", r"offsets\.a.*whole number"),
        ("[pids]\nx = 1\n", r"pids\.x.*process or thread id"),
        ("[pids]\n'\N{SUPERSCRIPT TWO}' = 1\n", "process or thread id"),
        (f"[pids]\n1 = {10**23}\n", r"pids\.1.*from 0 to"),
        (f"[offsets]\n'*' = {10**23}\n", r"offsets\.\*.*from -"),
        ("[clocks]\nrealtime_ns = -1\n", r"clocks\.realtime_ns.*from 0"),
        (f"[host]\ncpus = {10**23}\n", r"host\.cpus.*from 1 to"),
        ("[quota]\nseconds = nan\n", r"quota\.seconds.*from 0"),
        (f"title = {'[' * 5000}\n", "nested too deep"),
        ('[requests]\nfile = "a\\u0000b"\n', "no such file"),
        ("[quota]\ncpu_stat_before = 'a'\n", "belong together"),
        ("[requests]\nfile = 'absent'\n", "no such file"),
        ("[requests]\nfile = '../../etc/hostname'\n", "outside of its folder"),
    ],
)
def test_what_cannot_be_used_is_told_by_key(tmp_path, text, told):
    with pytest.raises(BadTrace, match=told):
        manifest(_written(tmp_path, text))


def test_a_bad_manifest_ends_the_command_with_one_line(tmp_path, capsys):
    shutil.copy(ROOT / "sample_traces" / "starved" / "perf.txt.gz", tmp_path)
    _written(tmp_path, "[clock]\n")
    assert main(["inspect", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip().split("\n")[-1]
    assert said.startswith("tracelib: ")
    assert "clocks" in said


@pytest.fixture
def two_clocks(captures, tmp_path):
    """A Kineto file and an ftrace text of one run, and the run's own reading of its clocks."""
    source = captures / "healthy"
    for name in ("worker_TP0.pt.trace.json.gz", "ftrace.txt.gz"):
        shutil.copy(source / name, tmp_path)
    return tmp_path, json.loads((source / "meta.json").read_text())


def test_a_reading_of_the_clocks_ties_what_declares_nothing(two_clocks):
    folder, meta = two_clocks
    pair = "".join(f"{clock}_ns = {meta[f'{clock}_ns']}\n" for clock in ("realtime", "monotonic"))
    _written(folder, f"[clocks]\n{pair}ftrace = 'mono'\n")
    sources = tracelib.load(folder).sources
    assert sources["tied_by"].to_list() == ["declared", "declared"]
    offset = sources.filter(pl.col("format") == "ftrace")["offset_ns"].item()
    assert offset == meta["realtime_ns"] - meta["monotonic_ns"]


def test_roles_offsets_and_the_host_s_name_are_taken_and_what_is_given_goes_first(two_clocks):
    folder, _ = two_clocks
    _written(
        folder,
        "[offsets]\n'ftrace*' = 5\n[host]\nname = 'n7'\ncpus = 32\n"
        "[roles]\n'worker_TP0' = 'engine'\n'api' = 'system'\n",
    )
    said = tracelib.load(folder)
    ftrace = said.sources.filter(pl.col("format") == "ftrace")
    assert (ftrace["tied_by"].item(), ftrace["offset_ns"].item()) == ("user", 5)
    assert set(said.sources["host"]) == {"n7"}
    assert set(said.sources["cpus"]) == {32}
    assert set(said.threads.filter(pl.col("name") == "worker_TP0")["role"]) == {"engine"}
    given = tracelib.load(folder, offsets={"ftrace*": 7}, roles={"worker_TP0": "recorder"})
    assert given.sources.filter(pl.col("format") == "ftrace")["offset_ns"].item() == 7
    assert set(given.threads.filter(pl.col("name") == "worker_TP0")["role"]) == {"recorder"}


def test_a_host_s_name_that_the_files_contradict_is_told_and_not_used(two_clocks, captures):
    """perf calls the machine `vm`: under the manifest's name the other files would be another machine's."""
    folder, _ = two_clocks
    shutil.copy(captures / "healthy" / "perf.txt.gz", folder)
    _written(folder, "[host]\nname = 'n7'\n")
    run = tracelib.load(folder)
    assert set(run.threads["host"]) == {"vm"}
    assert run.health["message"].str.contains("another name than the files do .vm.").sum() == 1
    assert not run.health["message"].str.contains("n7").any()
    _written(folder, "[host]\nname = 'vm'\n")
    run = tracelib.load(folder)
    assert set(run.threads["host"]) == {"vm"}
    assert not run.health["message"].str.contains("another name").any()
