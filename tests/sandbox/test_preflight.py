"""The preflight without a GPU: what it answers when nodes are hidden, and, on a driver that we made, when results are wrong."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox import preflight_child
from sandbox.device import Device
from sandbox.device_box import BoxView
from sandbox.errors import UnavailableError
from sandbox.isolation import Limits
from sandbox.preflight import Preflight, preflight
from sandbox.walls import Level, probe_walls
from tests.sandbox.box_kit import WITH_FILES_WALL, walls_of

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
GPU = Device(index=0, uuid=UUID, name="Fake device", driver="580.1", memory_bytes=1 << 30)
NULL = Path("/dev/null")
LIMITS = Limits(wall_s=20, cpu_s=20, memory_bytes=512 << 20, processes=32)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that computes on the CPU, open to every user."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the fake driver with")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).resolve().parent / "fake_driver.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(folder / "libcuda.so.1"), str(source)], check=True, timeout=60)
    folder.chmod(0o755)
    return folder


def view(driver: Path, mode: str = "") -> BoxView:
    environment = {"LD_LIBRARY_PATH": "/driver", "FAKE_DRIVER": mode}
    return BoxView((NULL,), (NULL,), ((driver, "/driver"),), environment)


@pytest.mark.parametrize("level", WITH_FILES_WALL)
def test_a_device_that_computes_rightly_is_ok(driver: Path, level: Level) -> None:
    found = preflight(GPU, walls_of(level), view(driver), LIMITS)
    assert found.ok, found.why
    assert (found.uuid, found.name, found.driver_api, found.l2_bytes) == (UUID, "Fake device", 13000, 50 << 20)
    assert found.seconds is not None and found.seconds < 5


@pytest.mark.parametrize(("mode", "words"), [
    ("wrong", "1 of 256 integers are wrong, the first at 200"),
    ("idle", "256 of 256 integers are wrong"),
    ("no_device", "cuInit returned 100 (CUDA_ERROR_NO_DEVICE)"),
    ("no_jit", "cuModuleLoadData returned 221 (CUDA_ERROR_JIT_COMPILER_NOT_FOUND)"),
    ("crash", "SIGABRT"),
])  # fmt: skip
def test_what_goes_wrong_is_one_sentence(driver: Path, mode: str, words: str) -> None:
    found = preflight(GPU, probe_walls(), view(driver, mode), LIMITS)
    assert not found.ok
    assert words in found.why


def test_another_device_in_the_box_is_not_ours(driver: Path) -> None:
    found = preflight(GPU.model_copy(update={"uuid": "GPU-other"}), probe_walls(), view(driver), LIMITS)
    assert not found.ok and UUID in found.why and "not GPU-other" in found.why


def test_no_driver_in_the_box_is_said(tmp_path: Path) -> None:
    if (
        shutil.which("ldconfig", path="/sbin:/usr/sbin")
        and b"libcuda.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True).stdout
    ):
        pytest.skip("this machine has a driver that every box sees")
    found = preflight(GPU, probe_walls(), BoxView((NULL,), (NULL,)), LIMITS)
    assert not found.ok and "libcuda.so.1" in found.why


@pytest.mark.parametrize("level", WITH_FILES_WALL)
def test_a_hidden_node_is_unavailable_by_name(driver: Path, level: Level) -> None:
    node = next((p for p in (Path("/dev/kmsg"), Path("/dev/fuse"), Path("/dev/loop-control")) if p.exists()), None)
    if node is None:
        pytest.skip("no device node here that boxes lack")
    with pytest.raises(UnavailableError, match=f"does not show {node}, though this machine has it"):
        preflight(GPU, walls_of(level), replace(view(driver), required=(NULL, node)), LIMITS)


@pytest.mark.parametrize("devices", [(), (Path("/dev/kb-none"),)])
def test_a_node_that_the_machine_lacks_is_unavailable_by_name(devices: tuple[Path, ...]) -> None:
    with pytest.raises(UnavailableError, match="this machine has no /dev/kb-none"):
        preflight(GPU, probe_walls(), BoxView(devices, (Path("/dev/kb-none"),)), LIMITS)


def test_a_node_that_the_box_may_not_write_is_unavailable_by_name() -> None:
    """At level `uid` every node is visible, so its mode decides."""
    node = next(
        (p for p in (Path("/dev/kmsg"), Path("/dev/mem"), Path("/dev/loop-control")) if p.exists() and not p.stat().st_mode & 0o006), None
    )
    if node is None:
        pytest.skip("no device node here that is root's alone")
    with pytest.raises(UnavailableError, match=f"may not read and write {node}"):
        preflight(GPU, walls_of(Level.UID), BoxView((), (node,)), LIMITS)


def test_a_preflight_without_a_reason_or_without_facts_cannot_be_built() -> None:
    for fields in ({"ok": True}, {"ok": False}, {"ok": True, "uuid": UUID, "driver_api": 13000, "l2_bytes": 1, "why": "but"}):
        with pytest.raises(ValueError):
            Preflight.model_validate(fields)


def test_the_kernel_compiles_for_old_and_new_devices(tmp_path: Path) -> None:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas here")
    (tmp_path / "kernel.ptx").write_bytes(preflight_child.PTX)
    assert str(preflight_child.FACTOR).encode() in preflight_child.PTX
    for arch in ("sm_80", "sm_90"):
        subprocess.run([ptxas, f"-arch={arch}", str(tmp_path / "kernel.ptx"), "-o", str(tmp_path / "out")], check=True, timeout=60)


def test_every_call_has_a_signature_and_plain_types(driver: Path) -> None:
    library = ctypes.CDLL(str(driver / "libcuda.so.1"))
    for name in preflight_child._SIGNATURES:
        assert hasattr(library, name), f"the fake driver lacks {name}"
