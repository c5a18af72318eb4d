"""The standard headers every assembled source includes, parsed once per machine: a third of the time of a small build.

The compiler is given the precompiled header by `-include`; the source's own includes then find their guards set, so the text
of a source compiles to the same with and without it. It is built in the same box from nothing but the text below. Only
g++ with the standard flags gets it: with other flags a source is compiled plainly."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from sandbox.box_errors import BoxError
from sandbox.isolation import Limits, open_box
from sandbox.walls import Level, Walls

TEXT = """#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
"""
HEADER = "prelude.hpp"
_MAX_BYTES = 512 << 20


def prelude(cache_dir: Path, compiler: str, version: str, flags: Sequence[str], walls: Walls, limits: Limits) -> Path | None:
    """Folder with prelude.hpp and its precompiled form for these flags, built on first use; None where that is of no use."""
    if "g++" not in Path(compiler).name or walls.level is Level.UID:  # another uid may not read our cache
        return None
    key = hashlib.sha256("\0".join((TEXT, version, *flags)).encode()).hexdigest()[:24]
    folder = cache_dir / "preludes" / key
    if (folder / f"{HEADER}.gch").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / f"{HEADER}.gch").exists():
            _build(folder, compiler, flags, walls, limits)
    return folder if (folder / f"{HEADER}.gch").exists() else None


def _build(folder: Path, compiler: str, flags: Sequence[str], walls: Walls, limits: Limits) -> None:
    """Fill the folder; leaves it empty where the build fails, because a faster build is no reason to fail one."""
    try:
        with open_box(limits, walls) as box:
            shown = box.put(HEADER, TEXT.encode())
            output = box.inside(box.scratch / "out.gch")
            wanted = [f for f in flags if not f.startswith("-l")]
            report = box.run([compiler, *wanted, "-x", "c++-header", shown, "-o", output]).report
            if report.limit is not None or report.exit_code != 0:
                return
            built = box.read_back("out.gch", _MAX_BYTES)
    except BoxError:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in ((HEADER, TEXT.encode()), (f"{HEADER}.gch", built)):  # the compiled form last: without it there is none
        draft = folder / uuid.uuid4().hex
        draft.write_bytes(data)
        draft.chmod(0o644)
        os.replace(draft, folder / name)
