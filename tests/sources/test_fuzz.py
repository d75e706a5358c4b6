"""Every reader against damaged files: a sound trace or a typed error, all loss told, bounded memory.

    make fuzz                                 an hour (of CPU time) of new damage for each reader
    FUZZ_SECONDS=600 FUZZ_READER=perf make fuzz
    FUZZ_SEED=17 FUZZ_READER=perf make fuzz   the damage of seed 17 once more

Without `FUZZ_SECONDS` the seeds are the same few in every run. A failure names its seed; its input is kept
where it says. What can be found also depends on the samples: with captures and other people's files at hand,
there are more.
"""

import faulthandler
import itertools
import os
import random
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import SHARED
from tests.sources.accounting import EVENTS, account_for, sound
from tests.sources.mutations import damaged
from tests.sources.samples import samples_of
from tracelib.errors import TraceError
from tracelib.sources import FORMATS, format_named
from tracelib.sources.discovery import recognised
from tracelib.sources.files import head

READERS = tuple(each.name for each in FORMATS)
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
SEED = os.environ.get("FUZZ_SEED")
INPUTS = 25
#: An input of this many seconds is a hang: the process ends, and shows where it was.
HANG = 300
#: The most that reading one input (a few hundred kB) may add to the process's memory at its peak.
MEMORY = 700 << 20
RESET_PEAK = "5"


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    made = {}

    def of(reader):
        if reader not in made:
            made[reader] = samples_of(reader, SHARED, tmp_path_factory.mktemp(reader))
        return made[reader]

    return of


def _readers():
    chosen = os.environ.get("FUZZ_READER")
    return (chosen,) if chosen else READERS


def _input(reader, seed, samples, folder):
    """Write the files of `seed` and return the path of the one to read, and the sample's name."""
    pick = random.Random(f"{reader} {seed}")
    name = pick.choice(sorted(samples))
    files = dict(samples[name])
    changed = pick.choice(sorted(files))
    other = samples[pick.choice(sorted(samples))]
    files[changed] = damaged(files[changed], next(iter(other.values())), pick)
    folder.mkdir(exist_ok=True)
    for file, data in files.items():
        (folder / file).write_bytes(data)
    return folder / next(iter(files)), name


def _memory(field):
    """Return `VmRSS` or `VmHWM` (its peak) of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field))


def _outcome(reader, path):
    """Read the file and check what comes out; return which kind of outcome it was."""
    start = head(path)
    for each in FORMATS:  # no reader may stumble over another's files either
        assert isinstance(each.sniff(start, path.name), bool)
    try:
        trace = format_named(reader).read(path)
    except TraceError as error:
        assert "\n" not in str(error)
        return "refused"
    sound(trace)
    account_for(reader, path, trace)
    return "read" if sum(getattr(trace, name).height for name in EVENTS) else "empty, and said so"


def _attempt(reader, seed, samples, tmp_path):
    """Return the outcome of one seed and, if it failed, the place of the failure and its story."""
    folder = tmp_path / f"{reader}-{seed}"
    path, name = _input(reader, seed, samples, folder)
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    before = _memory("VmRSS")
    faulthandler.dump_traceback_later(HANG, exit=True)
    try:
        outcome = _outcome(reader, path)
        grown = _memory("VmHWM") - before
        assert grown < MEMORY, f"reading {path.stat().st_size} bytes took {grown >> 20} MB"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  (a panic inside Polars is no Exception)
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "tracelib" in frame.filename or "sources" in frame.filename]
        where = f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
        story = "".join(traceback.format_exception(error, limit=-4))
        return "failed", (where, f"FUZZ_READER={reader} FUZZ_SEED={seed}: {name}, kept in {folder}\n{story}")
    finally:
        faulthandler.cancel_dump_traceback_later()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    return outcome, None


def _seeds():
    if SEED is not None:
        return [int(SEED)]
    if not SECONDS:
        return range(INPUTS)
    # CPU time: an hour is an hour of damage also where other work runs beside it
    end, first = time.process_time() + SECONDS, random.SystemRandom().randrange(10**9)
    return itertools.takewhile(lambda _: time.process_time() < end, itertools.count(first))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux's /proc")
@pytest.mark.parametrize("reader", _readers())
def test_damaged_files(reader, samples, tmp_path):
    """Any damage gives a sound trace or a typed error, and whatever is not read is told of."""
    outcomes, failures, began = Counter(), {}, time.process_time()
    for seed in _seeds():
        outcome, failure = _attempt(reader, seed, samples(reader), tmp_path)
        outcomes[outcome] += 1
        if failure:
            failures.setdefault(*failure)
    seconds = time.process_time() - began
    print(f"\nfuzz {reader}: {outcomes.total():,} inputs in {seconds:.0f} CPU s: {dict(outcomes)}")
    assert not failures, f"{len(failures)} kinds of failure\n\n" + "\n".join(failures.values())


@pytest.mark.parametrize("reader", READERS)
def test_undamaged_samples_are_read(reader, samples, tmp_path):
    """The samples made here are what they claim to be: else the damage would test nothing."""
    for name, files in samples_of(reader, Path("absent"), tmp_path).items():
        for file, data in files.items():
            (tmp_path / file).write_bytes(data)
        entry = tmp_path / next(iter(files))
        file = recognised(entry)
        assert file.format is format_named(reader), name
        trace = file.read()
        sound(trace)
        account_for(reader, entry, trace)
        assert sum(getattr(trace, frame).height for frame in EVENTS) > 3, name
