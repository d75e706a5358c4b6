import socket

import pytest

import tracelib
from tests.conftest import ROOT
from tests.cut import cut
from tracelib.findings import diagnose


@pytest.fixture
def unused_port():
    """A port of the loopback interface that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("traces") / "server"
    cut(ROOT / "sample_traces" / "starved", target, 46.4, 46.5)
    return target


@pytest.fixture(scope="session")
def results(folder):
    return tracelib.analyse(tracelib.load(folder))


@pytest.fixture(scope="session")
def findings(results):
    return diagnose(results, title="a run")
