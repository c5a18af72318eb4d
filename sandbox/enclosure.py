"""Command lines that put a command behind walls. Pure: nothing here starts anything or reads the environment.

Three enclosures, strongest first: bubblewrap; the same picture made by hand with unshare and mounts; and an
unprivileged uid with no file-system wall. `joined` and `limited` wrap any of them in a cgroup and in rlimits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NOBODY = 65534
PATH = "/usr/bin:/bin"
# Inside the box: the writable folder, and the read-only one that the parent fills.
SCRATCH, INBOX = "/box", "/in"
# Public facts about the machine that compilers and loaders read; absent ones are skipped.
_PUBLIC = ("/etc/alternatives", "/etc/ld.so.cache", "/sys/devices/system/cpu", "/sys/devices/system/node")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Enclosure:
    """What the command will see. `binds` are (source here, path inside), all read-only."""

    scratch: Path
    inbox: Path
    binds: tuple[tuple[Path, str], ...] = ()
    devices: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    tmp_bytes: int = 256 << 20

    def variables(self, home: str = "/tmp") -> dict[str, str]:
        """The whole environment of the command."""
        base = {"PATH": PATH, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
        return {**base, **self.environment}


def system_binds() -> tuple[list[str], list[tuple[str, str]]]:
    """(folders to bind read-only, (target, name) symlinks to make) for the system of this machine."""
    folders, links = ["/usr"], []
    for name in ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"):
        path = Path(name)
        if path.is_symlink():
            links.append((str(path.readlink()), name))
        elif path.is_dir():
            folders.append(name)
    return folders + [p for p in _PUBLIC if Path(p).exists()], links


def submounts(folders: Sequence[str], mountinfo: str) -> list[str]:
    """Mount points strictly below these folders, outer ones first; mountinfo as in /proc/self/mountinfo.

    A GPU's driver is often mounted into a container below /usr, as a folder or file by file, and a plain bind leaves such
    places empty."""
    found = set()
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            if any(Path(folder) in Path(point).parents for folder in folders):
                found.add(point)
    return sorted(found)


def bwrap_argv(bwrap: str, box: Enclosure, seccomp_fd: int | None = None) -> list[str]:
    """Prefix for bubblewrap. Start it with an *empty* environment: pid 1 inside is bwrap itself."""
    argv = [bwrap, "--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    argv += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "box"]
    folders, links = system_binds()
    for folder in folders:
        argv += ["--ro-bind", folder, folder]
    for target, name in links:
        argv += ["--symlink", target, name]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for device in box.devices:
        argv += ["--dev-bind", str(device), str(device)]
    argv += ["--size", str(box.tmp_bytes), "--tmpfs", "/tmp"]
    # after /tmp, so that sources and targets below /tmp are not hidden by it
    for source, inside in box.binds:
        argv += ["--ro-bind", str(source), inside]
    argv += ["--ro-bind", str(box.inbox), INBOX, "--bind", str(box.scratch), SCRATCH]
    # bwrap's own root and /dev (with /dev/shm) are writable tmpfs unless said otherwise
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", SCRATCH, "--clearenv"]
    for name, value in box.variables().items():
        argv += ["--setenv", name, value]
    if seccomp_fd is not None:
        argv += ["--seccomp", str(seccomp_fd)]
    return [*argv, "--"]


_BUILD_ROOT = """set -eu
root=$1; drop=$2; tmp=$3; shift 3
mount -t tmpfs -o mode=755,size=1m kernelbraid "$root"
while [ "$1" != -- ]; do
  kind=$1; from=$2; to=$3; shift 3
  mkdir -p "$root$(dirname "$to")"
  case $kind in
    link) ln -s "$from" "$root$to" ;;
    rw) mkdir -p "$root$to"; mount --bind "$from" "$root$to"; mount -o remount,bind,nosuid,nodev "$root$to" ;;
    dev) : > "$root$to"; mount --bind "$from" "$root$to" ;;
    ro) if [ -d "$from" ]; then mkdir -p "$root$to"; elif [ ! -e "$root$to" ]; then : > "$root$to"; fi
        mount --bind "$from" "$root$to"; mount -o remount,bind,ro,nosuid,nodev "$root$to" ;;
  esac
done
shift
mkdir -p "$root/proc" "$root/tmp" "$root/old"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o nosuid,nodev,mode=1777,size="$tmp" tmp "$root/tmp"
cd "$root"
pivot_root . old
umount -l old
mount -o remount,bind,ro /
cd @SCRATCH@
# not pid 1 itself: signals with a default action, SIGXCPU among them, do not reach a pid 1
status=0
setpriv $drop -- "$@" || status=$?
exit $status
""".replace("@SCRATCH@", SCRATCH)


def namespaces_argv(root: Path, box: Enclosure, uid: int | None) -> list[str]:
    """Prefix for the enclosure made by hand: `root` is an empty folder to mount the new system on.

    uid is the unprivileged uid to become, when we are root; otherwise None, and a user namespace is used.
    """
    argv = ["/usr/bin/unshare", "--net", "--pid", "--ipc", "--uts", "--mount", "--fork", "--kill-child"]
    drop = "--no-new-privs --bounding-set=-all --inh-caps=-all"
    if uid is None:
        argv += ["--user", "--map-root-user"]
    else:
        drop += f" --reuid={uid} --regid={uid} --clear-groups"
    argv += ["--", "/bin/sh", "-c", _BUILD_ROOT, "kernelbraid", str(root), drop, str(box.tmp_bytes)]
    folders, links = system_binds()
    if box.devices:
        folders += [p for p in submounts(folders, Path("/proc/self/mountinfo").read_text()) if Path(p).exists()]
    for folder in folders:
        argv += ["ro", folder, folder]
    for target, name in links:
        argv += ["link", target, name]
    for device in (*_DEVICES, *map(str, box.devices)):
        argv += ["dev", device, device]
    for source, inside in (*box.binds, (box.inbox, INBOX)):
        argv += ["ro", str(source), inside]
    argv += ["rw", str(box.scratch), SCRATCH, "--"]
    return [*argv, *_with_environment(box.variables())]


def uid_argv(box: Enclosure, uid: int | None) -> list[str]:
    """Prefix with no file-system wall: own uid if given, no way to regain rights, start in the scratch folder."""
    drop = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"] if uid is not None else []
    argv = ["/usr/bin/setpriv", *drop, "--no-new-privs", "--"]
    enter = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "kernelbraid", str(box.scratch)]
    return [*argv, *enter, *_with_environment(box.variables(home=str(box.scratch)))]


def _with_environment(variables: Mapping[str, str]) -> list[str]:
    return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())]


def become_argv(uid: int) -> list[str]:
    """Prefix that becomes an unprivileged uid before the enclosure is built (so RLIMIT_NPROC binds)."""
    return ["/usr/bin/setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--"]


def joined(join_files: Sequence[str], argv: Sequence[str]) -> list[str]:
    """The command, started inside the given cgroups (their cgroup.procs files). Exit 97: could not join."""
    if not join_files:
        return list(argv)
    script = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 97; shift; done; shift; exec "$@"'
    return ["/bin/sh", "-c", script, "kernelbraid", *join_files, "--", *argv]


def limited(limits: Mapping[str, int], argv: Sequence[str]) -> list[str]:
    """The command under rlimits: names are prlimit's long options (cpu, nofile, fsize, nproc, as, core)."""
    options = []
    for name, value in limits.items():
        # a process that ignores SIGXCPU is killed two seconds later
        options.append(f"--{name}={value}:{value + 2}" if name == "cpu" else f"--{name}={value}:{value}")
    return ["/usr/bin/prlimit", *options, "--", *argv]
