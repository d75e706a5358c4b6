"""A report onto tickets, through the real clients, against a server of ours that speaks each system's API."""

import json
import threading
from email.parser import BytesParser
from email.policy import HTTP
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.report.example import everywhere, findings
from tracelib.cli import main
from tracelib.errors import BadParameter, TraceError
from tracelib.report.ticket import as_plain, as_wiki, summary
from tracelib.report.tickets import SYSTEMS, attach, planned, ticket_of

#: What is attached of a report.
FILES = ("report.html", "findings.json", "overview.png", "root_cause.ipynb")
ADDRESSES = {
    "jira": "jira:OPS-42",
    "github": "github:owner/repo#7",
    "gitlab": "gitlab:group/sub/project#7",
    "slack": "slack:#incidents",
}


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "INC-42"
    folder.mkdir()
    (folder / "report.html").write_text("<html>the report</html>")
    (folder / "summary.md").write_text(summary(findings(), "f" * 64))
    (folder / "findings.json").write_text(findings().to_json())
    written = {"metadata": {"papermill": {"parameters": {"redact": "strict"}}}}
    (folder / "root_cause.ipynb").write_text(json.dumps(written))
    (folder / "overview.png").write_bytes(b"\x89PNG\r\n\x1a\npicture")
    mark(folder)
    return folder


def mark(folder):
    """Note the files as tracelib's own, as they are now."""
    sums = {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    (folder / ".tracelib-report.json").write_text(json.dumps(sums))


def parts(headers, body):
    """Return the files of a multipart request: name -> content."""
    kind = headers.get("Content-Type", "")
    if "multipart" not in kind:
        return {}
    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    return {p.get_filename(): p.get_payload(decode=True) for p in message.iter_parts() if p.get_filename()}


class Server(ThreadingHTTPServer):
    """Answers as the systems' APIs do, and keeps what it was sent: (method, path, headers, body)."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.limit = 10_000_000
        self.refuse = ""

    def answer(self, method, path):
        answers = {
            ("GET", "/rest/api/2/attachment/meta"): {"enabled": True, "uploadLimit": self.limit},
            ("POST", "/rest/api/2/issue/OPS-42/attachments"): [
                {"id": "1", "filename": "x", "self": f"{self.url}/a/1"}
            ],
            ("POST", "/rest/api/2/issue/OPS-42/comment"): {"id": "5", "body": "", "self": f"{self.url}/c/5"},
            ("GET", "/repos/owner/repo/issues/7"): {
                "number": 7,
                "url": f"{self.url}/repos/owner/repo/issues/7",
            },
            ("POST", "/repos/owner/repo/issues/7/comments"): {
                "id": 9,
                "html_url": "https://github.example/9",
            },
            ("GET", "/api/v4/projects/group%2Fsub%2Fproject"): {"id": 12, "name": "project"},
            ("POST", "/api/v4/projects/12/uploads"): {
                "markdown": "[report.html](/uploads/x/report.html)",
                "url": "/u",
                "alt": "x",
            },
            ("POST", "/api/v4/projects/12/issues/7/notes"): {"id": 3},
            ("POST", "/api/chat.postMessage"): {"ok": True, "channel": "C0000001", "ts": "1.2"},
            ("POST", "/api/files.getUploadURLExternal"): {
                "ok": True,
                "upload_url": f"{self.url}/upload",
                "file_id": "F1",
            },
            ("POST", "/upload"): {},
            ("POST", "/api/files.completeUploadExternal"): {"ok": True, "files": [{"id": "F1"}]},
        }
        return answers.get((method, path.split("?")[0]))


class Handler(BaseHTTPRequestHandler):
    def handle_any(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.seen.append((self.command, self.path, self.headers, body))
        answer = self.server.answer(self.command, self.path)
        if self.path.endswith("/attachments"):  # Jira's client compares what arrived with what it sent
            answer[0]["size"] = sum(map(len, parts(self.headers, body).values()))
        refused = self.server.refuse and self.server.refuse in self.path
        self.send_response(
            403
            if refused
            else 404
            if answer is None
            else 200
            if self.command == "GET"
            else 201
            if "/api/v4" in self.path or "/repos/" in self.path
            else 200
        )
        self.send_header("Content-Type", "application/json")
        text = json.dumps(
            {"message": "no right", "errorMessages": ["no right"], "ok": False, "error": "no_right"}
            if refused
            else answer
        )
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PUT = handle_any  # noqa: N815 (http.server's names)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    made = Server()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    for name, value in {
        "JIRA_URL": made.url,
        "JIRA_TOKEN": "jira-secret",
        "GITHUB_API_URL": made.url,
        "GITHUB_TOKEN": "hub-secret",
        "GITLAB_URL": made.url,
        "GITLAB_TOKEN": "lab-secret",
        "SLACK_API_URL": f"{made.url}/api/",
        "SLACK_BOT_TOKEN": "slack-secret",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("JIRA_USER", raising=False)
    yield made
    made.shutdown()
    made.server_close()


def bodies(server, path):
    return [body for _, seen, _, body in server.seen if path in seen]


def uploaded(server, path):
    """Return the files in multipart requests to `path`: name -> content."""
    seen = [parts(headers, body) for _, to, headers, body in server.seen if path in to]
    return {name: content for each in seen for name, content in each.items()}


def test_jira_gets_the_files_and_a_comment_in_its_markup(server, report):
    done = attach(report, "jira:OPS-42")
    assert done == [*FILES, "comment on OPS-42"]
    files = uploaded(server, "/attachments")
    assert files == {name: (report / name).read_bytes() for name in FILES}
    comment = json.loads(bodies(server, "/comment")[0])["body"]
    assert comment.startswith("h3. INC-42: decode is slow\n")
    assert "||Cause of lost GPU time||Share of GPU time||" in comment
    assert server.seen[0][1].startswith("/rest/api/2/attachment/meta")
    assert all(h["Authorization"] == "Bearer jira-secret" for _, _, h, _ in server.seen)


def test_a_file_over_the_server_s_limit_stops_before_anything_is_sent(server, report):
    server.limit = 10
    with pytest.raises(
        TraceError, match=r"report.html \(\d+ bytes\).*this Jira takes \(10 bytes\). Nothing was sent"
    ):
        attach(report, "jira:OPS-42")
    assert [path for _, path, _, _ in server.seen] == ["/rest/api/2/attachment/meta"]


def test_github_gets_the_comment_and_a_person_the_files(server, report):
    done = attach(report, "github:owner/repo#7")
    assert done[0] == "comment https://github.example/9"
    assert "takes no files" in done[1]
    assert [line.split()[0] for line in done[2:]] == [str(report / n) for n in FILES]
    (body,) = bodies(server, "/comments")
    assert json.loads(body)["body"] == (report / "summary.md").read_text()


def test_gitlab_gets_the_files_and_a_comment_that_links_to_them(server, report):
    attach(report, "gitlab:group/sub/project#7")
    assert set(uploaded(server, "/uploads")) == set(FILES)
    (body,) = bodies(server, "/notes")
    said = json.loads(body)["body"]
    assert said.startswith((report / "summary.md").read_text().rstrip())
    assert said.count("(/uploads/x/report.html)") == len(FILES)
    assert all(h["PRIVATE-TOKEN"] == "lab-secret" for _, _, h, _ in server.seen)


def test_slack_gets_plain_text_and_the_files_in_its_thread(server, report):
    attach(report, "slack:#incidents")
    from urllib.parse import parse_qs

    (body,) = bodies(server, "chat.postMessage")
    said = (
        json.loads(body) if body.startswith(b"{") else {k: v[0] for k, v in parse_qs(body.decode()).items()}
    )
    assert said["channel"] == "#incidents"
    assert said["mrkdwn"] in (False, "0", "false", "False")
    assert said["text"].startswith("INC-42: decode is slow\n\nCPU quota, host work (high confidence).")
    assert "**" not in said["text"]
    assert "\\" not in said["text"]
    sent = [body for _, path, _, body in server.seen if path.startswith("/upload")]
    assert {(report / n).read_bytes() for n in FILES} <= set(sent)
    done = bodies(server, "completeUploadExternal")[0].decode()
    assert "C0000001" in done
    assert "1.2" in done


def test_a_folder_takes_everything(report, tmp_path):
    attach(report, f"file:{tmp_path / 'share'}")
    sent = {p.name: p.read_bytes() for p in (tmp_path / "share").iterdir() if p.name[0] != "."}
    assert sent == {name: (report / name).read_bytes() for name in (*FILES, "summary.md")}
    attach(report, f"file:{tmp_path / 'share'}")  # an earlier parcel is replaced


def test_a_folder_with_something_else_in_it_stays_as_it_is(report, tmp_path):
    share, mine = tmp_path / "share", tmp_path / "mine"
    share.mkdir()
    mine.write_text("mine")
    (share / "report.html").symlink_to(mine)
    with pytest.raises(TraceError, match=r"holds 'report.html', which tracelib did not write"):
        attach(report, f"file:{share}")
    assert mine.read_text() == "mine"
    assert [p.name for p in share.iterdir()] == ["report.html"]


@pytest.mark.parametrize("name", [*FILES, "summary.md"])
def test_what_is_not_as_it_was_written_is_not_sent(name, report, tmp_path, capsys):
    to = ["--to", f"file:{tmp_path / 'out'}"]
    path = report / name
    text = path.read_bytes()
    path.write_bytes(text + b" ")
    assert main(["attach", str(report), *to]) == 2
    assert f"{name}: is not as tracelib wrote it" in capsys.readouterr().err
    assert main(["attach", str(report), *to, "--level", "off", "--dry-run"]) == 0
    (tmp_path / "elsewhere").write_bytes(text)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert main(["attach", str(report), *to, "--level", "off"]) == 2
    assert f"{name}: is a link" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", [*ADDRESSES.values(), "file:x"])
def test_a_dry_run_says_what_would_be_sent_and_asks_nobody(report, address, capsys, monkeypatch):
    for name in ("JIRA_URL", "JIRA_TOKEN", "GITHUB_TOKEN", "GITLAB_TOKEN", "SLACK_BOT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert main(["attach", str(report), "--to", address, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"to {address}\n")
    assert "decode is slow" in said
    takes = not address.startswith("github")
    assert (f"file report.html, {(report / 'report.html').stat().st_size} bytes" in said) == takes
    assert not (report.parent / "x").exists()


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("jira:OPS-42", "/comment"),
        ("github:owner/repo#7", "/comments"),
        ("gitlab:group/sub/project#7", "/notes"),
        ("slack:#incidents", "chat.postMessage"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_was_sent_before(server, report, address, path, capsys):
    server.refuse = path
    assert main(["attach", str(report), "--to", address]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "secret" not in said
    assert (
        "Sent before that: report.html" if address[:4] in ("jira", "gitl") else "Nothing was sent"
    ) in said


def test_credentials_come_from_the_environment_or_not_at_all(report, monkeypatch):
    for name in ("JIRA_URL", "JIRA_TOKEN", "JIRA_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TraceError, match="set JIRA_URL in the environment"):
        attach(report, "jira:OPS-42")


@pytest.mark.parametrize(
    "address", ["jira", "jria:OPS-42", "jira:ops", "github:repo#7", "gitlab:x#1", "slack:general", "file:"]
)
def test_a_wrong_address_shows_a_right_one(address):
    with pytest.raises(BadParameter, match="Allowed: "):
        ticket_of(address)


def test_what_is_no_report_is_not_sent(tmp_path):
    with pytest.raises(TraceError, match="holds no report"):
        list(planned(tmp_path, "file:x"))


def test_every_system_is_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["attach", "--help"])
    said = capsys.readouterr().out
    assert all(example.split(":")[0] + ":" in said for example in SYSTEMS.values())


HOSTILE = "*b* _i_ {code} [l|http://x] !i! a\\b <b> & | @all"


def test_names_in_wiki_markup_stay_names():
    """A character that Jira's renderer obeys stands behind a backslash, a backslash by its number."""
    wiki = as_wiki(summary(everywhere(HOSTILE), "f" * 64))
    row = next(line for line in wiki.splitlines() if line.startswith("h3. "))
    assert "\\*b\\* \\_i\\_ \\{code\\} \\[l\\|http" in row
    assert "a&#92;b <b> & \\|" in row
    assert "\\\\" not in wiki


def test_names_in_plain_text_are_as_recorded():
    plain = as_plain(summary(everywhere(HOSTILE), "f" * 64))
    assert "*b* _i_ {code} [l|http" in plain
    assert "a\\b &lt;b&gt; &amp; |" in plain  # Slack wants these three escaped


def test_a_report_that_was_redacted_less_is_not_sent(report, tmp_path, capsys):
    """Nor one that does not say how it was."""
    written = report / "root_cause.ipynb"
    to = ["--to", f"file:{tmp_path / 'out'}"]
    for level, needed in (("standard", "standard"), ("off", "off"), (None, "off")):
        parameters = {"redact": level}
        written.write_text(json.dumps({"metadata": {"papermill": {"parameters": parameters}}}))
        mark(report)
        assert main(["attach", str(report), *to]) == 2
        assert f"--redact {needed}" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
        assert main(["attach", str(report), *to, "--level", needed, "--dry-run"]) == 0
    written.unlink()
    assert main(["attach", str(report), *to]) == 2
