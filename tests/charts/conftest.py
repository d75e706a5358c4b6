import pytest

from tests.charts.server import make


@pytest.fixture
def results():
    """The hand-made server of :mod:`tests.charts.server`."""
    return make()
