"""Compiling candidate source to a shared library, inside the same box that later runs it.

A source can attack at compile time (#include of private files, .incbin, template and macro bombs, flags that
load plugins), so the compiler sees no more of the machine than the candidate does, and flags come from an
allowlist. Results are kept under the hash of everything that went in; a build that dies leaves nothing and
blocks nobody.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.box_errors import BoxError, CompileFailed, CompileLimit, FlagRefused
from sandbox.enclosure import SCRATCH
from sandbox.errors import UnavailableError
from sandbox.isolation import Limits, open_box
from sandbox.prelude import HEADER, prelude
from sandbox.walls import Walls

_ALLOWED_FLAGS = re.compile(
    r"-(O[0-3sg]?|Ofast|g[0-3]?|shared|pthread|pedantic|w|fPIC|fopenmp(-simd)?"
    r"|std=(c|gnu)\+\+[0-9a-z]+"
    r"|m[a-z0-9][\w.=+-]*"
    r"|f(no-)?(?!plugin|dump|profile|auto-profile|use-ld|lto-|save|diagnostics-format)[a-z][a-z0-9-]*(=[\w,.-]+)?"
    r"|W(no-)?[a-z][a-z0-9+=-]*"
    r"|D[A-Za-z_]\w*(=[\w.+-]*)?|U[A-Za-z_]\w*"
    r"|l(m|dl|rt|pthread|gomp|atomic|stdc\+\+|numa))"
)
_HEADERS = (".h", ".hh", ".hpp", ".inc", ".ipp", ".tpp", ".cuh")
_MAX_LIBRARY = 256 << 20
_CACHE_BYTES = 2 << 30
_LOCKS = 64

COMPILE_LIMITS = Limits(wall_s=120, cpu_s=120, memory_bytes=3 << 30, processes=32, output_bytes=256 << 10)


@dataclass(frozen=True)
class Compiled:
    """A shared library in the cache. seconds is what building it took (then, if `cached`)."""

    path: Path
    key: str
    seconds: float
    log: str
    cached: bool


@dataclass(frozen=True)
class Compiler:
    """A compiler found on this machine; `version` names it and the CPU that -march=native resolves to."""

    path: str
    version: str


QUIET_FLAGS = ("-Wno-psabi",)  # of every candidate, after host_flags


def host_flags() -> tuple[str, ...]:
    """The flags for a candidate on this machine."""
    return ("-O3", "-march=native", "-std=c++20", "-fPIC", "-shared", "-pthread")


def check_flags(flags: Sequence[str]) -> None:
    """Raise FlagRefused for a flag that could name files, plugins or programs, or that we do not know."""
    for flag in flags:
        if not _ALLOWED_FLAGS.fullmatch(flag):
            raise FlagRefused(f"compiler flag '{flag}' is not allowed; use optimisation, -f, -m, -W, -D flags")


@functools.cache
def find_compiler(name: str | None = None) -> Compiler:
    """g++ or clang++ from PATH, or the named one. Raises UnavailableError if there is none."""
    for candidate in [name] if name else ["g++", "clang++"]:
        path = shutil.which(candidate)
        if path is None:
            continue
        try:
            text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        return Compiler(path, f"{text.splitlines()[0]} [{path}] on {_cpu()}")
    raise UnavailableError(f"no C++ compiler ({name or 'g++ or clang++'}) on PATH; install g++")


def _cpu() -> str:
    """A short hash of what -march=native depends on."""
    keys = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    seen = sorted({line for line in lines if line.partition("\t")[0].partition(":")[0].strip() in keys})
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]


def _key(source: str, flags: Sequence[str], version: str, include_dirs: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for part in (source, *flags, version):
        digest.update(f"{len(part)}:{part}".encode(errors="surrogateescape"))
    for number, folder in enumerate(include_dirs):
        for path in sorted(folder.rglob("*")):
            if path.suffix in _HEADERS and path.is_file():
                text = path.read_bytes()
                digest.update(f"{number}/{path.relative_to(folder)}:{len(text)}:".encode() + text)
    return digest.hexdigest()


@contextmanager
def _building(cache_dir: Path, key: str, patience_s: float) -> Iterator[None]:
    """One builder per key. The lock is the kernel's, so a dead owner frees it; a stuck one is outwaited."""
    folder = cache_dir / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / f"{int(key[:8], 16) % _LOCKS:02d}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline, pause = time.monotonic() + patience_s, 0.002
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
        yield  # without the lock after the deadline: two builds of one key are wasteful, never wrong
    finally:
        os.close(fd)


def _lookup(cache_dir: Path, key: str) -> Compiled | None:
    """A complete entry whose library is what was stored, or None."""
    library, note = cache_dir / f"{key}.so", cache_dir / f"{key}.json"
    try:
        known = json.loads(note.read_text())
        if hashlib.sha256(library.read_bytes()).hexdigest() != known["sha256"]:
            return None
        os.utime(note)
        return Compiled(library, key, float(known["seconds"]), str(known["log"]), cached=True)
    except (OSError, ValueError, KeyError):
        return None


def _store(cache_dir: Path, key: str, library: bytes, seconds: float, log: str) -> Compiled:
    note = {"sha256": hashlib.sha256(library).hexdigest(), "seconds": seconds, "log": log}
    # the note last: an entry without it does not exist
    for suffix, data in ((".so", library), (".json", json.dumps(note).encode())):
        draft = cache_dir / f".{uuid.uuid4().hex}"
        try:
            draft.write_bytes(data)
            draft.replace(cache_dir / f"{key}{suffix}")
        finally:
            draft.unlink(missing_ok=True)
    return Compiled(cache_dir / f"{key}.so", key, seconds, log, cached=False)


def prune_cache(cache_dir: Path, max_bytes: int = _CACHE_BYTES) -> int:
    """Remove the least recently used entries above max_bytes, and dead drafts; the number removed."""
    entries = []
    for note in cache_dir.glob("*.json"):
        try:
            entries.append((note.stat().st_mtime, note, note.with_suffix(".so").stat().st_size))
        except OSError:
            continue
    total, removed = sum(size for _, _, size in entries), 0
    for _, note, size in sorted(entries, key=lambda entry: entry[0]):
        if total <= max_bytes:
            break
        note.unlink(missing_ok=True)
        note.with_suffix(".so").unlink(missing_ok=True)
        total, removed = total - size, removed + 1
    for draft in cache_dir.glob(".[0-9a-f]*"):
        try:
            if time.time() - draft.stat().st_mtime > 600:
                draft.unlink()
        except OSError:
            continue
    return removed


def _build(
    source: str,
    flags: Sequence[str],
    compiler: Compiler,
    walls: Walls,
    limits: Limits,
    include_dirs: Sequence[Path],
    ready: Path | None,
) -> tuple[bytes, float, str]:
    """(library, seconds, log) of one attempt in a box of its own. ready: folder of the precompiled prelude."""
    binds = [(folder, f"/include/{number}") for number, folder in enumerate(include_dirs)]
    if ready is not None:
        binds.append((ready, "/prelude"))
    home = Path(compiler.path).resolve().parent.parent
    if home.parts[1] not in ("usr", "bin"):  # a compiler of an own prefix (conda, /opt) must be shown too
        binds.append((home, str(home)))
    with open_box(limits, walls, readonly=binds) as box:
        shown = box.put("candidate.cpp", source.encode(errors="surrogateescape"))
        output = box.inside(box.scratch / "out.so")
        includes = [f"-I{box.inside(folder.resolve())}" for folder in include_dirs]
        if ready is not None:
            includes += ["-include", box.inside(ready / HEADER)]
        result = box.run(
            # libraries stand after what needs them
            [compiler.path, *(f for f in flags if not f.startswith("-l")), *includes, shown, "-o", output]
            + [f for f in flags if f.startswith("-l")]
        )
        report = result.report
        log = (result.stdout + result.stderr).decode(errors="replace").replace(SCRATCH + "/", "")
        if report.limit is not None:
            raise CompileLimit(report.limit, log)
        if report.exit_code != 0:
            if log.startswith(("bwrap: ", "unshare: ", "setpriv: ")):
                raise BoxError(f"the compiler's box could not be built: {log.splitlines()[0]}")
            # the driver survives when the kernel ends its compiler pass
            if "CPU time limit exceeded" in log and "program" in log:
                raise CompileLimit("cpu", log)
            if "File size limit exceeded" in log:
                raise CompileLimit("file", log)
            raise CompileFailed(log)
        return box.read_back("out.so", _MAX_LIBRARY), report.wall_s, log


def compile_cpu(
    source: str,
    *,
    flags: tuple[str, ...],
    cache_dir: Path,
    walls: Walls,
    limits: Limits = COMPILE_LIMITS,
    include_dirs: Sequence[Path] = (),
    compiler: str | None = None,
) -> Compiled:
    """Compile one C++ source to a shared library, or find it in the cache.

    include_dirs are shown to the compiler read-only; their headers are part of the key. Raises FlagRefused,
    CompileFailed, CompileLimit (the source's fault) or BoxError, UnavailableError (ours).
    """
    check_flags(flags)
    tool = find_compiler(compiler)
    cache_dir.mkdir(parents=True, exist_ok=True)
    key = _key(source, flags, tool.version, include_dirs)
    found = _lookup(cache_dir, key)
    if found is not None:
        return found
    with _building(cache_dir, key, limits.wall_s + 10):
        found = _lookup(cache_dir, key)  # somebody else may have built it while we waited
        if found is None:
            plain = flags == (*host_flags(), *QUIET_FLAGS) and not include_dirs
            ready = prelude(cache_dir, tool.path, tool.version, flags, walls, limits) if plain else None
            library, seconds, log = _build(source, flags, tool, walls, limits, include_dirs, ready)
            found = _store(cache_dir, key, library, seconds, log)
            prune_cache(cache_dir)
        return found
