"""What a box with a GPU sees: device nodes, the driver's folders, and where asked a tool of the CUDA toolkit.

    view = with_tool(view_of(device), "compute-sanitizer")
    with open_box(limits, walls, view.readonly, environment=view.environment, devices=view.devices) as box:
        ...

Nothing limits the addresses of such a box (a CUDA process reserves far more than it uses), so where no control group holds its
memory nothing does, and the box says so in its notes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandbox.box_errors import BoxError
from sandbox.device import Device, device_nodes, driver_folders, required_nodes
from sandbox.isolation import Limits

# The driver and its tools start threads and open files by the dozen; a context alone takes some hundred MB of host memory.
DEVICE_LIMITS = Limits(wall_s=120.0, cpu_s=240, memory_bytes=8 << 30, processes=256, open_files=4096)
_TOOLKITS = (Path("/usr/local/cuda/bin"), Path("/opt/cuda/bin"))
_VENDOR = Path("/opt/nvidia")  # where the profilers' real programs lie; what is on the path are scripts that start them


@dataclass(frozen=True)
class BoxView:
    """Parameters of a box. required: nodes that must be there inside. tool: the program to start, by its path inside."""

    devices: tuple[Path, ...]
    required: tuple[Path, ...]
    readonly: tuple[tuple[Path, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    tool: str = ""


def _shown(folder: Path) -> bool:
    """Whether every box sees this folder anyway."""
    return folder.is_relative_to("/usr")


def view_of(device: Device) -> BoxView:
    """The nodes of one device, and of no other, and the driver. One node is shown, so CUDA's number of the device is 0."""
    folders = driver_folders()
    environment = {"LD_LIBRARY_PATH": ":".join(map(str, folders)), "CUDA_VISIBLE_DEVICES": "0"}
    binds = tuple((folder, str(folder)) for folder in folders if not _shown(folder))
    return BoxView(tuple(device_nodes(device)), tuple(required_nodes(device)), binds, environment)


def find_tool(name: str) -> Path | None:
    """A program of the CUDA toolkit: on PATH, in the toolkit's folder, or in a folder of its own under the vendor's."""
    found = shutil.which(name)
    places = [Path(found)] if found else []
    places += [folder / name for folder in _TOOLKITS]
    places += sorted(_VENDOR.glob(f"*/*/{name}"), reverse=True)  # newest version first
    return next((path.absolute() for path in places if path.is_file()), None)


def with_tool(view: BoxView, name: str) -> BoxView:
    """The view with a tool and its folders; `tool` stays "" where this machine has none."""
    path = find_tool(name)
    if path is None:
        return view
    home = path.parent.parent if path.parent in _TOOLKITS else path.parent  # scripts in bin start programs beside it
    folders = [home, path.resolve().parent, *([_VENDOR] if _VENDOR.is_dir() else [])]
    seen = [f for f in dict.fromkeys(folders) if not _shown(f) and not (f != _VENDOR and f.is_relative_to(_VENDOR))]
    if Path("/") in seen:
        raise BoxError(f"{path} lies in the root folder, which no box is shown; move it")
    known = {inside for _, inside in view.readonly}
    binds = tuple((folder, str(folder)) for folder in seen if str(folder) not in known)
    return replace(view, readonly=(*view.readonly, *binds), tool=str(path))
