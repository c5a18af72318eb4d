"""Every error kernelbraid raises on purpose.

KernelbraidError
├── RecordError        a record's fields contradict each other
├── ProblemError       a problem folder is incomplete or inconsistent
├── PlanError          a plan file cannot be expanded for this graph
│   └── IllegalPlan    the legality checker refused the plan
├── AssemblyError      implementations and plan do not fit together
└── UnavailableError   this machine lacks something the judge needs

Failures of a *candidate* are values (an Evaluation with a status), never exceptions of this tree.
"""

from __future__ import annotations


class KernelbraidError(Exception):
    """Base class. The message says what is wrong and what to do; the CLI prints it without a traceback."""


class RecordError(KernelbraidError):
    """A record was built with fields that contradict each other."""


class ProblemError(KernelbraidError):
    """A problem folder is incomplete or inconsistent."""


class PlanError(KernelbraidError):
    """A plan file cannot be expanded for this stage graph."""


class IllegalPlan(PlanError):
    """The legality checker refused a plan; `violations` lists every rule broken."""

    def __init__(self, plan: str, violations: list[str]) -> None:
        self.violations = violations
        shown = "\n  ".join(violations[:12])
        more = f"\n  ... and {len(violations) - 12} more" if len(violations) > 12 else ""
        super().__init__(f"plan '{plan}' is not legal; fix the plan file:\n  {shown}{more}")
        self.plan = plan

    def __reduce__(self) -> tuple[type[IllegalPlan], tuple[str, list[str]]]:
        """Errors cross processes by pickle, which calls the class with `args`: those are the message here."""
        return type(self), (self.plan, self.violations)


class AssemblyError(KernelbraidError):
    """Implementations and plan do not fit together."""


class UnavailableError(KernelbraidError):
    """This machine lacks something the judge needs (a compiler, a wall, a device)."""
