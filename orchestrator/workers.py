"""Who does the work: a Worker answers calls with a promise. Here in this process; `cluster.py` puts the same classes into Ray actors."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, Protocol

Report = Callable[[str, dict[str, Any]], None]  # an event and its fields


class Promise(Protocol):
    """The answer of a call, some time."""

    def result(self) -> Any:
        """Wait for it; raises what the call raised."""


class Worker(Protocol):
    """A plain object somewhere."""

    def call(self, method: str, *args: Any) -> Promise:
        """Call one of its methods."""

    def close(self) -> None:
        """Let it go."""


class Engine(Protocol):
    """Makes workers."""

    name: str

    def worker(self, name: str, factory: Callable[..., Any], *args: Any, remember: tuple[str, ...] = (), parallel: bool = False) -> Worker:
        """A worker around `factory(*args)`. remember: methods whose calls are repeated if it must be replaced.
        parallel: its calls may run beside the caller's own work."""

    def settle(self) -> None:
        """Wait until every worker is up: what starts beside a timing disturbs it."""

    def close(self) -> None:
        """Let all workers go."""


class Done:
    """An answer that is there already."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        return self.value


class LocalWorker:
    """An object in this process, made on first use. With `parallel` in a thread of its own."""

    def __init__(self, factory: Callable[..., Any], args: tuple[Any, ...], parallel: bool) -> None:
        self._factory, self._args, self._object = factory, args, None
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="kernelbraid") if parallel else None

    def call(self, method: str, *args: Any) -> Promise:
        if self._pool is not None:
            return self._pool.submit(self._run, method, args)
        return Done(self._run(method, args))

    def _run(self, method: str, args: tuple[Any, ...]) -> Any:
        if self._object is None:
            self._object = self._factory(*self._args)
        return getattr(self._object, method)(*args)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if hasattr(self._object, "close"):
            self._object.close()  # type: ignore[attr-defined]
        self._object = None


class LocalEngine:
    """Everything in this process; compiling in threads of it."""

    name = "local"

    def __init__(self) -> None:
        self._workers: list[LocalWorker] = []

    def worker(self, name: str, factory: Callable[..., Any], *args: Any, remember: tuple[str, ...] = (), parallel: bool = False) -> Worker:
        made = LocalWorker(factory, args, parallel)
        self._workers.append(made)
        return made

    def settle(self) -> None:
        """They are made on first use, by whoever asks."""

    def close(self) -> None:
        for worker in reversed(self._workers):
            worker.close()
        self._workers.clear()
