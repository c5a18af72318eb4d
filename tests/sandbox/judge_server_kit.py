"""A judge's server as a process of its own, with checks as few as possible: `python judge_server_kit.py store socket cache uid...`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from sandbox.checking import CheckPlan
from sandbox.environment import usable_cpus
from sandbox.judge import Judge, JudgeLimits
from sandbox.judge_server import JudgeServer, Offer
from sandbox.problem import Problem

PLACES, CONNECTIONS, READ_S = 24, 24, 1.0
LIMITS = JudgeLimits(timed=False, wall_s=60, step_s=4, checks=CheckPlan(seeds=1, probes=False, short_context=False))


def main(store: str, socket: str, cache: str, *uids: str) -> None:
    """Serve until SIGTERM."""
    problem = Problem.load("kimi_linear_decode", "tiny")
    judge = Judge(Path(cache), threads=min(2, len(usable_cpus())))
    server = JudgeServer(judge, Offer([problem]), Path(store), Path(socket), LIMITS, agents=map(int, uids), places=PLACES,
                         connections=CONNECTIONS, read_s=READ_S)  # fmt: skip
    signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
    with server:
        judge.weights(problem)
        server.say("listening")
        server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
