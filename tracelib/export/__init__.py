"""A run for other viewers: Perfetto, speedscope, Chrome's trace viewer."""

#: Viewer -> what its files are called after the run's name.
ENDINGS = {
    "perfetto": ".pftrace",
    "archive": ".perfetto.tar",
    "speedscope": ".speedscope.json",
    "chrome": ".chrome.json",
}
