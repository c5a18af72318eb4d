"""The composition root of a campaign: settings, folders, engine and progress become one run, and whatever ends it ends tidily."""

from __future__ import annotations

import contextlib
import importlib.metadata
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import platformdirs
from rich.console import Console

from agents.skills import skill_roots
from orchestrator.bench import CampaignFailed, Places
from orchestrator.campaign import Campaign
from orchestrator.progress import choose_progress
from orchestrator.report import write_report
from orchestrator.run_folder import RunFolder
from orchestrator.settings import CampaignSettings, SettingsError, resolve
from orchestrator.workers import Engine, LocalEngine
from sandbox.environment import usable_cpus
from sandbox.errors import UnavailableError
from sandbox.evaluation import Evaluation, read_chain


@dataclass
class Wish:
    """What the user asked for. options: settings that were given, None where not."""

    options: dict[str, Any] = field(default_factory=dict)
    campaign: Path | None = None
    new: bool = False
    runs: Path | None = None
    cache: Path | None = None
    unsafe: bool = False
    verbose: bool = False
    plain: bool = False


def runs_folder(runs: Path | None) -> Path:
    """Where run folders are made: never relative to the working folder, which a job's cluster may throw away."""
    return (runs or platformdirs.user_data_path("kernelbraid") / "runs").resolve()


def memory_folder(runs: Path | None) -> Path:
    """Where tricks are kept: in the user's data folder, or beside the run folders that were asked for."""
    return ((runs or platformdirs.user_data_path("kernelbraid")) / "memory").resolve()


def open_run(wish: Wish) -> tuple[RunFolder, CampaignSettings, bool]:
    """The newest unfinished run folder, or a new one; its settings; whether it is continued."""
    given = {k: v for k, v in wish.options.items() if v is not None}
    root = runs_folder(wish.runs)
    wanted = resolve(wish.campaign, given)
    name = f"{Path(wanted.problem).name}-{wanted.size}" if given or wish.campaign else "*"
    old = None if wish.new else RunFolder.unfinished(root, name)
    if old is not None:
        folder = RunFolder(old)
        kept = folder.read_json("settings.json")
        settings = CampaignSettings.model_validate({k: v for k, v in kept.items() if k in CampaignSettings.model_fields})
        asked = wanted.model_dump(mode="json") if wish.campaign else {k: wanted.model_dump(mode="json")[k] for k in given}
        other = {k: v for k, v in asked.items() if settings.model_dump(mode="json")[k] != v and (k, v) != ("threads", 0)}
        if other:
            folder.close()
            said = ", ".join(f"{k} {settings.model_dump(mode='json')[k]!r}, not {v!r}" for k, v in other.items())
            raise SettingsError(f"{old} is unfinished and has {said}: finish it with `kernelbraid run`, or begin another with --new")
        settings.check()
        return folder, settings, True
    wanted.check()
    cpus = len(usable_cpus())
    if wanted.threads > cpus:
        raise UnavailableError(f"{wanted.threads} threads were asked for, but this process may use {cpus} CPUs: ask for fewer")
    settings = wanted.model_copy(update={"threads": wanted.threads or cpus})
    folder = RunFolder.new(root, f"{Path(settings.problem).name}-{settings.size}")
    folder.write_json("settings.json", settings.model_dump(mode="json") | {"command": sys.argv, "commit": commit()})
    return folder, settings, False


def commit() -> str:
    """The checkout's commit, with + if files differ from it; the distribution's version where there is no checkout."""
    home = Path(__file__).resolve().parent.parent
    try:
        said = [subprocess.run(["git", "-C", str(home), *args], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
                for args in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))]  # fmt: skip
        return said[0] + ("+" if said[1] else "")
    except (OSError, subprocess.SubprocessError):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"version {importlib.metadata.version('kernelbraid')}"
        return ""


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """SIGTERM (`ray job stop`, a service manager) ends a campaign as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_campaign(wish: Wish, console: Console) -> tuple[dict[str, Any], Evaluation | None, Path]:
    """Run or go on; returns (summary, the last evaluation, report). Raises KeyboardInterrupt after tidying up."""
    with interrupts():
        folder, settings, continued = open_run(wish)
        cache = wish.cache or platformdirs.user_cache_path("kernelbraid")
        view = choose_progress(console, wish.plain, 60.0 * settings.minutes)
        engine: Engine | None = None
        try:
            view.say(f"{'continuing' if continued else 'beginning'} {settings.problem}/{settings.size} on {settings.threads} threads, engine "
                     f"{settings.engine}, at most {settings.minutes:g} minutes; results go to {folder.path}")  # fmt: skip
            if continued:
                view.event(folder.note("campaign.resumed", evaluations=folder.count))

            def tell(event: str, fields: dict[str, Any]) -> None:
                view.event(folder.note(event, **fields))

            if settings.engine == "ray":
                from orchestrator.cluster import RayEngine

                engine = RayEngine(tell, settings.threads, wish.verbose)
            else:
                engine = LocalEngine()
            places = Places(cache.resolve(), memory_folder(wish.runs), wish.unsafe)
            roots = skill_roots([Path(f) for f in settings.skills])
            campaign = Campaign(settings, folder, engine, places, roots, view.event)
            summary = campaign.run()
        except KeyboardInterrupt:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # tidying up is short; a second one would leave a mess
            view.event(folder.note("campaign.interrupted", evaluations=folder.count))
            view.say(f"interrupted; the same command goes on in {folder.path}")
            raise
        except CampaignFailed as error:  # going on would only fail again
            view.event(folder.note("campaign.failed", why=str(error)))
            folder.write_json("failed.json", {"why": str(error)})
            raise
        finally:
            if engine is not None:
                engine.close()
            view.close()
            report = _report(folder.path, console)
            folder.close()
        records = read_chain(folder.evaluations)
        return summary, records[-1] if records else None, report


def _report(folder: Path, console: Console) -> Path:
    """The report of whatever is there; a campaign is not lost because its picture could not be drawn."""
    try:
        return write_report(folder)
    except Exception as error:  # noqa: BLE001
        console.print(f"the report could not be written: {type(error).__name__}: {error}", markup=False)
        return folder / "report.html"
