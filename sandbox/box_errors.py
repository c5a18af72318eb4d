"""What can go wrong in and around the box.

KernelbraidError
├── BoxError             the box itself could not be built or did not hold (infrastructure, not the candidate)
├── FlagRefused          a compiler flag is not on the allowlist
├── CompileFailed        the compiler rejected the source; `log` holds its words
├── CompileLimit         the compiler hit a limit of its box; `which` names it
└── ChildError           a child process did not do what it was asked; `log` holds the tail of its output
    ├── ChildCrashed     it died by a signal or ended by itself
    ├── ChildHung        it did not answer in time
    ├── ChildLimit       it hit a limit of its box; `which` names it
    ├── ChildRaised      code of the candidate raised an exception there
    ├── ChildRefused     it answered that it cannot do this (kb_create refused, kb_step returned an error)
    └── ChildProtocolError  its answer was not one line of the protocol, or contradicted itself
UnavailableError
└── NoWallsError         no wall stands on this machine

The judge turns the Compile* and Child* exceptions into statuses of an Evaluation; they never leave it.
"""

# ruff: noqa: N818 - these are named after what happened, as the statuses of an Evaluation are
from __future__ import annotations

from sandbox.errors import KernelbraidError, UnavailableError


class BoxError(KernelbraidError):
    """The box could not be built, or something of it outlived its end."""


class NoWallsError(UnavailableError):
    """No wall stands, so candidate code would run with the rights of this user."""


class FlagRefused(KernelbraidError):
    """A compiler flag outside the allowlist."""


class CompileFailed(KernelbraidError):
    """The compiler rejected the source. `log` is its (capped) output."""

    def __init__(self, log: str) -> None:
        self.log = log
        first = next((line for line in log.splitlines() if "error" in line), log.strip()[:200])
        super().__init__(f"the source does not compile: {first or 'the compiler said nothing'}")


class CompileLimit(KernelbraidError):
    """The compiler hit a limit; `which` is wall, cpu, memory, processes, output or file."""

    def __init__(self, which: str, log: str) -> None:
        self.which = which
        self.log = log
        super().__init__(f"compiling hit the {which} limit; make the source smaller or raise the limit")


class ChildError(KernelbraidError):
    """Base of all failures of a child process."""

    def __init__(self, message: str, log: str = "") -> None:
        self.log = log
        super().__init__(message)


class ChildCrashed(ChildError):
    """The child ended before it answered. `signal` is a name such as SIGSEGV, or None; `exit_code` else."""

    def __init__(self, signal: str | None, exit_code: int | None, log: str) -> None:
        self.signal = signal
        self.exit_code = exit_code
        how = f"died by {signal}" if signal else f"ended by itself with exit code {exit_code}"
        super().__init__(f"the child {how} before it answered", log)


class ChildHung(ChildError):
    """The child did not answer within `seconds`; it was killed with all its descendants."""

    def __init__(self, command: str, seconds: float, log: str) -> None:
        self.command = command
        self.seconds = seconds
        super().__init__(f"the child did not answer '{command}' within {seconds:.3g} s and was killed", log)


class ChildLimit(ChildError):
    """The child hit a limit; `which` is wall, cpu, memory, processes, output or file."""

    def __init__(self, which: str, log: str) -> None:
        self.which = which
        super().__init__(f"the child hit its {which} limit", log)


class ChildRaised(ChildError):
    """The candidate's Python code raised; the message ends with its traceback. The process still lives."""


class ChildRefused(ChildError):
    """The child answered with an error of its own; the process still lives."""


class ChildProtocolError(ChildError):
    """The child's answer is not what the protocol asks for."""
