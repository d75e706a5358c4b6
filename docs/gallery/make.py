"""Run every notebook on a sample, render it to reports/gallery/; with --page, remake docs/gallery/.

`make gallery` does the first; `python docs/gallery/make.py --page` both, and needs Chromium for the pictures;
`--page NAME` does one notebook's part.
"""

import argparse
import base64
import os
import re
import shutil
import sys
from pathlib import Path
from shlex import quote

from tracelib.charts.phrases import CAPTION
from tracelib.report.exporter import TraceReport
from tracelib.report.notebooks import notebook
from tracelib.report.run import run_notebook
from tracelib.report.ticket import escaped

PAGE = Path(__file__).parent
ROOT = PAGE.parent.parent
RENDERED = ROOT / "reports" / "gallery"
SIZE = {"width": 1000, "height": 1300}
#: Notebook -> the question that it answers, and the sample on which it is shown.
EXAMPLES = {
    "root_cause": ("Why is this server slow? (The report.)", "starved"),
    "explore": ("What is in these files, and how do they fit together?", "starved"),
    "tokenization": ("What does tokenization cost the GPUs?", "tokenization"),
    "kernel_launch": ("Do the GPUs wait for launches?", "launch_eager"),
    "ipc": ("Do they wait for messages between processes?", "ipc"),
    "collectives": ("Which rank comes late, and why?", "launch_skew"),
    "cpu_scheduling": ("Who had no CPU, and who had it instead?", "throttled"),
    "requests": ("Where did the time to first token go?", "tokenization"),
    "compare": ("What do more cores change?", {f"{n} CPUs": f"sweep/cpus_{n}" for n in (2, 3, 4, 6, 8)}),
    "capacity": ("How many cores does it take, and what do they cost?", "starved"),
    "what_if": ("What would it have been with one thing changed?", "launch_eager"),
}
HEAD = """\
# Gallery

Every notebook, run on a sample of this repository: the top of its page as a picture, and every sentence that
it wrote under its charts. `make gallery` renders all of them, whole, to `reports/gallery/*.html`: charts to
point at, a table for each, light and dark. To run one on your own files, change the sample's path in its
command.

Made by `python docs/gallery/make.py --page`; edit that, not this.
"""


def parameters(sample):
    if isinstance(sample, dict):
        return {"runs": {label: f"sample_traces/{folder}" for label, folder in sample.items()}}
    return {"traces": [f"sample_traces/{sample}"]}


def command(name, sample):
    """Return the command that makes the page from an installed package, in the repository's root."""
    if isinstance(sample, dict):
        runs = ", ".join(f"{label}: {folder}" for label, folder in parameters(sample)["runs"].items())
        given = f"-y {quote(f'runs: {{{runs}}}')}"
    else:
        given = f"-p traces {parameters(sample)['traces'][0]}"
    run = f"papermill tracelib://{name}.ipynb {name}.ipynb {given}"
    return f"{run} && jupyter nbconvert --to tracereport {name}.ipynb"


def rendered(name, sample):
    """Run the notebook, write its page, and return the sentences under its charts."""
    ran = run_notebook(notebook(name), RENDERED / f"{name}.ipynb", parameters(sample), working_directory=ROOT)
    if ran.failure is not None:
        sys.exit(f"{name}: {ran.failure.one_line()}")
    page, _ = TraceReport().from_notebook_node(ran.notebook)
    (RENDERED / f"{name}.html").write_text(page, encoding="utf-8")
    outputs = [output for cell in ran.notebook.cells for output in cell.get("outputs", ())]
    return [o["data"]["text/plain"] for o in outputs if o.get("metadata", {}).get(CAPTION)] + [
        o["data"]["text/plain"]
        for o in outputs
        if o.get("data", {}).get("text/plain", "").startswith("No chart of")
    ]


def photograph(names):
    """Write the top of each rendered page to docs/gallery/NAME.webp."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(viewport=SIZE, offline=True)
        for name in names:
            page = context.new_page()
            page.goto((RENDERED / f"{name}.html").as_uri())
            page.wait_for_timeout(1500)
            shot = context.new_cdp_session(page).send(
                "Page.captureScreenshot", {"format": "webp", "quality": 80}
            )
            (PAGE / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))
            page.close()


def section(name, question, sample, sentences):
    said = "\n".join(f"- {escaped(sentence, 1000)}" for sentence in sentences)
    picture = f"![The top of the page]({name}.webp)"
    return f"## {name}: {question}\n\n```\n{command(name, sample)}\n```\n\n{picture}\n\n{said}\n"


def sections():
    """Return the page's sections as they stand, by name."""
    path = PAGE / "README.md"
    parts = (
        re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        if path.exists()
        else []
    )
    return {re.match(r"## (\w+):", part)[1]: part.rstrip("\n") + "\n" for part in parts}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--page",
        nargs="*",
        choices=[*EXAMPLES],
        metavar="NAME",
        help="remake docs/gallery/README.md and its pictures too, of the named notebooks alone if any are",
    )
    page = parser.parse_args().page
    names = page or [*EXAMPLES]
    RENDERED.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TRACELIB_CACHE", "off")
    made = sections()
    for name in names:
        question, sample = EXAMPLES[name]
        print(f"{name} ...", file=sys.stderr)
        made[name] = section(name, question, sample, rendered(name, sample))
    if page is not None:
        photograph(names)
        shown = [made[name] for name in EXAMPLES]
        (PAGE / "README.md").write_text("\n".join([HEAD, *shown]), encoding="utf-8")
    print(RENDERED)


if __name__ == "__main__":
    main()
