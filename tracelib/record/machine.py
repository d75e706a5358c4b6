"""What this machine lets us record, and which of its processes are a pod's."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracelib.errors import BadParameter
from tracelib.record.cgroups import CpuGroup, cpu_group, pressure_us
from tracelib.record.ftrace import tracefs
from tracelib.record.processes import PROC, allowed_cpus, text
from tracelib.words import cpus

MISSING = "not installed"
#: Private mounts that end with the process: for tracefs where it is not mounted.
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
MOUNT = ("mount", "-t", "tracefs", "nodev", "/sys/kernel/tracing")
#: A pod as Kubernetes may name it, with its namespace in front or not (RFC 1123: subdomain, label).
POD = re.compile(r"(?:([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)/)?([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)")
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


@dataclass(frozen=True)
class Machine:
    """What it permits; `tools` maps a program to its version, or to None where it is not installed."""

    kernel: str
    host: str
    root: bool
    cpus_online: int
    cpus_allowed: int
    paranoid: int | None
    tracefs: Path | None
    tracefs_writable: bool
    tools: dict[str, str | None]
    group: CpuGroup | None
    clock_source: str
    pressure: bool
    available_kb: int
    mounts_tracefs: bool  # it is not mounted, and we may mount it, for ourselves alone

    @property
    def prefix(self) -> list[str]:
        """What to put before a command that needs tracefs."""
        return [*OWN_MOUNTS] if self.mounts_tracefs else []


def machine(pids: Sequence[int] = ()) -> Machine:
    """Return what this machine permits this user; affinity and quota are those of `pids`, or our own."""
    paranoid = text(PROC / "sys/kernel/perf_event_paranoid")
    place, watched = tracefs(), list(pids) or [os.getpid()]
    line = next(
        line for line in (PROC / "meminfo").read_text().splitlines() if line.startswith("MemAvailable:")
    )
    available_kb = int(line.split()[1])
    return Machine(
        kernel=os.uname().release,
        host=os.uname().nodename,
        root=os.geteuid() == 0,
        cpus_online=os.cpu_count() or 1,
        cpus_allowed=len(allowed_cpus(watched)) or 1,
        paranoid=int(paranoid) if paranoid else None,
        tracefs=place,
        tracefs_writable=place is not None and os.access(place / "instances", os.W_OK),
        tools={name: _version(name) for name in ("perf", "trace-cmd", "nsys", "nvidia-smi")},
        group=cpu_group(watched[0]),
        clock_source=(text(CLOCK_SOURCE) or "unknown").strip(),
        pressure=pressure_us() is not None,
        available_kb=available_kb,
        mounts_tracefs=place is None and _can_mount(),
    )


def lines(here: Machine) -> Iterator[str]:
    """Yield what a person reads of it."""
    quota = here.group and here.group.quota_cpus()
    user = "root" if here.root else f"user {os.geteuid()}"
    version = f"cgroup v{here.group.version}" if here.group else "no cgroup in sight"
    limit = f"quota of {cpus(quota)}" if quota else "no quota"
    yield _row("kernel", f"{here.kernel}, clock source {here.clock_source}, {user}")
    yield _row("CPUs", f"{here.cpus_allowed} may be used of {here.cpus_online}; {version}, {limit}")
    yield _row("perf", f"{here.tools['perf'] or MISSING}, perf_event_paranoid {here.paranoid}")
    yield _row("tracefs", _tracefs_text(here))
    yield _row("pressure", "counted" if here.pressure else "not counted by this kernel")
    for name in ("trace-cmd", "nsys", "nvidia-smi"):
        yield _row(name, here.tools[name] or MISSING)


def _row(title: str, text: str) -> str:
    return f"  {title:<14}{text}"


def _tracefs_text(here: Machine) -> str:
    if here.tracefs is not None:
        access = "writable" if here.tracefs_writable else "not writable by this user (needs root)"
        return f"{here.tracefs}, {access}"
    if here.mounts_tracefs:
        return "not mounted; will be mounted for the recorder alone"
    return "not mounted (as root: mount -t tracefs nodev /sys/kernel/tracing)"


def _can_mount() -> bool:
    """Try to mount tracefs in a namespace of our own: root in a container often may not."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run([*OWN_MOUNTS, *MOUNT], capture_output=True, check=False).returncode == 0


def _version(program: str) -> str | None:
    """Return the first line of what `--version` prints; None where the program is not installed."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"installed, but does not run ({error})"
    words = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
    return words[0] if words else "of unknown version"


def pod_processes(pod: str) -> list[int]:
    """Return the first process of each running container of a pod on this node, by `crictl`; ids as here.

    Raises BadParameter if the name is not one of a pod, or not of exactly one that runs here; OSError if
    crictl cannot be asked.
    """
    commands = _crictl(pod)
    found = _asked(commands["pod"])
    if len(found) != 1:
        many = "NAMESPACE/NAME: pods of several namespaces have this name"
        raise BadParameter("--pod", pod, [many if found else "a pod that runs on this node (crictl pods)"])
    containers = _asked([*commands["containers"][:-1], found[0]])
    pids = [int(pid) for each in containers for pid in _asked([*commands["process"][:-1], each])]
    return sorted(pid for pid in pids if pid > 0)


def pod_lines(pod: str, start_url: str) -> Iterator[str]:
    """Yield the commands that lead to a pod's processes, and into it, by hand on its node."""
    yield f"# the processes of pod {pod}, as this node numbers them"
    yield from map(shlex.join, _crictl(pod).values())
    yield "# their ids in the pod and here, for --pid-map (a recording writes them to run.toml)"
    yield "grep NSpid /proc/PID/task/*/status"
    if start_url:
        yield "# where the server's port cannot be reached from here: from inside of the pod's network"
        yield shlex.join(["nsenter", "--target", "PID", "--net", "curl", "-X", "POST", start_url])
        yield "# its traces as they are seen from here, for --server-traces: /proc/PID/root/abs/traces"


def _crictl(pod: str) -> Mapping[str, list[str]]:
    """Return the questions to crictl; the last word of the second and third stands for an id."""
    named = POD.fullmatch(pod)
    if named is None:
        raise BadParameter("--pod", pod, ["[NAMESPACE/]NAME"])
    namespace, name = named.groups()
    within = ["--namespace", f"^{namespace}$"] if namespace else []
    pattern = "^" + name.replace(".", r"\.") + "$"
    pid = ["--output", "go-template", "--template", "{{.info.pid}}"]
    return {  # crictl takes both names for patterns
        "pod": ["crictl", "pods", "--name", pattern, *within, "--state", "ready", "-q", "--no-trunc"],
        "containers": ["crictl", "ps", "-q", "--no-trunc", "--pod", "POD"],
        "process": ["crictl", "inspect", *pid, "CONTAINER"],
    }


def _asked(command: Sequence[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        raise OSError("--pod: crictl is not installed; run this on the pod's node, as root") from None
    except subprocess.TimeoutExpired as error:
        raise OSError(f"--pod: crictl gave no answer: {error}") from None
    if done.returncode:
        raise OSError(f"--pod: {shlex.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout.split()
