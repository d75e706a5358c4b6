"""`tracelib redact`: what was planted is nowhere in the copy; events and their times are the same."""

import base64
import bz2
import gzip
import json
import lzma
import re
import sqlite3
import struct
import zlib

import pytest

import tracelib
from tests.conftest import ROOT
from tests.cut import cut
from tests.report.test_leaks import written
from tests.sources.nsys.conftest import TABLES
from tracelib.cli import main
from tracelib.errors import BadParameter, BadTrace, TraceError
from tracelib.report.redacted_copy import redacted_copy
from tracelib.schema import FRAMES

USER, HOST = "mariella", "gpu-node-7"
PROMPT = (
    "Please summarise the quarterly figures of our company for me and tell me which of the branches "
    "did worse than last year and why"
)
PLANTED = {
    "key": "sk-abcdefghijklmnopqrstuvwx",
    "user": USER,
    "host": HOST,
    "mail": "m.rossi@example.org",
    "address": "10.42.7.19",
    "password": "hunter2hunter2",
    "prompt": PROMPT,
    "home": f"/home/{USER}",
}


def plain(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def none_left(path):
    data = plain(path)
    assert [name for name, secret in PLANTED.items() if secret.encode() in data] == []
    assert [name for name, secret in PLANTED.items() if secret.encode("utf-16-le") in data] == []


def same_events(before, after):
    """Compare every column that holds no name, and return both traces."""
    one, two = tracelib.load(before), tracelib.load(after)
    for name in ("slices", "gpu_ops", "samples", "stacks", "sched", "counters", "threads"):
        kept = [c for c, dtype in FRAMES[name].items() if dtype.is_numeric()]
        assert one.frames()[name].select(kept).equals(two.frames()[name].select(kept)), name
    return one, two


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    cut(ROOT / "sample_traces" / "starved", folder, 46.2, 46.23)
    return folder


def planted(path, target, old_new):
    text = gzip.decompress(path.read_bytes()).decode()
    for old, new in old_new:
        assert old in text, old
        text = text.replace(old, new)
    target.write_bytes(gzip.compress(text.encode()))
    assert any(secret.encode() in plain(target) for secret in PLANTED.values())
    return target


def test_kineto(server, tmp_path):
    source = tmp_path / "worker_TP0.pt.trace.json.gz"
    secrets = {
        "host_name": HOST,
        "path": f"/home/{USER}/run/x.py",
        "api_key": PLANTED["key"],
        "db_password": PLANTED["password"],
        "peer": f"tcp://{PLANTED['address']}:29500",
        "mail": PLANTED["mail"],
        "prompt": PROMPT,
        "by": f"started by {USER} on {HOST}",
        "escaped": f'"/home/{USER}"\n{PLANTED["mail"]}',
    }
    extra = json.dumps(secrets)[1:-1]
    op = re.search('"aten::[a-z_]+"', plain(server / "worker_TP0.pt.trace.json.gz").decode())[0]
    named = [
        ('"schemaVersion":1', f'"schemaVersion":1,{extra}'),
        (op, json.dumps(f"/home/{USER}/model.py(12): mm")),
    ]
    planted(server / "worker_TP0.pt.trace.json.gz", source, named)
    redactor = redacted_copy(source, tmp_path / "out_worker_TP0.json.gz")
    none_left(tmp_path / "out_worker_TP0.json.gz")
    json.loads(plain(tmp_path / "out_worker_TP0.json.gz"))
    assert redactor.counts["assignment"] == 2  # api_key and db_password
    one, two = same_events(source, tmp_path / "out_worker_TP0.json.gz")
    assert "/.../model.py(12): mm" in two.slices["name"].cast(str).to_list()
    assert one.slices["name"].n_unique() == two.slices["name"].n_unique()


def test_numbers_stay_digit_for_digit_and_a_file_cut_short_stays_cut(tmp_path):
    numbers = '"pid":-1,"tid":36893488147419103232,"ts":5149387613158.54417,"dur":1.10'
    event = f'{{"ph":"X","cat":"cpu_op","name":"a",{numbers}}}'
    (tmp_path / "x.pt.trace.json").write_text(
        f'{{"schemaVersion": 1, "traceEvents": [\n{event}\n,{{"ph":"X","na'
    )
    redactor = redacted_copy(tmp_path / "x.pt.trace.json", tmp_path / "y.json")
    assert (tmp_path / "y.json").read_text() == f'{{"schemaVersion":1,"traceEvents":[\n{event}'
    assert redactor.counts == {"unreadable piece": 1}


@pytest.mark.parametrize("between", ["", " ", '"x": 1, '])
def test_an_event_list_keeps_its_form(between, tmp_path):
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2,"args":{"l":[{"b":"c"}]}}'
    (tmp_path / "x.json").write_text(f'{{{between}"traceEvents":[{event}], "tail":[{{"k":"v"}}]}}')
    redacted_copy(tmp_path / "x.json", tmp_path / "y.json")
    whole = json.loads((tmp_path / "x.json").read_text())
    assert json.loads((tmp_path / "y.json").read_text()) == whole
    (tmp_path / "list.json").write_text(f"[{event},{event}]")
    redacted_copy(tmp_path / "list.json", tmp_path / "z.json")
    assert json.loads((tmp_path / "z.json").read_text()) == whole["traceEvents"] * 2


def test_perf(server, tmp_path):
    source = planted(
        server / "perf.txt.gz",
        tmp_path / "perf.txt.gz",
        [
            ("# hostname : vm", f"# hostname : {HOST}"),
            (
                "/usr/bin/perf record",
                f"/home/{USER}/bin/perf record -o {HOST}.data --token={PLANTED['password']}",
            ),
            ("/opt/serving/", f"/home/{USER}/serving/"),
            ("\nworker_TP1 ", f"\n{USER}_TP1 "),
        ],
    )
    redacted_copy(source, tmp_path / "perf_clean.txt.gz")
    none_left(tmp_path / "perf_clean.txt.gz")
    one, _ = same_events(source, tmp_path / "perf_clean.txt.gz")
    assert one.samples.height > 20


def test_ftrace(server, tmp_path):
    source = planted(
        server / "ftrace.txt.gz", tmp_path / "ftrace.txt.gz", [("comm=worker_TP1", f"comm={USER}_TP1")]
    )
    lines = gzip.decompress(source.read_bytes()).decode().splitlines(keepends=True)
    at = next(line for line in lines if "sched_switch" in line).split(": sched_switch")[0]
    for text in (
        f"B|771|{PROMPT}",
        f"B|771|{PLANTED['key']} of {PLANTED['mail']} at /home/{USER}",
        f"I|771|{PLANTED['address']}",
    ):
        lines.append(f"{at}: tracing_mark_write: {text}\n")
    source.write_bytes(gzip.compress("".join(lines).encode()))
    redacted_copy(source, tmp_path / "ftrace_clean.txt")
    data = plain(tmp_path / "ftrace_clean.txt")
    # Which host it was the file never says as such: that word is no secret of it.
    assert [name for name, secret in PLANTED.items() if secret.encode() in data] == []
    same_events(source, tmp_path / "ftrace_clean.txt")


@pytest.fixture
def export(tmp_path):
    """An nsys export whose strings hold a whole environment, NUL-separated, as nsys keeps it."""
    path = tmp_path / "run.sqlite"
    environment = (
        f"HOME=/home/{USER}\0OPENAI_API_KEY={PLANTED['key']}\0DB_PASSWORD={PLANTED['password']}\0PATH=/bin"
    )
    strings = [
        (1, "cudaLaunchKernel_v7000"),
        (2, "my_kernel(int)"),
        (3, environment),
        (4, PROMPT),
        (5, f"printed by {USER}: {PLANTED['password']}"),
        (6, f"worker of {USER}"),
    ]
    process = 1 << 48 | 100 << 24
    rows = {
        "StringIds": strings,
        "ProcessStreams": [(process, 6, 5)],
        "META_DATA_CAPTURE": [
            ("PROCESS_0:USER_NAME", USER),
            ("PROCESS_0:ARGUMENT_1", PLANTED["password"]),
            ("DEVICE_DISPLAY_NAME", HOST),
        ],
        "TARGET_INFO_SYSTEM_ENV": [(0, "", "Hostname", 0, HOST), (0, "", "CpuCores", 0, "32")],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (100 + i, 150 + i, 0, 1, 7, i, process, 2, 2, None, None) for i in range(0, 5000, 100)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            (50 + i, 60 + i, 0, process | 100, i, 1) for i in range(0, 5000, 100)
        ],
        "NVTX_EVENTS": [
            (10, 20, 59, f"{PLANTED['mail']} at {PLANTED['address']}", process | 100, None, 0),
            (30, 40, 59, None, process | 100, 4, 0),
        ],
        "PROCESSES": [(process, 100, f"/home/{USER}/server")],
        "META_DATA_EXPORT": [("EXPORT_SCHEMA_VERSION", "3.0")],
    }
    with sqlite3.connect(path) as database:
        for table, values in rows.items():
            database.execute(f"CREATE TABLE {table} ({TABLES[table]})")
            for row in values:
                columns = ", ".join(column.split()[0] for column in TABLES[table].split(", ")[: len(row)])
                database.execute(f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})", row)
        database.execute("CREATE TABLE extra (payload BLOB)")
        database.execute("INSERT INTO extra VALUES (?)", (b"\x00\x01" + PLANTED["key"].encode() + b"\xff",))
        database.execute("CREATE INDEX by_value ON StringIds (value)")
    database.close()
    return path


def test_nsys(export, tmp_path):
    redacted_copy(export, tmp_path / "clean.sqlite")
    none_left(tmp_path / "clean.sqlite")
    one, two = same_events(export, tmp_path / "clean.sqlite")
    assert one.gpu_ops.height == 50
    assert "my_kernel(int)" in two.gpu_ops["name"].cast(str).to_list()
    with sqlite3.connect(tmp_path / "clean.sqlite") as database:
        ((payload,),) = database.execute("SELECT payload FROM extra").fetchall()
        assert payload == bytes(len(PLANTED["key"]) + 3)
        ((count,),) = database.execute("SELECT count(*) FROM StringIds").fetchall()
        assert count == 6
    database.close()
    assert export.read_bytes() != (tmp_path / "clean.sqlite").read_bytes()


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA__Fuser__report2.sqlite",
        "D-W-Chiang__JACC.jl__report1.sqlite",
        "cestwc__balinski-and-gomory-cuda__report1.sqlite",
    ],
)
def test_other_people_s_exports_keep_their_events_and_lose_their_environment(corpus, name, tmp_path):
    source = corpus / "nsys" / name
    redacted_copy(source, tmp_path / "clean.sqlite")
    data = (tmp_path / "clean.sqlite").read_bytes()
    assert not re.search(rb"/home/[a-z]", data)
    assert not re.search(rb"(?:\0|^)(?:HOME|LOGNAME|USER|SSH_CONNECTION)=[^\0]", data)
    same_events(source, tmp_path / "clean.sqlite")


def test_what_cannot_be_rewritten_is_refused(tmp_path, server):
    (tmp_path / "x.sqlite").write_bytes(b"SQLite format 3\0" + b"\x10\x00" + b"junk" * 2000)
    with pytest.raises((BadTrace, TraceError)):
        redacted_copy(tmp_path / "x.sqlite", tmp_path / "y.sqlite")
    with pytest.raises(TraceError):
        redacted_copy(tmp_path / "nothing", tmp_path / "y.sqlite")
    with pytest.raises(BadParameter, match="does not exist yet"):
        redacted_copy(server / "perf.txt.gz", server / "ftrace.txt.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.sqlite"]


def test_the_command_says_what_it_removed(server, tmp_path, capsys):
    source = planted(
        server / "perf.txt.gz", tmp_path / "perf.txt.gz", [("/opt/serving/", f"/home/{USER}/serving/")]
    )
    assert main(["redact", str(source), "-o", str(tmp_path / "clean.txt")]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(tmp_path / "clean.txt")
    assert "home directory path" in said.err
    assert main(["redact", str(source), "-o", str(tmp_path / "clean.txt")]) == 2


@pytest.mark.parametrize("last", ['"x"', "null", "[1]", "7", "[]"])
@pytest.mark.parametrize("tail", ["", ', "z": [], "distributedInfo": {"rank": 3}'])
def test_what_is_no_event_at_the_list_s_end_costs_neither_events_nor_the_tail(last, tail, tmp_path):
    events = ", ".join(
        f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{i},"dur":1}}' for i in (0, 1)
    )
    text = f'{{"schemaVersion": 1, "traceEvents": [{events}, {last}]{tail}}}'
    (tmp_path / "x.pt.trace.json").write_text(text)
    redacted_copy(tmp_path / "x.pt.trace.json", tmp_path / "y.json")
    assert json.loads((tmp_path / "y.json").read_text()) == json.loads(text)


def test_what_is_no_event_at_the_end_of_a_damaged_list_costs_no_good_event(tmp_path):
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%d,"dur":1}'
    text = f'{{"traceEvents": [{event % 0}, {{"ph":"X","na{event % 1}, {event % 2}, null]}}'
    (tmp_path / "x.pt.trace.json").write_text(text)
    redacted_copy(tmp_path / "x.pt.trace.json", tmp_path / "y.json")
    times = [event["ts"] for event in json.loads((tmp_path / "y.json").read_text())["traceEvents"] if event]
    assert times[0] == 0
    assert times[-1] == 2


def test_no_blob_holds_what_was_packed_into_it(tmp_path):
    said = b"dismiss Giulia on Tuesday, for she is ill. " * 3
    packed = [gzip.compress(said), zlib.compress(said), bz2.compress(said), lzma.compress(said)]
    numbers = struct.pack("<IIIIQQII", 3, 0, 9, 0, 7, 1 << 20, 1, 5)
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        for table in ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"):
            database.execute(f"CREATE TABLE {table} ({TABLES[table]})")
        database.execute("CREATE TABLE NVTX_EVENTS (binaryData BLOB, other BLOB)")
        rows = [(blob, blob) for blob in (*packed, b"\1" * 32 + packed[1], numbers)]
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?)", rows)
    database.close()
    redacted_copy(tmp_path / "x.sqlite", tmp_path / "y.sqlite")
    with sqlite3.connect(tmp_path / "y.sqlite") as copy:
        kept = copy.execute("SELECT * FROM NVTX_EVENTS").fetchall()
    copy.close()
    gone = [(bytes(len(blob)), bytes(len(blob))) for blob, _ in rows[:-1]]
    assert kept == [*gone, (numbers, bytes(len(numbers)))]


def test_no_text_holds_what_was_packed_into_it(tmp_path):
    said = b"dismiss Giulia on Tuesday, for she is ill. " * 3
    texts = [base64.b64encode(pack(said)).decode() for pack in (gzip.compress, zlib.compress, bz2.compress)]
    for name in ("kineto.json", "perf.txt", "ftrace.txt", "nsys.sqlite"):
        source = written(tmp_path, name, texts)
        redacted_copy(source, tmp_path / f"copy_{name}")
        data = (tmp_path / f"copy_{name}").read_bytes()
        assert [text for text in texts if text[8:40].encode() in data] == []


#: What a range or a mark may be called, which is any text; names of code, threads and programs are not.
SAID = {
    "patient_orsola_smith_has_cancer": "orsola",
    "Dear.Dr.Ludovica.Miller": "Ludovica",
    "DismissCosima": "Cosima",
    "dismiss-beatrix": "beatrix",
    "Domitilla": "Domitilla",
    "prefill_faustina_batch": "faustina",
    "kündige_Jürgen": "Jürgen",
    "癌": "癌",
}


def ranges(folder, texts):
    """Ranges, marks and counters that are called as the texts are, in each format that has some."""
    events = [
        {"ph": ph, "cat": cat, "name": text, "pid": 1, "tid": 1, "ts": i, "dur": 1, "args": {text: text}}
        for i, text in enumerate(texts)
        for ph, cat in (("X", "cpu_op"), ("X", "user_annotation"), ("X", "gpu_user_annotation"), ("C", ""))
    ]
    (folder / "x.json").write_text(
        json.dumps({"schemaVersion": 1, "traceEvents": events}, ensure_ascii=False)
    )
    head = "          python-10      [000] d..2. 45.00000"
    marks = [
        f"{head}{i}: tracing_mark_write: {form}{text}"
        for i, text in enumerate(texts)
        for form in ("", "B|10|")
    ]
    (folder / "x.txt").write_text("# tracer: nop\n#\n" + "\n".join(marks) + "\n")
    with sqlite3.connect(folder / "x.sqlite") as database:
        for table in ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"):
            database.execute(f"CREATE TABLE {table} ({TABLES[table]})")
        for i, text in enumerate(texts):
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (i, text))
            row = (100 * i, 100 * i + 50, 59, text, 1, i)
            database.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
    database.close()
    return ["x.json", "x.txt", "x.sqlite"]


def test_no_copy_holds_what_ranges_are_called_but_for_words_of_programs(tmp_path):
    for name in ranges(tmp_path, [*SAID, "aten::add_, seq = 7", "execute_context_0(0)_generation_8(8)"]):
        redacted_copy(tmp_path / name, tmp_path / f"copy_{name}")
        data = (tmp_path / f"copy_{name}").read_bytes().decode("utf-8", "replace")
        assert [needle for needle in SAID.values() if needle in data] == [], name
        assert "aten::add_, seq = 7" in data
        assert "execute_context_0(0)_generation_8(8)" in data


def test_a_kernel_s_and_a_thread_s_name_stay_in_a_database(tmp_path):
    names = ["zorblax_kernel", "zorblaxd", "zorblax", "zorblax_said"]
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        for table in ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"):
            database.execute(f"CREATE TABLE {table} ({TABLES[table]})")
        database.execute("CREATE TABLE ThreadNames (nameId INTEGER, globalTid INTEGER)")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (shortName, demangledName) VALUES (0, 0)")
        database.execute("INSERT INTO ThreadNames VALUES (1, 7)")
        database.execute("INSERT INTO NVTX_EVENTS (textId) VALUES (3)")
    database.close()
    redacted_copy(tmp_path / "x.sqlite", tmp_path / "y.sqlite")
    with sqlite3.connect(tmp_path / "y.sqlite") as copy:
        texts = [text for (text,) in copy.execute("SELECT value FROM StringIds ORDER BY id")]
    copy.close()
    assert texts == ["zorblax_kernel", "zorblaxd", "[text]", "[text]"]
