"""Secrets planted in every corner of every format: none is in the bytes of anything that is given away."""

import json
import sqlite3

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tests.sources.nsys.conftest import TABLES
from tracelib.cli import main
from tracelib.findings.rules import RULES
from tracelib.report import private
from tracelib.report.redact import Redactor, request_ids, trace
from tracelib.report.redacted_copy import redacted_copy

#: What is planted, and the part of it that must not come out.
PLANTED = {
    "run with hf_QwErTyUiOpAsDfGhJkLzXc12": "QwErTyUiOpAsDf",
    "sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7": "Ab1Cd2Ef3Gh4",
    "ghp_Zx9Cv8Bn7Mm6Aa5Ss4Dd3Ff2Gg1Hh0Jj9Kk8": "Zx9Cv8Bn7Mm6",
    "AKIAQ7W6E5R4T3Y2U1I0": "Q7W6E5R4T3Y2",
    "aws_secret_access_key=Qm9vaG9vL2Zvby9iYXIrYmF6L3F1eA": "Qm9vaG9vL2Zv",
    "python serve.py --api-key rosebud11 --port 8000": "rosebud11",
    "serve --hf-token=rosebud12": "rosebud12",
    '["serve", "--api-key", "rosebud13"]': "rosebud13",
    "curl -u carla:rosebud14 http://x": "rosebud14",
    "mysql -prosebud15 -h db": "rosebud15",
    "X-Api-Key: rosebud16": "rosebud16",
    "Authorization: token rosebud17": "rosebud17",
    "Cookie: a=1; b=rosebud18": "rosebud18",
    "bearer rosebud19rosebud19": "rosebud19",
    "MY_SERVICE=rosebud20": "rosebud20",
    "password: rosebud21": "rosebud21",
    '{"db": {"password": "rosebud22"}}': "rosebud22",
    "{'api_key': 'rosebud23'}": "rosebud23",
    "postgresql://svc:rosebud24@db/x": "rosebud24",
    "https://rosebud25@example.org/x": "rosebud25",
    "GET /v1?access_token=rosebud26&x=1": "rosebud26",
    "hooks.slack.com/services/T0/B0/rosebud27": "rosebud27",
    "wandb login 0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c": "4b5a69788796",
    "key q7RtY2uI9oP4aS6dF1gH3jK5": "q7RtY2uI9oP4",
    "/home/mariella/run/x.py": "mariella",
    "/data/users/giovanni/ckpt": "giovanni",
    "C:\\Users\\federica\\x": "federica",
    "m.rossi@example.org wrote": "m.rossi",
    "peer 10.42.7.19:29500": "10.42.7.19",
    "[2a02:1210:5a3::7]:80": "2a02:1210",
    "http://gpu-node-7.prod.bigcorp.example:8000/v1": "gpu-node-7",
    "node9.cluster7.bigcorp.com": "cluster7",
    "02:42:ac:11:00:0f": "42:ac:11",
    "GPU-5f3c1a2b-0a1b-2c3d-4e5f-0123456789ab": "5f3c1a2b",
    "s3://bigcorp-weights/llama": "bigcorp-weights",
    "paid with 5555 5555 5555 4444": "5555 4444",
    "call +39 06 698 12345": "698 12345",
    'password="rosebud28 cut short': "rosebud28",
    "dbPassword=rosebud29": "rosebud29",
    '{"clientSecret": "rosebud30"}': "rosebud30",
    "PGPASSWORD=rosebud31 -Dpassword=x": "rosebud31",
    "password=ab,rosebud32": "rosebud32",
    "HF_TOKEN rosebud33": "rosebud33",
    "set the password to rosebud34": "rosebud34",
    "<password>rosebud35</password>": "rosebud35",
    '["curl", "-u", "carla:rosebud36"]': "rosebud36",
    "sshpass -p rosebud37 ssh db": "rosebud37",
    "password%3A%20rosebud38": "rosebud38",
    "password&#61;rosebud39": "rosebud39",
    "pass\u00adword=rosebud40": "rosebud40",
    "\uff30\uff37\uff24=rosebud41": "rosebud41",
    "ghp_Ab1Cd2Ef3Gh": "Ab1Cd2Ef3Gh",
    '{"X_SERVICE": "rosebud42"}': "rosebud42",
    "Private-Lines: 8 rosebud43": "rosebud43",
    "curl -H 'X-Auth-Token: rosebud44'": "rosebud44",
    "%2Fhome%2Ffiammetta%2Fx": "fiammetta",
    "/Users/Ugo Ghibellino/x": "Ghibellino",
    "~orlandina/x.py": "orlandina",
    "mailto:p.guelfo%40example.org": "p.guelfo",
    "scp x beatrice@node7:/x": "beatrice",
    "0242.ac11.000f": "ac11",
    "arn:aws:iam::123456789012:role/bigrole": "bigrole",
    r"\\\\fileserver5\share": "fileserver5",
    "node9.cluster8.bigcorp.xyz": "cluster8",
    "prompt: sell the shares before Tuesday": "sell the shares",
    "Please write to my landlord that the heating has not worked since the first of May": "landlord",
    "我的母亲得了重病请告诉我应该去哪家医院": "我的母亲",
    "Ответьте моему врачу на это письмо": "моему врачу",
}
#: A secret only by its place in a document, and the part of it that must not come out.
PLACED = [
    ({"password": {"v": "finn11"}}, "finn11"),
    ({"auth": {"value": "finn12"}}, "finn12"),
    ({"name": "api_key", "value": "finn13"}, "finn13"),
    ({"key": "password", "value": "finn14"}, "finn14"),
    ({"pass": 928374}, "928374"),
    ({"card": 4111111111111111}, "4111111111111111"),
    ({"phone": 393331234567}, "393331234567"),
    ({"token": 918273645546372}, "918273645546372"),
    ({"prompt": [39231, 374]}, "39231"),
    ({"prompt_token_ids": [39232, 374]}, "39232"),
    ({"input_ids": "39233,374"}, "39233"),
    ({"token_ids": "[39234, 374]"}, "39234"),
    ({"Concrete Inputs": ["", "Giulia", "Rossi", "has"]}, "Giulia"),
    ({"passwort": "finn15"}, "finn15"),
    ({"mot_de_passe": "finn16"}, "finn16"),
    ({"contrase\u00f1a": "finn17"}, "finn17"),
    ({"pin": "7391"}, "7391"),
    ({"otp": 849302}, "849302"),
    ({"iban": "DE89370400440532013000"}, "DE8937"),
    ({"ssn": "078-05-1120"}, "1120"),
]
#: Free text that is a person's words, though too few to be told from a name but by what names are made of.
STRICT = {
    "dismiss Giulia tomorrow": "Giulia",
    "«dismiss» [Ginevra] tomorrow…": "Ginevra",
    "/srv/wintermute/plan.bin": "wintermute",
    "/var/lib/neuromancer/x": "neuromancer",
    "py::forward:/data/molly1/model.py": "molly1",
    "file:///data/molly2/x.py": "molly2",
    r"D:\customers\molly3\x.py": "molly3",
    "../../molly4/x.py": "molly4",
    "/vllm/customers/molly5/x.py": "molly5",
    "/data/acme molly6/x.py": "molly6",
    "/data/molly7#1/x": "molly7",
    "passwort: molly8": "molly8",
    "contrase\u00f1a=molly9": "molly9",
    "file:///x/customers/molly10": "molly10",
    "http://gpu7:80/tenant-molly11/v1": "molly11",
    "http://gpu7/v1?user=molly12": "molly12",
    "home/molly13/plans/x.py": "molly13",
    "customers/molly14/model.bin": "molly14",
}
LEVELS = {"standard": PLANTED, "strict": {**PLANTED, **STRICT}}
NS = 1_796_006_360_000_000_000


def leaks(data: bytes, needles=PLANTED):
    """Return what is in `data`, as UTF-8, as JSON escapes it, or as UTF-16."""
    forms = (str.encode, lambda text: json.dumps(text)[1:-1].encode(), lambda text: text.encode("utf-16-le"))
    return [needle for needle in needles.values() if any(form(needle) in data for form in forms)]


def kineto(texts):
    """One event for each text, which stands in its name and its arguments, as key and as value."""
    args = [{text: 1, "k": text, "deep": [{"x": [text]}], "Input type": ["", text]} for text in texts]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": text, "pid": 1, "tid": 1, "ts": 1000 + i, "dur": 1, "args": each}
        for i, (text, each) in enumerate(zip(texts, args, strict=True))
    ]
    named = [
        {"ph": "M", "name": what, "pid": 1, "tid": tid, "ts": 0, "args": {"name": text}}
        for what in ("process_name", "thread_name", "process_labels")
        for tid, text in enumerate(texts)
    ]
    gpu = [
        {"ph": "X", "cat": "kernel", "name": text, "pid": 0, "tid": 7, "ts": 2000 + i, "dur": 1, "args": {}}
        for i, text in enumerate(texts)
    ]
    head = {"schemaVersion": 1, "hostname": "gpu-node-7", "cmdline": ["serve", "--api-key", "rosebud11"]}
    tail = {"meta": dict(enumerate(texts)), "traceName": texts[0]}
    base = {"baseTimeNanoseconds": NS, "deviceProperties": [{"id": 0, "name": texts[0]}]}
    return json.dumps({**head, **base, "traceEvents": [*named, *events, *gpu], **tail}, ensure_ascii=False)


def unquoted(texts):
    """A name with a quote that is not escaped, which ends a string too early, before all others."""
    whole = kineto(texts)
    name = '"say "dismiss Giulia tomorrow"'
    first = f'{{"ph": "X", "cat": "cpu_op", "name": {name}, "pid": 1, "tid": 1, "ts": 1, "dur": 1}}, '
    return whole.replace('"traceEvents": [', f'"traceEvents": [{first}')


def perf(texts):
    """Comments, threads' names, symbols, libraries, fields; a line that perf never wrote."""
    lines = [
        (
            f"# ========\n# captured on    : Tue Dec  1 09:00:00 2026\n# hostname : gpu-node-7\n"
            f"# cmdline : /usr/bin/perf record -k mono -e cycles -- {' '.join(texts)}\n#"
        )
    ]
    for i, text in enumerate(texts):
        lines += [
            f"# {text}",
            f"# note : {text}",
            f"{text} 10/10 [000] {45 + i}.500000000: 1 cycles:u: ",
            f"\tffff00 {text} ({text})\n\tffff01 main (/usr/bin/python)\n",
            (
                f"{text} 10/10 [000] {45 + i}.600000000: 1 sched:sched_switch: prev_comm={text} prev_pid=10 "
                "prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120\n"
            ),
            f"python 10/10 [000] {45 + i}.700000000: sched:sched_process_exec: filename={text} pid=10\n",
            f"log: {text}\n",
        ]
    return "\n".join(lines) + "\n"


def ftrace(texts):
    """Tasks, markers of each kind, fields, a printed text, comments; a line that no tracer wrote."""
    lines = ["# tracer: nop\n#\n# entries-in-buffer/entries-written: 5/5   #P:2\n#"]
    for i, text in enumerate(texts):
        head = f"          python-10      [000] d..2. {45 + i}.00000"
        lines += [
            f"{head}1: tracing_mark_write: B|10|{text}",
            f"{head}2: tracing_mark_write: E|10",
            f"{head}3: tracing_mark_write: C|10|{text}|5",
            (
                f"{head}4: sched_switch: prev_comm={text} prev_pid=10 prev_prio=120 prev_state=S ==> "
                "next_comm=swapper/0 next_pid=0 next_prio=120"
            ),
            f"{head}5: sched_process_exec: filename={text} pid=10 old_pid=10",
            f"{head}6: bprint: 0xffff: {text}",
            f"{head}7: {text}",
            f" {text}-10      [000] d..2. {45 + i}.000008: sys_openat(dfd: 3, filename: {text}, flags: 0)",
            f"# {text}",
            text,
        ]
    return "\n".join(lines) + "\n"


def perf_json(texts):
    """What `perf data convert --to-json` writes."""
    samples = [
        {
            "timestamp": 45_000_000_000 + i,
            "pid": 10,
            "tid": 10,
            "comm": text,
            "callchain": [{"ip": "0xffff", "symbol": text, "dso": text}],
        }
        for i, text in enumerate(texts)
    ]
    headers = {
        "header-version": 1,
        "hostname": "gpu-node-7",
        "cmdline": ["perf", "record", "-k", "mono", "--", *texts],
    }
    return json.dumps(
        {"linux-perf-json-version": 1, "headers": headers, "samples": samples}, ensure_ascii=False
    )


def nsys(path, texts):
    """Text in columns of every type, in blobs, in names and definitions, and in pages that are free."""
    with sqlite3.connect(path) as database:
        for table in (
            "StringIds",
            "META_DATA_CAPTURE",
            "NVTX_EVENTS",
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "PROCESSES",
        ):
            database.execute(f"CREATE TABLE {table} ({TABLES[table]})")
        database.execute("CREATE TABLE gone (x TEXT)")
        process = 1 << 48 | 100 << 24
        for i, text in enumerate(texts):
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (i, text))
            database.execute(
                "INSERT INTO META_DATA_CAPTURE (name, value) VALUES (?, ?)", (f"ARGUMENT_{i}", text)
            )
            database.execute("INSERT INTO gone VALUES (?)", (text * 40,))
            row = (100 * i, 100 * i + 50, 59, text, process | 100, i, text)
            columns = "start, end, eventType, text, globalTid, textId, domainId"
            database.execute(f"INSERT INTO NVTX_EVENTS ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            kernel = (100 * i, 100 * i + 50, 0, 7, i, process, i, i)
            columns = "start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName"
            database.execute(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", kernel
            )
        quoted = [text.replace('"', '""') for text in texts]
        for i, text in enumerate(texts):
            literal = text.replace("'", "''")
            database.execute(
                f'CREATE TABLE "{quoted[i]}" (a INTEGER DEFAULT \'{literal}\', "{quoted[i]}" TEXT)'
            )
            database.execute(f"CREATE VIEW v{i} AS SELECT '{literal}'")
            database.execute(
                f"CREATE TABLE t{i} (a INTEGER CHECK (a IS NOT '{literal}' OR c), b BLOB, c NUMERIC UNIQUE)"
            )
            blobs = (text + ".", b"\0\1" + text.encode() + b"\xff", text)
            database.execute(f"INSERT INTO t{i} VALUES (?, ?, ?)", blobs)
            database.execute(f"INSERT INTO t{i} VALUES (?, ?, 3)", (i, text.encode("utf-16-le")))
            database.execute(
                f"CREATE TRIGGER r{i} AFTER UPDATE ON t{i} BEGIN INSERT INTO gone VALUES ('{literal}'); END"
            )
    database.execute("DELETE FROM gone")
    database.commit()
    database.close()


TEXTS = {
    "kineto.json": kineto,
    "unquoted.json": unquoted,
    "perf.txt": perf,
    "ftrace.txt": ftrace,
    "perf.json": perf_json,
}


def written(folder, name, planted):
    """Write the file `name` with all texts planted, and return its path."""
    path = folder / name
    if name == "nsys.sqlite":
        nsys(path, list(planted))
    else:
        path.write_text(TEXTS[name](list(planted)), encoding="utf-8")
    return path


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [*TEXTS, "nsys.sqlite"])
def test_no_copy_holds_what_was_planted(name, level, tmp_path):
    planted = LEVELS[level]
    source = written(tmp_path, name, planted)
    assert set(leaks(source.read_bytes(), planted)) == set(planted.values())
    redacted_copy(source, tmp_path / f"copy_{name}", level)
    assert leaks((tmp_path / f"copy_{name}").read_bytes(), planted) == []


def test_no_copy_holds_what_its_place_tells(tmp_path):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 1}
    kept = {
        "tokens": 123456789,
        "first_token": 1796006360000000000,
        "Input type": ["float", "Scalar", "Scalar", "c10::BFloat16"],
        "External id": 51234,
        "Input Dims": [[1, 51235], []],
        "pin": True,
    }
    args = [kept, *(document for document, _ in PLACED)]
    events = [{**event, "ts": i, "args": each} for i, each in enumerate(args)]
    (tmp_path / "x.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    redacted_copy(tmp_path / "x.json", tmp_path / "y.json")
    data = (tmp_path / "y.json").read_bytes()
    assert [needle for _, needle in PLACED if needle.encode() in data] == []
    assert json.loads(data)["traceEvents"][0]["args"] == kept


def test_no_cell_is_trusted_for_its_table_s_name_or_its_type(tmp_path):
    said = "dismiss Giulia on Tuesday"
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({TABLES['CUPTI_ACTIVITY_KIND_KERNEL']})")
        for table in ("ENUM_X", "DIAGNOSTIC_EVENT", "META_DATA_EXPORT", "TARGET_INFO_GPU_NOTES"):
            database.execute(f"CREATE TABLE {table} (id INTEGER, text TEXT)")
            database.execute(f"INSERT INTO {table} VALUES (51234, ?)", (said,))
        database.execute("CREATE TABLE kv (key TEXT, value NUMERIC)")
        database.execute("INSERT INTO kv VALUES ('password', 918273645), ('rank', 51235)")
        database.execute("CREATE TABLE t (api_key INTEGER, password REAL, mac INTEGER, b BLOB)")
        blob = said.encode("utf-32-le")
        database.execute("INSERT INTO t VALUES (918273646, 918273647.5, 2485377892367, ?)", (blob,))
        database.execute("CREATE TABLE tok_rosebud99_password (x INTEGER)")
        database.execute("CREATE TABLE u (x INTEGER, card_4111111111111111 INTEGER)")
    database.close()
    redacted_copy(tmp_path / "x.sqlite", tmp_path / "y.sqlite")
    with sqlite3.connect(tmp_path / "y.sqlite") as copy:
        dump = "\n".join(copy.iterdump())
        assert copy.execute("SELECT value FROM kv").fetchall() == [(None,), (51235,)]
        assert copy.execute("SELECT * FROM t").fetchall() == [(None, None, None, bytes(len(blob)))]
        assert copy.execute("SELECT id FROM ENUM_X").fetchall() == [(51234,)]
    copy.close()
    assert [word for word in ("Giulia", "rosebud99", "4111111111111111", "9182736") if word in dump] == []


def test_parts_of_a_mark_and_perf_s_own_keys_are_judged_by_what_they_say(tmp_path):
    head = "          python-10      [000] d..2. 45.00000"
    marks = ["B|10|Giulia|Rossi|has|HIV", "B|10|password|rosebud61", "C|10|pass|928374", "B|10|aten::mm"]
    lines = [f"{head}{i}: tracing_mark_write: {mark}" for i, mark in enumerate(marks)]
    (tmp_path / "f.txt").write_text("# tracer: nop\n#\n" + "\n".join(lines) + "\n")
    said = "captured on    : Tue Dec  1 13:56:42 2026"
    rest = 'saddr=0a0b0c0d arg1="rosebud62"'
    (tmp_path / "p.txt").write_text(
        f"# {said}\n# _anything : dismiss Giulia soon\n# cpudesc : dismiss Giulia soon\n"
        f"python 10/10 [000] 45.500000: probe:foo: {rest}\n"
    )
    for name in ("f.txt", "p.txt"):
        redacted_copy(tmp_path / name, tmp_path / f"copy_{name}")
    both = "".join((tmp_path / f"copy_{name}").read_text() for name in ("f.txt", "p.txt"))
    needles = ("Giulia", "Rossi", "rosebud", "928374", "0a0b0c0d")
    assert [needle for needle in needles if needle in both] == []
    assert said in both
    assert "B|10|aten::mm" in both


@pytest.mark.parametrize("name", ["kineto.json", "perf.txt", "ftrace.txt", "perf.json", "nsys.sqlite"])
def test_a_copy_has_the_same_events(name, tmp_path):
    source = written(tmp_path, name, PLANTED)
    redacted_copy(source, tmp_path / f"copy_{name}")
    one, two = (tracelib.load(path).frames() for path in (source, tmp_path / f"copy_{name}"))
    rows = {frame: one[frame].height for frame in ("slices", "gpu_ops", "samples", "sched", "counters")}
    assert rows == {frame: two[frame].height for frame in rows}
    assert sum(rows.values()) >= len(PLANTED)


@pytest.mark.parametrize("fault", ['say "hi there', "say\nhi there"])
def test_a_fault_that_the_reader_repairs_hides_nothing(fault, tmp_path):
    event = '{{"ph":"X","cat":"cpu_op","name":"{}","pid":1,"tid":1,"ts":{},"dur":2}}'
    secret = "hf_QwErTyUiOpAsDfGhJkLzXc12 /home/mariella/x"
    (tmp_path / "x.json").write_text(
        f'{{"traceEvents":[{event.format(fault, 1)},{event.format(secret, 5)}]}}'
    )
    redactor = redacted_copy(tmp_path / "x.json", tmp_path / "y.json")
    assert tracelib.load(tmp_path / "y.json").slices.height == 2
    data = (tmp_path / "y.json").read_bytes()
    assert leaks(data) == []
    assert b'"ts":5,"dur":2' in data
    assert {"secret", "home directory path"} <= redactor.counts.keys()


def test_a_copy_that_is_not_proven_clean_is_not_written(tmp_path, monkeypatch):
    source = written(tmp_path, "perf.txt", PLANTED)
    monkeypatch.setattr(Redactor, "secrets", lambda _: {"swapper/0"})
    with pytest.raises(tracelib.errors.TraceError, match="could not be proven clean"):
        redacted_copy(source, tmp_path / "y.txt")
    assert not (tmp_path / "y.txt").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for name in ("kineto.json", "unquoted.json", "perf.txt", "ftrace.txt"):
        written(folder, name, LEVELS["strict"])
    return folder


@pytest.mark.parametrize("level", LEVELS)
def test_no_text_of_any_frame_holds_it(run, level):
    clean, _ = trace(tracelib.load(run), level)
    texts = [
        text
        for frame in clean.frames().values()
        for column, dtype in frame.schema.items()
        if dtype in (pl.String, pl.Categorical)
        for text in frame[column].cast(pl.String).unique().drop_nulls()
    ]
    assert leaks("\n".join(texts).encode(), LEVELS[level]) == []


@pytest.mark.parametrize("to", ["perfetto", "archive", "speedscope", "chrome"])
def test_no_export_holds_it(run, to, tmp_path):
    assert main(["export", str(run), "--to", to, "-o", str(tmp_path / "out")]) == 0
    assert leaks((tmp_path / "out").read_bytes(), LEVELS["strict"]) == []


def test_private_ids_of_requests_become_numbers():
    log = pl.DataFrame({"id": ["cmpl-7", *PLANTED]})
    clean = request_ids(log, Redactor())["id"]
    assert leaks("\n".join(clean).encode()) == []
    assert clean.n_unique() == len(log)
    assert clean[:2].to_list() == ["cmpl-7", "request-2"]


@pytest.mark.slow
def test_no_file_of_a_report_holds_it_nor_what_is_attached(run, tmp_path):
    report, title = tmp_path / "report", next(iter(PLANTED))
    times = {"arrived": NS, "first_token": NS + 900}
    log = "\n".join(json.dumps({"id": text, **times}) for text in LEVELS["strict"])
    (tmp_path / "log.jsonl").write_text(log, encoding="utf-8")
    typed = ["--title", title, "--requests", str(tmp_path / "log.jsonl")]
    assert main(["report", str(run), "-o", str(report), *typed]) in (0, 3)
    assert main(["attach", str(report), "--to", f"file:{tmp_path / 'ticket'}"]) == 0
    files = [*report.iterdir(), *(tmp_path / "ticket").iterdir()]
    assert {path.name: leaks(path.read_bytes(), LEVELS["strict"]) for path in files} == {
        path.name: [] for path in files
    }


def test_our_own_advice_stays_as_it_is():
    said = [(rule.claim, rule.disproof, rule.statement, *rule.advice, *rule.verify) for rule in RULES]
    texts = [text for rule in said for text in rule]
    assert [text for text in texts if Redactor().text(text) != text] == []
    assert (
        Redactor().text("set TORCH_LOGS=recompiles and HF_TOKEN") == "set TORCH_LOGS=recompiles and HF_TOKEN"
    )


def test_the_table_of_levels_names_each_kind():
    table = (ROOT / "docs" / "redaction.md").read_text()
    assert [shape.kind for shape in private.SHAPES if f"| {shape.kind}" not in table] == []
