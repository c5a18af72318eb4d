"""Ray: the same workers as actors, replaced when they die. The only module that imports ray.

All actors stand on the driver's node: the lane times there, and the compile cache is a folder of it. In a Ray job the cluster is
the job's (RAY_ADDRESS); otherwise a private one is started and ended with the campaign, behind a token of its own, so that no
token file is left behind to lock the user's next `ray start` out (research of Ray 2.60: a first local cluster writes one).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.workers import Report, Worker
from sandbox.environment import usable_cpus
from sandbox.errors import UnavailableError

HOME = Path(__file__).resolve().parent.parent
START_S = 90.0  # an actor that is not up by then waits for CPUs that nobody frees
RETRIES = 3  # deaths of one worker during one call


def answers(address: str, seconds: float = 3.0) -> bool:
    """Whether something listens at host:port. Other forms ("auto", ray://...) are Ray's to judge."""
    host, _, port = address.rpartition(":")
    if "//" in address or not host or not port.isdigit():
        return True
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=seconds):
        return True
    return False


def plain(error: Any) -> Exception:
    """What was raised in the actor, without Ray's wrapping."""
    return error.cause if isinstance(error.cause, Exception) else error


class Host:
    """In the actor: the object, made there."""

    def __init__(self, factory: Callable[..., Any], args: tuple[Any, ...], verbose: bool) -> None:
        self._made = (factory, args, verbose)
        self.object: Any = None

    def up(self) -> int:
        """Make the object; returns the process id. Not in the constructor: what that raises reaches nobody as what it is."""
        if self.object is None:
            from orchestrator.logging_setup import set_up

            factory, args, verbose = self._made
            set_up(verbose)
            self.object = factory(*args)
        return os.getpid()

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of the object."""
        self.up()
        return getattr(self.object, method)(*args)

    def close(self) -> None:
        """Let the object give its files back."""
        if hasattr(self.object, "close"):
            self.object.close()


class RayWorker:
    """An actor that is made anew when it dies: calls it must remember are repeated first, then the call that was under way."""

    def __init__(self, engine: RayEngine, name: str, factory: Callable[..., Any], args: tuple[Any, ...], remember: tuple[str, ...],
                 cpus: int) -> None:  # fmt: skip
        self.engine, self.name, self.remember, self.cpus = engine, name, remember, cpus
        self._made = (factory, args)
        self._journal: list[tuple[str, tuple[Any, ...]]] = []
        self.life = 0
        self.replayed: list[Any] = []  # answers of the remembered calls, as the newest actor gave them again
        self._deaths = 0  # since it was last up
        self.actor = self._start()
        self._up = False

    def _start(self) -> Any:
        environment = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": str(max(1, self.cpus))}
        host = self.engine.ray.remote(Host).options(
            num_cpus=self.cpus, max_restarts=0, scheduling_strategy=self.engine.here, runtime_env={"env_vars": environment}
        )  # fmt: skip
        return host.remote(*self._made, self.engine.verbose)

    def call(self, method: str, *args: Any) -> RayPromise:
        """Send a call; its promise replaces the actor if it dies on it."""
        if method in self.remember:
            self._journal.append((method, args))
            return RayPromise(self, method, args, len(self._journal) - 1)
        return RayPromise(self, method, args, None)

    def up(self) -> Any:
        """A reference that is ready when the actor is."""
        return self.actor.up.remote()

    def send(self, method: str, args: tuple[Any, ...]) -> Any:
        """The reference of a call; the first one waits until the actor is up. Raises what making the object raised."""
        errors = self.engine.ray.exceptions
        for _ in range(RETRIES):
            if self._up:
                break
            try:
                self.engine.ray.get(self.up(), timeout=START_S)
                self._up, self._deaths = True, 0
            except errors.RayTaskError as error:
                raise plain(error) from None
            except (errors.RayActorError, errors.WorkerCrashedError) as error:
                self.replace(self.life, str(error).splitlines()[0])
            except errors.GetTimeoutError:
                raise UnavailableError(
                    f"Ray did not start '{self.name}' within {START_S:.0f} s: it needs {self.cpus} free CPUs on this node; "
                    "free them, ask for fewer --threads, or run with --engine local"
                ) from None
        return self.actor.call.remote(method, args)

    def replace(self, life: int, error: str) -> None:
        """A new actor in place of the one of that life, unless there is one already."""
        if self.life != life:
            return
        self.life += 1
        self._deaths += 1
        if self._deaths > RETRIES:
            raise UnavailableError(f"worker '{self.name}' dies whenever it is started: {error}; `kernelbraid doctor` may say why")
        self.engine.report("worker.lost", {"worker": self.name, "error": error[:300]})
        self.engine.ray.kill(self.actor)  # also where it is only unreachable: two of one worker must not be
        self.actor, self._up = self._start(), False
        self.replayed = [self.engine.ray.get(self.send(method, args)) for method, args in self._journal]
        self.engine.report("worker.replaced", {"worker": self.name})

    def close(self) -> None:
        """End the actor; its children die with it."""
        with contextlib.suppress(Exception):  # it is being ended anyway
            self.engine.ray.get(self.actor.close.remote(), timeout=5)
        self.engine.ray.kill(self.actor)


class RayPromise:
    """The answer of an actor, whatever happens to the actor meanwhile."""

    def __init__(self, worker: RayWorker, method: str, args: tuple[Any, ...], remembered: int | None) -> None:
        """remembered: place of the call in the worker's journal."""
        self.worker, self.method, self.args, self.remembered = worker, method, args, remembered
        self._send()

    def _send(self) -> None:
        self.life = self.worker.life
        self.reference = self.worker.send(self.method, self.args)

    def result(self) -> Any:
        """Wait for it. Raises what the call raised, or UnavailableError if the worker dies on it again and again."""
        errors = self.worker.engine.ray.exceptions
        for attempt in range(RETRIES + 1):
            try:
                return self.worker.engine.ray.get(self.reference)
            except errors.RayTaskError as error:
                raise plain(error) from None
            except (errors.RayActorError, errors.WorkerCrashedError) as error:
                if attempt == RETRIES:
                    raise UnavailableError(f"worker '{self.worker.name}' died {RETRIES + 1} times on '{self.method}': {error}") from error
                self.worker.replace(self.life, str(error).splitlines()[0])
                if self.remembered is not None:
                    return self.worker.replayed[self.remembered]  # repeated with the journal already
                self._send()
        raise AssertionError("unreachable")


class RayEngine:
    """Connects to the job's cluster or starts a private one."""

    name = "ray"

    def __init__(self, report: Report, lane_cpus: int, verbose: bool = False) -> None:
        """lane_cpus: CPUs that the lane reserves. Raises UnavailableError, with what to do, if Ray cannot be used."""
        self.report, self.lane_cpus, self.verbose = report, lane_cpus, verbose
        self._workers: list[RayWorker] = []
        address = os.environ.get("RAY_ADDRESS", "")
        if not address:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        except ImportError as error:
            raise UnavailableError(f"Ray is not installed ({error}): pip install 'ray[default]', or run with --engine local") from error
        self.ray: Any = ray
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address:
            options |= {"address": address}
        else:
            options |= {"address": "local", "include_dashboard": False, "num_cpus": len(usable_cpus())}
        if address and not answers(address):  # Ray itself tries for minutes
            raise UnavailableError(
                f"no Ray cluster answers at {address} (RAY_ADDRESS): start it, unset RAY_ADDRESS to use a private one, or run with --engine local"
            )
        try:
            ray.init(**options)
        except Exception as error:
            said = str(error).strip().splitlines()
            where = f"the cluster at {address}" if address else "a private cluster"
            raise UnavailableError(
                f"Ray could not use {where}: {said[0] if said else type(error).__name__}; `kernelbraid doctor` says more, "
                "and --engine local needs no Ray"
            ) from error
        self.here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

    def worker(self, name: str, factory: Callable[..., Any], *args: Any, remember: tuple[str, ...] = (), parallel: bool = False) -> Worker:
        """An actor around `factory(*args)`; only the lane reserves CPUs."""
        made = RayWorker(self, name, factory, args, remember, self.lane_cpus if name == "lane" else 0)
        self._workers.append(made)
        return made

    def settle(self) -> None:
        """Wait until every actor has made its object."""
        self.ray.wait([w.up() for w in self._workers], num_returns=len(self._workers), timeout=START_S)

    def close(self) -> None:
        """End all actors, and the cluster if it is ours."""
        for worker in reversed(self._workers):
            worker.close()
        self._workers.clear()
        self.ray.shutdown()
