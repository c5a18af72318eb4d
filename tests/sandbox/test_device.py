"""GPUs as nvidia-smi tells of them, and what boxes need for them: all that can be looked at without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import device as device_module
from sandbox import device_box
from sandbox.box_python import python_command
from sandbox.device import Device, device_nodes, devices, driver_folders, read_facts, required_nodes, throttle_reasons
from sandbox.device_box import find_tool, view_of, with_tool
from sandbox.enclosure import submounts
from sandbox.isolation import Limits, open_box
from sandbox.walls import Level, Walls, probe_walls
from tests.sandbox.box_kit import LEVELS, WITH_FILES_WALL, walls_of

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
GPU = Device(index=1, uuid=UUID, name="NVIDIA H200", driver="580.159.04", memory_bytes=143771 << 20)
SMALL = Limits(wall_s=10, cpu_s=10, memory_bytes=256 << 20, processes=16)


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An nvidia-smi of our own, first on PATH."""
    path = folder / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


TWO = f"""case "$*" in
  *--query-gpu=index*) echo "0, GPU-a, NVIDIA L4, 535.1, 23034"; echo "1, {UUID}, NVIDIA H200, 580.159.04, 143771" ;;
  *--query-gpu=clocks*event_reasons*--id={UUID}*) echo "1980, 3201, 118.42, 34, 97, 0x0000000000000024" ;;
  *--query-compute-apps=pid*) echo 4711; echo "[Not Found]"; echo 4712 ;;
  *) exit 9 ;;
esac
"""


def test_devices_are_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, TWO)
    found = devices()
    assert [d.name for d in found] == ["NVIDIA L4", "NVIDIA H200"]
    assert found[1] == GPU
    assert found[1].l2_bytes is None


@pytest.mark.parametrize(
    "script", ["exit 9", "echo 'NVIDIA-SMI has failed because it could not talk to the driver'", "printf '\\377\\n'", "sleep 5"]
)
def test_no_answer_is_no_device_and_no_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    smi(tmp_path, monkeypatch, script)
    monkeypatch.setattr(device_module, "SMI_TIMEOUT_S", 0.5)
    assert devices() == []
    facts = read_facts(GPU, "before")
    assert (facts.sm_mhz, facts.watts, facts.throttle_reasons) == (None, None, None)
    assert facts.others is None or script.startswith(("echo", "printf"))
    assert "did not answer" in facts.how


def test_no_nvidia_smi_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices() == []
    assert read_facts(GPU).others is None


def test_facts_have_units_and_leave_out_what_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, TWO + f"\necho {os.getpid()}")
    facts = read_facts(GPU, "before", ours=[4712])
    assert (facts.sm_mhz, facts.memory_mhz, facts.watts, facts.celsius, facts.utilisation) == (1980, 3201, 118.42, 34, 97)
    assert facts.throttle_reasons == ("software_power_cap", "software_thermal")
    assert facts.others == (4711,)
    assert facts.when == "before"
    assert "clocks_event_reasons" in facts.how


def test_what_nvidia_smi_does_not_know_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, 'case "$*" in *query-gpu*) echo "345, [N/A], [Not Supported], 30, [N/A], [N/A]" ;; esac')
    facts = read_facts(GPU)
    assert (facts.sm_mhz, facts.memory_mhz, facts.watts, facts.utilisation, facts.throttle_reasons) == (345, None, None, None, None)
    assert facts.others == (), "an empty list of processes is an answer"


def test_older_drivers_have_another_name_for_the_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, 'case "$*" in *event_reasons*) exit 2 ;; *query-gpu*) echo "1, 2, 3, 4, 5, 0x1" ;; esac')
    facts = read_facts(GPU)
    assert (facts.sm_mhz, facts.throttle_reasons) == (1, ("idle",))
    assert "throttle_reasons" in facts.how


def test_unknown_reasons_are_kept_as_a_number() -> None:
    assert throttle_reasons("0x0000000000000000") == ()
    assert throttle_reasons("0x1001") == ("idle", "0x1000")
    assert throttle_reasons("[N/A]") is None


def test_the_node_is_the_drivers_number_not_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "_GPUS", tmp_path)
    assert required_nodes(GPU)[0] == Path("/dev/nvidia1"), "without the driver's list, the index"
    for number, uuid in ((3, UUID), (7, "GPU-other")):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
        (tmp_path / f"0000:0{number}:00.0/information").write_text(
            f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
        )
    assert required_nodes(GPU) == [Path("/dev/nvidia3"), Path("/dev/nvidiactl"), Path("/dev/nvidia-uvm")]
    assert all(node.exists() for node in device_nodes(GPU))


def test_a_view_shows_the_drivers_folder_and_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert driver_folders()[0] == tmp_path.resolve()
    view = view_of(GPU)
    assert view.environment["LD_LIBRARY_PATH"].split(":")[0] == str(tmp_path.resolve())
    assert (tmp_path.resolve(), str(tmp_path.resolve())) in view.readonly
    assert view.required == tuple(required_nodes(GPU))


def test_tools_come_with_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TOOLKITS", "_VENDOR"):
        monkeypatch.setattr(device_box, name, (tmp_path / "cuda/bin",) if name == "_TOOLKITS" else tmp_path / "vendor")
    monkeypatch.setenv("PATH", "/usr/bin")
    view = view_of(GPU)
    assert with_tool(view, "kb-none").tool == ""
    for version in ("2024.1.0", "2025.3.1"):
        (tmp_path / "vendor/nsight" / version).mkdir(parents=True)
        (tmp_path / "vendor/nsight" / version / "kb-tool").touch()
    assert find_tool("kb-tool") == tmp_path / "vendor/nsight/2025.3.1/kb-tool"
    (tmp_path / "cuda/bin").mkdir(parents=True)
    (tmp_path / "cuda/bin/kb-tool").touch()
    seen = with_tool(view, "kb-tool")
    assert seen.tool == str(tmp_path / "cuda/bin/kb-tool")
    added = [inside for _, inside in seen.readonly[len(view.readonly) :]]
    assert added == [str(tmp_path / "cuda"), str(tmp_path / "cuda/bin"), str(tmp_path / "vendor")]


# -- boxes ---------------------------------------------------------------------------------------------------------


def run(walls: Walls, script: str, devices: tuple[Path, ...]) -> str:
    with open_box(SMALL, walls, devices=devices) as box:
        result = box.run(["/bin/sh", "-c", script])
    return (result.stdout + result.stderr).decode()


@pytest.mark.parametrize("level", LEVELS)
def test_only_a_box_with_a_device_has_addresses_without_limit(level: Level) -> None:
    walls = walls_of(level)
    held = walls.cgroups.memory is not None
    assert run(walls, "ulimit -v", (Path("/dev/null"),)).strip() == "unlimited"
    assert run(walls, "ulimit -v", ()).strip() == ("unlimited" if held else str(SMALL.memory_bytes >> 10))
    with open_box(SMALL, walls, devices=[Path("/dev/null")]) as box:
        assert any("memory not held" in note for note in box.notes) is not held


@pytest.mark.parametrize("level", WITH_FILES_WALL)
def test_a_device_node_is_shown_where_asked_for_and_only_there(level: Level) -> None:
    node = next((p for p in (Path("/dev/kmsg"), Path("/dev/fuse"), Path("/dev/loop-control")) if p.exists()), None)
    if node is None:
        pytest.skip("no device node here that boxes lack")
    script = f"test -e {node} && echo there || echo hidden"
    assert run(walls_of(level), script, (node,)).strip() == "there"
    assert run(walls_of(level), script, ()).strip() == "hidden"


@pytest.mark.parametrize("level", LEVELS)
def test_a_box_with_a_device_lets_a_driver_name_threads_and_reserve_addresses(level: Level) -> None:
    code = """
import ctypes, mmap, os, threading
def work():
    path = f"/proc/self/task/{threading.get_native_id()}/comm"
    open(path, "w").write("kb-worker")
    print(open(path).read().strip())
thread = threading.Thread(target=work); thread.start(); thread.join()
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
private, anonymous, noreserve = 2, 0x20, 0x4000
print("reserved", libc.mmap(None, 1 << 40, 0, private | anonymous | noreserve, -1, 0) != ctypes.c_void_p(-1).value)
fd = os.memfd_create("kb"); os.ftruncate(fd, 4096); print("memfd", len(mmap.mmap(fd, 4096)))
"""
    walls = walls_of(level)
    interpreter, binds = python_command(walls)
    with open_box(SMALL, walls, binds, devices=[Path("/dev/null")]) as box:
        result = box.run([interpreter, "-I", "-S", "-c", code])
    assert result.stdout.split(b"\n")[:3] == [b"kb-worker", b"reserved True", b"memfd 4096"], result.stderr


def test_mounts_below_a_folder_are_found_outer_first() -> None:
    mountinfo = "\n".join([
        "24 1 0:22 / / rw - overlay overlay rw",
        "31 24 0:30 / /usr/local/nvidia/lib64 ro - ext4 /dev/vdb ro",
        "30 24 0:29 / /usr/local/nvidia ro - ext4 /dev/vdb ro",
        "32 24 0:31 / /usr/lib/my\\040driver/libcuda.so.580 ro - ext4 /dev/vdb ro",
        "33 24 0:32 / /usrlocal rw - tmpfs tmpfs rw",
        "34 24 0:33 / /home rw - tmpfs tmpfs rw",
    ])  # fmt: skip
    assert submounts(["/usr", "/lib"], mountinfo) == ["/usr/lib/my driver/libcuda.so.580", "/usr/local/nvidia", "/usr/local/nvidia/lib64"]


INSIDE = """
import sys
from pathlib import Path
from sandbox.isolation import Limits, open_box
from sandbox.walls import Level, probe_walls
walls = probe_walls(level=Level(sys.argv[1]))
for devices in ([Path("/dev/null")], []):
    with open_box(Limits(wall_s=10, processes=16), walls, devices=devices) as box:
        done = box.run(["/bin/sh", "-c", "cat " + sys.argv[2] + "/folder/text " + sys.argv[2] + "/file; touch " + sys.argv[2] + "/x"])
        print(done.stdout.decode(), done.stderr.decode())
"""


@pytest.mark.parametrize("level", [Level.BWRAP, Level.NAMESPACES])
def test_a_driver_mounted_below_usr_is_seen_and_read_only(repo: Path, level: Level) -> None:
    place = next((p for p in ("/usr/games", "/usr/src", "/usr/local/src") if Path(p).is_dir()), None)
    if os.geteuid() != 0 or place is None or "namespaces" in dict(probe_walls(unsafe=True).missing):
        pytest.skip("needs root, who may mount in a namespace of its own")
    walls_of(level)
    script = f"""set -e
mount -t tmpfs kb {place}; mkdir {place}/folder; mount -t tmpfs kb {place}/folder
chmod 755 {place} {place}/folder; echo in the folder > {place}/folder/text
echo mounted > {place}/folder/other; touch {place}/file; mount --bind {place}/folder/other {place}/file
exec "$0" -c "$1" {level} {place}"""
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, sys.executable, INSIDE], cwd=repo, env={**os.environ, "PYTHONPATH": str(repo)},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = done.stdout.split("touch:")[0]
    assert "in the folder\nmounted" in seen, done.stdout
    assert "Read-only file system" in done.stdout or "Permission denied" in done.stdout
    assert not (Path(place) / "folder").exists()
