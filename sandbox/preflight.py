"""Is the GPU there for a candidate? Asked in the box that candidates get, with the driver alone, before anything is judged.

    with on_device(device.uuid):
        seen = preflight(device, walls)      # UnavailableError if the box hides the device

Nothing here ever falls back to the CPU: either 256 integers came from this very device, or there is a sentence why not.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError, model_validator

from sandbox.box_python import python_command
from sandbox.device import Device
from sandbox.device_box import DEVICE_LIMITS, BoxView, view_of
from sandbox.errors import UnavailableError
from sandbox.isolation import BoxResult, Limits, open_box
from sandbox.records import Frozen
from sandbox.walls import Walls

_CHILD = Path(__file__).resolve().parent / "preflight_child.py"


class Preflight(Frozen):
    """Whether the device computed rightly in the box, else `why` not (one sentence).

    driver_api: the CUDA version of the driver, such as 13000. seconds: from the first look at the device to the checked
    result, without the start of box and interpreter.
    """

    ok: bool
    why: str = ""
    uuid: str = ""
    name: str = ""
    driver_api: int | None = None
    l2_bytes: int | None = None
    seconds: float | None = None

    @model_validator(mode="after")
    def _whole(self) -> Preflight:
        if self.ok == bool(self.why) or (self.ok and not (self.uuid and self.driver_api and self.l2_bytes)):
            raise ValueError("a preflight has either a reason or everything that the device said of itself")
        return self


def preflight(device: Device, walls: Walls, view: BoxView | None = None, limits: Limits = DEVICE_LIMITS) -> Preflight:
    """Compute on the device from inside a box. Hold `on_device` meanwhile, or somebody's times suffer.

    view: what the box sees (default: view_of(device)). Raises UnavailableError that names the node which the box, or this
    machine, does not show. At level `uid` no box hides anything, so there only the machine can.
    """
    seen = view if view is not None else view_of(device)
    gone = [node for node in dict.fromkeys((*seen.required, *seen.devices)) if not node.exists()]
    if gone:
        raise UnavailableError(
            f"{device} cannot be used: this machine has no {gone[0]}; load the driver's modules (nvidia-modprobe -u -c 0)"
        )
    python, binds = python_command(walls)
    with open_box(limits, walls, [*binds, *seen.readonly], None, seen.environment, seen.devices) as box:
        program = box.put(_CHILD.name, _CHILD.read_bytes())
        result = box.run([python, "-I", "-S", program, device.uuid, *map(str, seen.required)])
    answer = _answer(result)
    if answer is None:
        return Preflight(ok=False, why=f"the preflight of {device.name} gave no answer: {_ending(result, limits)}")
    node = answer.pop("node", "")
    if isinstance(node, str) and node:
        raise UnavailableError(f"{device} is hidden: {answer.get('why')}, though this machine has it; no candidate for it can be judged")
    try:
        return Preflight.model_validate(answer)
    except ValidationError:
        return Preflight(ok=False, why=f"the preflight of {device.name} gave half an answer: {str(answer)[:300]}")


def _answer(result: BoxResult) -> dict[str, object] | None:
    """The last line of the output, if it is an object."""
    try:
        found = json.loads((result.stdout.splitlines() or [b""])[-1])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _ending(result: BoxResult, limits: Limits) -> str:
    report = result.report
    if report.limit is not None:
        return f"it hit its {report.limit} limit after {report.wall_s:.1f} s (wall limit: {limits.wall_s:.0f} s)"
    said = result.stderr.decode(errors="replace").strip().splitlines()
    return f"it ended by {report.signal or f'exit code {report.exit_code}'}: {said[-1][:200] if said else 'no word'}"
