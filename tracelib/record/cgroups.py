"""The CPU limit that a process runs under: the tightest quota on its way up through the cgroups, v1 or v2.

Definitions: the kernel's Documentation/admin-guide/cgroup-v2.rst ("CPU") and scheduler/sched-bwc.rst (v1).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tracelib.record.processes import PROC, text

NO_LIMIT = "max 100000"


@dataclass(frozen=True)
class CpuGroup:
    """The cgroup whose quota binds a process first, or its own where there is none. `version` is 1 or 2."""

    version: int
    folder: Path

    def cpu_max(self) -> str:
        """Return the limit as cgroup v2 spells it: quota and period in us, or "max PERIOD"."""
        return _cpu_max(self.folder, self.version)

    def quota_cpus(self) -> float | None:
        """Return the limit in CPUs, None where there is none."""
        return _cpus(self.cpu_max())

    def stat(self) -> dict[str, int]:
        """Return the counters of cpu.stat as v2 spells them.

        Keys where the kernel has them: `usage_usec`, `nr_periods`, `nr_throttled`, `throttled_usec`. v1
        counts `throttled_time` in ns; that is converted.
        """
        counters = {
            key: int(value) for key, value in (line.split() for line in _lines(self.folder / "cpu.stat"))
        }
        if "throttled_time" in counters:
            counters["throttled_usec"] = counters.pop("throttled_time") // 1000
        usage = _first_word(self.folder / "cpuacct.usage")
        if "usage_usec" not in counters and usage is not None:
            counters["usage_usec"] = int(usage) // 1000
        return counters


def cpu_group(pid: int, proc: Path = PROC) -> CpuGroup | None:
    """Return the cgroup that limits the CPU time of `pid`; None where no such cgroup is in sight."""
    for version, path in _memberships(proc / str(pid) / "cgroup"):
        mount = _mount(version, proc / "self" / "mountinfo")
        # A path through ".." leads out of our cgroup namespace: the mount holds our own container's groups.
        if mount is not None and ".." not in path.split("/"):
            folders = list(_upwards(*mount, path))
            return CpuGroup(version, min(folders, key=lambda folder: _tightness(folder, version)))
    return None


def pressure_us(proc: Path = PROC) -> int | None:
    """Return for how long some thread waited for a CPU so far, in us: on this machine, or in this container.

    The top of the mounted cgroup v2 hierarchy is the whole machine on a host and the container in a
    container, while /proc/pressure/cpu, the second choice, is the host's everywhere. None where the kernel
    does not count.
    """
    mount = _mount(2, proc / "self" / "mountinfo")
    own = None if mount is None else stalled_us(mount[0] / "cpu.pressure")
    return stalled_us(proc / "pressure" / "cpu") if own is None else own


def stalled_us(path: Path) -> int | None:
    """Return `total` of the line `some` of a pressure file, in us, None where the kernel has no such file.

    Definition: the kernel's Documentation/accounting/psi.rst.
    """
    lines = [line for line in _lines(path) if line.startswith("some ")]
    if not lines:
        return None  # no PSI, or switched off (psi=0): reading then fails with EOPNOTSUPP
    return int(lines[0].rpartition("total=")[2])


def _memberships(path: Path) -> Iterator[tuple[int, str]]:
    """Yield version and path of the groups that can limit the CPU; v1's first: only one hierarchy has it."""
    lines = [line.split(":", 2) for line in _lines(path)]
    yield from ((1, group) for _, controllers, group in lines if "cpu" in controllers.split(","))
    yield from ((2, group) for number, controllers, group in lines if number == "0" and not controllers)


def _mount(version: int, mountinfo: Path) -> tuple[Path, str] | None:
    """Return where the hierarchy is mounted, and which of its groups is the mount's root."""
    for line in _lines(mountinfo):
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if (version == 2 and kind == "cgroup2") or (
            version == 1 and kind == "cgroup" and "cpu" in options.split(",")
        ):
            root, folder = left.split()[3:5]
            return Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), folder)), root
    return None


def _upwards(mount: Path, root: str, group: str) -> Iterator[Path]:
    """Yield the folders of the group and of those above it, as far as the mount shows them.

    Inside a container the mount often starts at the container's own group, while the path counts from the
    host's root: a path that is not there means the mount itself.
    """
    inside = group.removeprefix(root) if root != "/" else group
    folder = mount / inside.lstrip("/")
    while folder != mount and folder.is_dir():
        yield folder
        folder = folder.parent
    yield mount


def _tightness(folder: Path, version: int) -> float:
    cpus = _cpus(_cpu_max(folder, version))
    return float("inf") if cpus is None else cpus


def _cpu_max(folder: Path, version: int) -> str:
    if version == 2:
        return next(iter(_lines(folder / "cpu.max")), NO_LIMIT)
    quota, period = (_first_word(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return NO_LIMIT if quota is None or int(quota) < 0 else f"{quota} {period}"


def _cpus(cpu_max: str) -> float | None:
    quota, period = cpu_max.split()
    return None if quota == "max" else int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    return (text(path) or "").splitlines()


def _first_word(path: Path) -> str | None:
    lines = _lines(path)
    return lines[0].split()[0] if lines else None
