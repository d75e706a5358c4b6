"""A broadcast ring in shared memory: one writer, N readers that poll, as vLLM's `MessageQueue` does.

Each slot holds one message. The writer waits until every reader has taken the slot's last message; a reader
polls the slot's number with `sched_yield`. Polling keeps a core busy and makes the message late when cores
are short: on purpose.
"""

import os
import pickle
from multiprocessing import shared_memory

import numpy as np

SLOTS = 4
HEAD = 64  # bytes before the payload: the message's number, its size


class Ring:
    """One writer, `readers` readers; messages are pickled and at most `capacity` bytes."""

    def __init__(self, readers: int, capacity: int, name: str | None = None) -> None:
        self.readers, self.capacity = readers, capacity
        self.slot = HEAD + 8 * readers + -(-capacity // 8) * 8
        size = SLOTS * self.slot
        self.memory = shared_memory.SharedMemory(name=name, create=name is None, size=size)
        if name is None:
            np.frombuffer(self.memory.buf, np.uint8)[:] = 0
        heads = HEAD // 8 + readers
        self.heads = [np.frombuffer(self.memory.buf, np.int64, heads, i * self.slot) for i in range(SLOTS)]
        self.taken = [head[HEAD // 8 :] for head in self.heads]
        self.number = 0

    def reader(self) -> tuple[int, int, str]:
        """Return what another process needs to attach: `Ring(*ring.reader())`."""
        return self.readers, self.capacity, self.memory.name

    def put(self, message: object) -> None:
        """Broadcast one message; waits until the slow readers have freed its slot."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        if len(data) > self.capacity:
            raise ValueError(f"a message of {len(data)} bytes does not fit a slot of {self.capacity}")
        number = self.number + 1
        slot = number % SLOTS
        while int(self.taken[slot].min()) < number - SLOTS:
            os.sched_yield()
        start = slot * self.slot + HEAD + 8 * self.readers
        self.memory.buf[start : start + len(data)] = data
        self.heads[slot][1] = len(data)
        self.heads[slot][0] = number  # last: readers look at it
        self.number = number

    def get(self, reader: int) -> object:
        """Return the next message of this reader; polls until it is there."""
        number = self.number + 1
        slot = number % SLOTS
        head = self.heads[slot]
        while int(head[0]) < number:
            os.sched_yield()
        start = slot * self.slot + HEAD + 8 * self.readers
        message = pickle.loads(self.memory.buf[start : start + int(head[1])])
        self.taken[slot][reader] = number
        self.number = number
        return message

    def close(self, *, unlink: bool = False) -> None:
        """Let go of the memory; the writer also removes it."""
        self.heads, self.taken = [], []
        self.memory.close()
        if unlink:
            self.memory.unlink()
