"""The documentation as a site: `make docs` builds it, strictly, into build/docs.

Its pages are the repository's files where they lie, so that the same links work on a forge, in a checkout and
here. It asks no other host for anything, and its search works from disk.
"""

from tracelib import __version__, cli

project, author = "tracelib", "the tracelib authors"
release = __version__
root_doc = "docs/index"
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md", "benchmarks/README.md"),
    *("sample_traces/README.md", "sample_traces/capture/README.md", "tracelib/sources/*/README.md"),
]
exclude_patterns = [".*", "build", "dist", "reports", "tests"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
highlight_language = "text"  # of blocks that name none: commands
html_theme = "furo"
html_title = f"tracelib {release}"
html_extra_path = ["index.html"]
html_show_sphinx = False
html_copy_source = False


def commands():
    """Return the page of all commands: what --help says of each."""
    whole = cli.parser()
    (listed,) = (action.choices for action in whole._actions if action.nargs == "A...")
    parts = [f"## {name}\n\n```text\n{command.format_help()}```\n" for name, command in listed.items()]
    return "\n".join(["# Commands\n", f"```text\n{whole.format_help()}```\n", *parts])


def setup(app):
    """Put the commands' help in place of the page that stands for it."""

    def filled(_, page, source):
        if page == "docs/commands":
            source[0] = commands()

    app.connect("source-read", filled)
