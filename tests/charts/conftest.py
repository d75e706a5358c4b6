import pytest

from tests.charts.server import full_server, make, sampled_server


@pytest.fixture
def results():
    """The hand-made server of :mod:`tests.charts.server`."""
    return make()


@pytest.fixture
def full():
    """The same with host time, GPU operations and steps."""
    return full_server()


@pytest.fixture
def sampled():
    """The same with CPU samples."""
    return sampled_server()
