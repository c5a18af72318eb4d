"""What a campaign does: one resolved record, written into its run folder and read back on resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from sandbox.errors import KernelbraidError
from sandbox.problem import Problem
from sandbox.records import Frozen


class SettingsError(KernelbraidError):
    """Settings contradict each other or name what there is not."""


class CampaignSettings(Frozen):
    """No optionals: what is not said has its default here, and unknown keys are errors.

    Precedence: these defaults, then the campaign file (--campaign), then the command line."""

    problem: str = "kimi_linear_decode"
    size: str = "small"
    target: Literal["cpu"] = "cpu"
    threads: int = Field(default=0, ge=0)  # of a candidate; 0: all CPUs this process may use
    engine: Literal["ray", "local"] = "ray"
    specialists: tuple[str, ...] = ()  # () means all
    script: str = ""  # path of a script to replay instead of tuning
    seed: int = 0
    start_plan: str = "unfused"
    opponents: tuple[str, ...] = ("fused",)  # hand-written plans that the result is paired with at the end
    rivals: tuple[str, ...] = ("baseline", "torch_best")  # baselines of the problem, paired at the end
    skills: tuple[str, ...] = ()  # further folders of skills
    minutes: float = Field(default=4.75, gt=0)  # for the whole campaign, the end included
    candidates: int = Field(default=90, gt=0)  # judged at most
    rounds: int = Field(default=4, gt=0)  # of screening, admission and plans
    screened: int = Field(default=44, gt=0)  # stages judged alone in a round before their best are tried together
    patience: int = Field(default=6, gt=0)  # evaluations of a stage without a better one before it is left alone
    batch: int = Field(default=3, gt=0)  # proposals of a specialist at a time
    plans: int = Field(default=2, ge=0)  # rewritten plans judged per round
    processes: int = Field(default=5, ge=1)  # fresh process pairs of an admission and of the end; below 5 nothing is admitted
    pairs: int = Field(default=6, ge=1)  # interleaved pairs in each
    seeds: int = Field(default=3, ge=1)  # fresh cases under ordinary weights
    memory: bool = True  # begin with what memory holds, and admit to it
    compilers: int = Field(default=2, ge=1)

    @field_validator("skills", mode="after")
    @classmethod
    def _absolute(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(Path(f).resolve()) for f in folders)

    def check(self) -> None:
        """Refuse what cannot be run, before anything is made. Raises SettingsError, ProblemError, RoleError, SkillError."""
        from agents.roles import load_roles
        from agents.script import read_script
        from agents.skills import load_offers, skill_roots

        problem = Problem.load(self.problem, self.size)
        for rival in self.rivals:
            if rival not in problem.spec.baselines:
                raise SettingsError(f"problem '{self.problem}' has no baseline '{rival}'; it has {sorted(problem.spec.baselines)}")
        for plan in (self.start_plan, *self.opponents):
            problem.plan_file(plan)
        names = {r.name for r in load_roles(self.specialists)}
        load_offers(skill_roots([Path(f) for f in self.skills]))
        if self.script:
            strangers = {e.specialist for e in read_script(Path(self.script))} - names
            if strangers:
                raise SettingsError(f"the script is for {sorted(strangers)}, which do not take part; there are {sorted(names)}")


def resolve(file: Path | None, options: dict[str, Any]) -> CampaignSettings:
    """Defaults, then a campaign file, then the options that were given (None means not given)."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = yaml.safe_load(file.read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise SettingsError(f"{file} is no campaign file: {error}") from error
        if not isinstance(values, dict):
            raise SettingsError(f"{file} must be a mapping of settings")
        if isinstance(values.get("script"), str) and values["script"]:
            values["script"] = str((file.parent / values["script"]).resolve())  # as the file sees it
    values |= {k: v for k, v in options.items() if v is not None}
    try:
        return CampaignSettings.model_validate(values)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise SettingsError(f"settings are wrong: {said}; known are {sorted(CampaignSettings.model_fields)}") from error
