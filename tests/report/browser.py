"""Headless Chromium for tests; it may ask nobody for anything."""

import contextlib
import os
import shutil

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def chromium():
    """Give a browser, or skip with the reason; where CI runs, a missing browser is a failure."""
    found = shutil.which("chromium")
    if found is None:
        if os.environ.get("TRACELIB_CI"):
            pytest.fail("no chromium, which CI installs")
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, path, **context):
    """Give the page at `path` and a list of what it does and must not: requests, errors, dialogs."""
    opened_context = browser.new_context(offline=True, **context)
    page = opened_context.new_page()
    wrong = []
    page.on(
        "request",
        lambda request: (
            wrong.append(request.url)
            if request.url != path.as_uri() and not request.url.startswith(("data:", "blob:"))
            else None
        ),
    )
    page.on(
        "console",
        lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.goto(path.as_uri())
    yield page, wrong
    opened_context.close()
