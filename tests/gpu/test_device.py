"""The machine room with a GPU: what nvidia-smi says, the preflight behind every wall, sanitizer and profiler in boxes.

Needs an NVIDIA GPU and nvcc, and for the tools compute-sanitizer and ncu. Every test holds the device's lock.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.box_python import python_command
from sandbox.device import Device, device_nodes, devices, driver_folders, read_facts, required_nodes
from sandbox.device_box import DEVICE_LIMITS, BoxView, find_tool, view_of, with_tool
from sandbox.errors import UnavailableError
from sandbox.isolation import open_box
from sandbox.preflight import preflight
from sandbox.profile_box import profile
from sandbox.quiet import on_device
from sandbox.sanitizer import Check, sanitize
from sandbox.walls import Level, probe_walls
from tests.sandbox.box_kit import LEVELS, WITH_FILES_WALL, walls_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="no GPU: there is no /dev/nvidia0")]

# One program, four ways: right, out of bounds, racing in shared memory, a barrier that not all threads reach.
PROGRAM = r"""
#include <cstdio>
#include <cstring>
__global__ void right(int *out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = i; }
__global__ void spill(int *out, int n) { out[n + threadIdx.x * 4096] = 1; }
__global__ void mix(int *out) { __shared__ int box[128]; box[threadIdx.x] = threadIdx.x; out[threadIdx.x] = box[127 - threadIdx.x]; }
__global__ void split(int *out) { if (threadIdx.x < 16) __syncthreads(); out[threadIdx.x] = 1; }
int main(int count, char **words) {
  const char *how = count > 1 ? words[1] : "right";
  int *out, n = 1 << 20;
  if (cudaMalloc(&out, n * sizeof(int)) != cudaSuccess) return 2;
  if (!strcmp(how, "right")) right<<<n / 256, 256>>>(out, n);
  else if (!strcmp(how, "spill")) spill<<<1, 32>>>(out, n);
  else if (!strcmp(how, "mix")) mix<<<1, 128>>>(out);
  else split<<<1, 32>>>(out);
  cudaError_t end = cudaDeviceSynchronize();
  std::printf("%s: %s\n", how, cudaGetErrorString(end));
  return end == cudaSuccess ? 0 : 3;
}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    """The first device, for these tests alone."""
    found = devices()
    assert found, "/dev/nvidia0 is there, but nvidia-smi lists no device"
    with on_device(found[0].uuid):
        yield found[0]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled program, which boxes see as /prog."""
    nvcc = find_tool("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("program")
    (folder / "run.cu").write_text(PROGRAM)
    subprocess.run(
        [str(nvcc), "-O1", "-lineinfo", "-arch=native", "-o", str(folder / "run"), str(folder / "run.cu")], check=True, timeout=300
    )
    folder.chmod(0o755)
    return folder


def test_the_device_and_what_it_does_are_read(device: Device) -> None:
    assert device.uuid.startswith("GPU-") and device.memory_bytes > 1 << 30 and device.driver
    facts = read_facts(device, "now")
    assert facts.sm_mhz and facts.memory_mhz and facts.celsius, facts
    assert facts.throttle_reasons is not None and facts.others is not None, facts
    assert os.getpid() not in facts.others


def test_nodes_and_driver_are_found(device: Device) -> None:
    assert set(required_nodes(device)) <= set(device_nodes(device))
    assert driver_folders(), "no folder with libcuda.so.1"


@pytest.mark.parametrize("level", LEVELS)
def test_the_preflight_computes_behind_every_wall(device: Device, level: Level) -> None:
    seen = preflight(device, walls_of(level))
    assert seen.ok, seen.why
    assert (seen.uuid, seen.name) == (device.uuid, device.name)
    assert seen.driver_api is not None and seen.driver_api >= 11000
    assert seen.l2_bytes is not None and seen.l2_bytes >= 1 << 20
    print(f"{level}: {seen.seconds} s, L2 {seen.l2_bytes}, driver {seen.driver_api}")


@pytest.mark.parametrize("level", WITH_FILES_WALL)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_hidden_node_is_named(device: Device, level: Level, place: int) -> None:
    view, hidden = view_of(device), required_nodes(device)[place]
    with pytest.raises(UnavailableError, match=f"does not show {hidden}"):
        preflight(device, walls_of(level), replace(view, devices=tuple(d for d in view.devices if d != hidden)))


def test_without_the_driver_there_is_a_reason(device: Device) -> None:
    view = replace(view_of(device), environment={"LD_LIBRARY_PATH": "/nowhere"}, readonly=())
    seen = preflight(device, probe_walls(), view)
    listed = "libcuda.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    assert seen.ok or "libcuda.so.1" in seen.why
    assert seen.ok is listed, seen.why


def test_torch_computes_in_the_box(device: Device) -> None:
    pytest.importorskip("torch")
    walls, view = probe_walls(), view_of(device)
    python, binds = python_command(walls, packages=True)
    code = "import torch; x = torch.arange(1000, device='cuda', dtype=torch.float64); print(torch.cuda.get_device_name(), (x * x).sum().item())"
    with open_box(DEVICE_LIMITS, walls, [*binds, *view.readonly], None, view.environment, view.devices) as box:
        result = box.run([python, "-I", "-c", code])
    assert result.stdout.decode().strip() == f"{device.name} 332833500.0", result.stderr.decode()[-2000:]


def tooled(device: Device, name: str) -> BoxView:
    view = with_tool(view_of(device), name)
    if not view.tool:
        pytest.skip(f"no {name}")
    return view


@pytest.mark.parametrize(("check", "how", "outcome"), [
    ("memcheck", "right", "clean"), ("racecheck", "right", "clean"), ("synccheck", "right", "clean"),
    ("memcheck", "spill", "errors"), ("racecheck", "mix", "errors"), ("synccheck", "split", "errors"),
])  # fmt: skip
def test_the_sanitizer_tells_right_from_wrong(device: Device, program: Path, check: Check, how: str, outcome: str) -> None:
    view = tooled(device, "compute-sanitizer")
    with open_box(DEVICE_LIMITS, probe_walls(), [*view.readonly, (program, "/prog")], None, view.environment, view.devices) as box:
        seen = sanitize(box, view, ["/prog/run", how], check=check)
    print(seen)
    assert seen.outcome == outcome, seen


def test_counters_are_read_in_the_box_or_there_is_a_reason(device: Device, program: Path) -> None:
    view = tooled(device, "ncu")
    metrics = ["gpu__time_duration.sum", "dram__bytes_write.sum", "launch__grid_size"]
    with open_box(DEVICE_LIMITS, probe_walls(), [*view.readonly, (program, "/prog")], None, view.environment, view.devices) as box:
        seen = profile(box, view, ["/prog/run", "right"], metrics, launches=1)
    print(seen)
    params = Path("/proc/driver/nvidia/params")
    if params.exists() and "RmProfilingAdminOnly: 1" in params.read_text():
        assert seen.kernels or "NVreg_RestrictProfilingToAdminUsers" in seen.unavailable, seen
        return
    (values,) = seen.kernels.values() or [{}]
    assert 100 < values["gpu__time_duration.sum"] < 1e9, seen
    assert values["launch__grid_size"] == (1 << 20) / 256
