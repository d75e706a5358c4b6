"""Which quota binds a process: trees of files as kernels lay them out."""

import pytest

from tracelib.record.cgroups import cpu_group, pressure_us, stalled_us

V2 = "30 24 0:26 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 24 0:29 {root} {mount} rw,nosuid - cgroup cgroup rw,cpu,cpuacct"


def machine(tmp_path, *, mountinfo, membership, files):
    """Write a /proc and a cgroup file system; return the first."""
    proc, mount = tmp_path / "proc", tmp_path / "cg"
    (proc / "self").mkdir(parents=True)
    (proc / "42").mkdir()
    (proc / "self" / "mountinfo").write_text(
        mountinfo.replace("{mount}", str(mount)) + "\n" * bool(mountinfo)
    )
    (proc / "42" / "cgroup").write_text(membership)
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    return proc


def test_v2_takes_the_tightest_on_the_way_up(tmp_path):
    proc = machine(
        tmp_path,
        mountinfo=V2.replace("{root}", "/"),
        membership="0::/kubepods/pod1/box\n",
        files={
            "kubepods/cpu.max": "max 100000\n",
            "kubepods/pod1/cpu.max": "150000 100000\n",
            "kubepods/pod1/cpu.stat": "usage_usec 10\nnr_periods 8\nnr_throttled 6\nthrottled_usec 700\n",
            "kubepods/pod1/box/cpu.max": "400000 100000\n",
        },
    )
    group = cpu_group(42, proc)
    assert group.folder.name == "pod1"
    assert group.cpu_max() == "150000 100000"
    assert group.quota_cpus() == 1.5
    assert group.stat() == {"usage_usec": 10, "nr_periods": 8, "nr_throttled": 6, "throttled_usec": 700}


def test_inside_a_container_the_mount_is_the_group(tmp_path):
    """In a cgroup namespace the path is `/`; else it counts from the host's root, which is not mounted."""
    for root, membership in (("/", "0::/\n"), ("/docker/abc", "0::/docker/abc\n")):
        folder = tmp_path / membership.strip().replace("/", "_").replace(":", "")
        proc = machine(
            folder,
            mountinfo=V2.replace("{root}", root),
            membership=membership,
            files={"cpu.max": "600000 100000\n"},
        )
        assert cpu_group(42, proc).quota_cpus() == 6, membership


def test_another_container_s_group_is_not_in_sight(tmp_path):
    """Seen from a container that shows the host's processes: what is mounted is our own group, not theirs."""
    files = {"cpu.max": "600000 100000\n"}
    proc = machine(
        tmp_path, mountinfo=V2.replace("{root}", "/"), membership="0::/../../pod2/box\n", files=files
    )
    assert cpu_group(42, proc) is None


def test_v1_is_told_in_the_words_of_v2(tmp_path):
    proc = machine(
        tmp_path,
        mountinfo=V1.replace("{root}", "/") + "\n" + V2.replace("{root}", "/").replace("{mount}", "/nowhere"),
        membership="4:cpu,cpuacct:/job\n0::/\n",
        files={
            "job/cpu.cfs_quota_us": "200000\n",
            "job/cpu.cfs_period_us": "100000\n",
            "job/cpu.stat": "nr_periods 270\nnr_throttled 226\nthrottled_time 46664283000\n",
            "job/cpuacct.usage": "51665291000\n",
            "cpu.cfs_quota_us": "-1\n",
            "cpu.cfs_period_us": "100000\n",
        },
    )
    group = cpu_group(42, proc)
    assert (group.version, group.cpu_max(), group.quota_cpus()) == (1, "200000 100000", 2)
    assert group.stat() == {
        "nr_periods": 270,
        "nr_throttled": 226,
        "throttled_usec": 46664283,
        "usage_usec": 51665291,
    }


def test_no_limit_is_none_and_no_cgroup_is_none(tmp_path):
    free = machine(
        tmp_path / "a",
        mountinfo=V2.replace("{root}", "/"),
        membership="0::/x\n",
        files={"x/cpu.max": "max 100000\n"},
    )
    assert cpu_group(42, free).quota_cpus() is None
    bare = machine(tmp_path / "b", mountinfo="", membership="", files={})
    assert cpu_group(42, bare) is None


def test_mount_points_with_blanks(tmp_path):
    proc = machine(tmp_path / "a b", mountinfo="", membership="0::/\n", files={"cpu.max": "50000 100000"})
    mount = str(tmp_path / "a b" / "cg").replace(" ", r"\040")
    (proc / "self" / "mountinfo").write_text(V2.replace("{root}", "/").replace("{mount}", mount) + "\n")
    assert cpu_group(42, proc).quota_cpus() == 0.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("some avg10=6.56 avg60=3.75 avg300=1.76 total=10039908\nfull avg10=0.00 total=3\n", 10039908),
        ("", None),
    ],
)
def test_pressure(tmp_path, text, expected):
    (tmp_path / "cpu").write_text(text)
    assert stalled_us(tmp_path / "cpu") == expected
    assert stalled_us(tmp_path / "absent") is None


def test_a_containers_own_pressure_goes_before_the_hosts(tmp_path):
    host = "some avg10=0.00 avg60=0.00 avg300=0.00 total=900\n"
    own = {"cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", "cpu.max": "max 100000"}
    for name, files, expected in (("v2", own, 7), ("old", {"cpu.max": "max 100000"}, 900)):
        proc = machine(tmp_path / name, mountinfo=V2.replace("{root}", "/"), membership="0::/\n", files=files)
        (proc / "pressure").mkdir()
        (proc / "pressure" / "cpu").write_text(host)
        assert pressure_us(proc) == expected
    bare = machine(tmp_path / "bare", mountinfo="", membership="", files={})
    assert pressure_us(bare) is None
