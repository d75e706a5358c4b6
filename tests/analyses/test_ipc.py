"""Ranges of messages, by hand."""

from tests.findings.sheet import Sheet, ns


def test_a_dequeue_s_own_polls_are_not_dequeues_of_their_own():
    """As vLLM's Python frames nest: dequeue, within it acquire_read and wait."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 2, 40, "shm_broadcast.dequeue")
    sheet.doing(0, 3, 39, "shm_broadcast.dequeue")
    sheet.doing(0, 4, 38, "shm_broadcast.dequeue")
    sheet.doing(0, 50, 60, "shm_broadcast.dequeue")
    sheet.kernel(99, 100)
    assert sheet.results().ipc.select("kind", "dur_ns").rows() == [("dequeue", ns(38)), ("dequeue", ns(10))]
