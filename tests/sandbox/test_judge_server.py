"""The judge behind its socket: a real server process, honest and hostile clients, and an agent under another uid."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.merger import merge, pick
from agents.planner import load_plan
from agents.skills import load_implementations
from sandbox.candidate import Candidate
from sandbox.errors import KernelbraidError, RecordError, UnavailableError
from sandbox.evaluation import Evaluation, Purpose, Status, read_chain
from sandbox.judge_client import JudgeClient, JudgeRefused, connect
from sandbox.judge_queue import Peer, Queue, Submission
from sandbox.judge_server import RECEIVED, RECORDS
from sandbox.judge_wire import MAX_REQUEST, FrameError, Judged, Refused, Waiting, read_reply, read_request, receive
from sandbox.problem import Problem
from sandbox.separation import Places, Separation, Who, run_as_agent, server_identity
from tests.sandbox.judge_server_kit import CONNECTIONS, READ_S
from tests.sandbox.test_judge import hostile

REPO = Path(__file__).resolve().parents[2]
PROBLEM, SIZE = "kimi_linear_decode", "tiny"
AGENT, STRANGER = 61500, 61501
SYSTEM_PYTHON = Path("/usr/bin/python3")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start an agent under another uid")
as_agent = pytest.mark.skipif(os.geteuid() != 0 or not SYSTEM_PYTHON.exists(), reason="needs root, and a Python that every uid can start")


@dataclass
class Serving:
    """A server process and where its things are."""

    process: subprocess.Popen[bytes]
    base: Path

    @property
    def store(self) -> Path:
        return self.base / "store"

    @property
    def socket(self) -> Path:
        return self.base / "socket" / "judge"

    @property
    def client(self) -> JudgeClient:
        return JudgeClient(self.socket, "tester", patience_s=300)

    def records(self) -> list[Evaluation]:
        return read_chain(self.store / RECORDS)

    def received(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.store / RECEIVED).read_text().splitlines()]


def start(base: Path, command: list[str]) -> Serving:
    """Start a server and wait until it judges."""
    log = base / "server.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}, stdout=out, stderr=out
        )
    deadline = time.monotonic() + 120
    while "listen" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return Serving(process, base)


def kit(base: Path) -> list[str]:
    return [
        str(REPO / "tests/sandbox/judge_server_kit.py"),
        str(base / "store"),
        str(base / "socket/judge"),
        str(base / "cache"),
        str(AGENT),
    ]


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every uid can pass through (pytest's own are private)."""
    base = Path(tempfile.mkdtemp(prefix="kernelbraid-test-"))
    base.chmod(0o755)
    try:
        yield base
    finally:
        shutil.rmtree(base)


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with open_folder() as base:
        server = start(base, kit(base))
        try:
            yield server
        finally:
            server.process.terminate()
            assert server.process.wait(120) == 0, (base / "server.log").read_text()
            assert "Traceback" not in (base / "server.log").read_text()
            assert not server.socket.exists()


def connected(serving: Serving) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(30)
    connect(connection, serving.socket)
    return connection


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def asked(serving: Serving, data: bytes) -> Any:
    """What the server answers to these bytes."""
    with connected(serving) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
        return read_reply(receive(connection, 1 << 24, 30))


def submission(**changes: Any) -> dict[str, Any]:
    """A sound request, with some of its fields or of its candidate's changed."""
    candidate = hostile().model_dump(mode="json")
    body = {"verb": "submit", "candidate": candidate, "problem": PROBLEM, "size": SIZE, "agent": "tester"}
    for name, value in changes.items():
        (candidate if name in candidate else body)[name] = value
    return body


# -- an honest client -------------------------------------------------------------------------------------------------


def test_a_submission_is_judged_and_stands_in_the_store_with_the_word_of_the_kernel(serving: Serving) -> None:
    candidate = hostile()
    evaluation = serving.client.submit(candidate, PROBLEM, SIZE)
    assert (evaluation.status, evaluation.candidate, evaluation.purpose) == (Status.WRONG, candidate.id, Purpose.SEARCH)
    assert serving.records()[-1] == evaluation
    received, judged = serving.received()[-2:]
    assert (received["event"], judged["event"], judged["evaluation"]) == ("received", "judged", evaluation.id)
    assert (judged["uid"], judged["pid"], judged["agent"]) == (os.geteuid(), os.getpid(), "tester")


def test_the_same_user_is_told_that_there_is_no_wall(serving: Serving) -> None:
    pong = serving.client.ping()
    assert pong.offers == ((PROBLEM, SIZE),)
    assert pong.separation.kind == "unwalled" and "same user" in pong.separation.reason
    assert asked(serving, framed(b"{}")).separation == pong.separation


def test_twenty_clients_at_once_are_all_judged_on_cases_of_their_own(serving: Serving) -> None:
    before = len(serving.records())
    found: list[Evaluation] = []
    candidate = hostile("++steps")

    def ask() -> None:
        found.append(serving.client.submit(candidate, PROBLEM, SIZE))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    pings = [timed_ping(serving) for _ in range(3)]
    for thread in threads:
        thread.join()
    assert len(found) == 20 and {e.status for e in found} == {Status.WRONG}
    assert max(pings) < 5, "those who wait for the judge hold up nobody else"
    assert {e.id for e in serving.records()[before:]} == {e.id for e in found}
    assert sorted(e.attempt for e in found) == list(range(1, 21))
    seeds = [c.seed for e in found for c in e.cases]
    assert len(seeds) == len(set(seeds)) >= 20, "a record tells its seeds, so no case may come again"


def timed_ping(serving: Serving) -> float:
    began = time.monotonic()
    serving.client.ping()
    return time.monotonic() - began


def test_cases_of_a_stage_never_come_again_either(serving: Serving) -> None:
    """A stage that refuses nothing and computes nothing is wrong on its cases; their seeds stand in the record."""
    problem = Problem.load(PROBLEM, SIZE)
    node = next(n for n in problem.graph.nodes if n.short == "emit" or n is problem.graph.nodes[-1])
    dump = "API int32_t kb_dump(void*, const char*, void* to, uint64_t n) { memset(to, 0, n); return 0; }\nAPI void kb_destroy"
    source = hostile().source.replace("API void kb_destroy", dump)
    stage = Candidate(role="stage", target="cpu", source=source, threads=1, node=node.name)
    records = [serving.client.submit(stage, PROBLEM, SIZE) for _ in range(8)]
    seeds = [c.seed for r in records for c in r.cases]
    assert len(seeds) >= 8, records[0].log
    assert len(seeds) == len(set(seeds))


# -- clients that are hostile, broken or dead -----------------------------------------------------------------------------

BAD: list[tuple[str, Any]] = [
    ("malformed", b""),
    ("malformed", b"\x00\xff\xfe garbage"),
    ("malformed", b"null"),
    ("malformed", b"[]"),
    ("malformed", b'{"verb": "submit"}'),
    ("malformed", b'{"verb": "evaluate"}'),
    ("malformed", b'{"verb": ["ping"]}'),
    ("malformed", b'{"verb": "ping", "store": "/tmp/x"}'),
    ("malformed", b"[" * 100_000),
    ("malformed", b'{"verb":' * 50_000),
    ("malformed", b"9" * 100_000),
    ("malformed", submission(purpose="admit")),
    ("malformed", submission(limits={"wall_s": 1e9})),
    ("malformed", submission(attempt=7)),
    ("malformed", submission(seed=1)),
    ("malformed", submission(incumbents={})),
    ("malformed", submission(candidate={})),
    ("malformed", submission(source="")),
    ("malformed", submission(source=7)),
    ("malformed", submission(threads=-1)),
    ("not_allowed", submission(threads=10**400)),
    ("malformed", submission(role="stage")),
    ("malformed", submission(name="x" * 200)),
    ("malformed", submission(name="a\x1b[2Jb")),
    ("malformed", submission(agent="a\nuid 0: judged")),
    ("malformed", submission(files={"../../store": "x"})),
    ("malformed", submission(plan={"name": "p"})),
    ("malformed", json.dumps(submission(source="x")).encode().replace(b'"x"', b'"\\ud800"')),
    ("malformed", json.dumps(submission(agent="x")).encode().replace(b'"x"', b"NaN")),
    ("malformed", b'{"verb": "status", "submission": "' + b"x" * 1000 + b'"}'),
    ("not_offered", submission(problem="../../tests/problems/x")),
    ("not_offered", submission(problem="/etc")),
    ("not_offered", submission(size="full")),
    ("not_allowed", submission(threads=10**12)),
    ("malformed", json.dumps(submission(threads=77)).encode().replace(b"77", b"7" * 5000)),
    ("unknown_submission", b'{"verb": "status", "submission": "0123"}'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body"), BAD, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(BAD)])
def test_what_makes_no_sense_is_refused_in_one_sentence(serving: Serving, kind: str, body: Any) -> None:
    answer = asked(serving, framed(body if isinstance(body, bytes) else json.dumps(body).encode()))
    assert isinstance(answer, Refused)
    assert answer.kind == kind, answer.reason
    assert 10 < len(answer.reason) < 400 and "\n" not in answer.reason


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2000), st.booleans())
def test_no_bytes_are_an_exception(junk: bytes, at: int, inside: bool) -> None:
    """Any bytes, alone or in the middle of a sound request, are a request or a FrameError."""
    sound = json.dumps(submission()).encode()
    with contextlib.suppress(FrameError):
        read_request(sound[:at] + junk + sound[at + len(junk) :] if inside else junk)


def test_the_server_survives_a_thousand_broken_frames(serving: Serving) -> None:
    sound = framed(json.dumps(submission(problem="none")).encode())
    for number in range(1000):
        broken = bytearray(sound)
        broken[(number * 37) % len(sound)] ^= 1 << number % 8
        with connected(serving) as connection, contextlib.suppress(OSError):
            connection.sendall(broken[: len(sound) - number % 3 * 100] if number % 2 else broken)
    until_free(serving)


def until_free(serving: Serving) -> None:
    """Wait until the server has let go of what a test opened."""
    deadline = time.monotonic() + READ_S + 10
    while True:
        try:
            serving.client.ping()
            return
        except JudgeRefused as error:
            assert error.kind == "full" and time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("length", [MAX_REQUEST + 1, 1 << 30, 2**32 - 1])
def test_a_length_above_the_limit_is_refused_before_it_is_read(serving: Serving, length: int) -> None:
    began = time.monotonic()
    answer = asked(serving, struct.pack(">I", length) + b"x" * 100_000)
    assert isinstance(answer, Refused) and answer.kind == "too_large" and str(length) in answer.reason
    assert time.monotonic() - began < READ_S


@pytest.mark.parametrize("sent", [b"", b"\x00\x00", framed(b"{" * 100)[:50]])
def test_a_slow_client_is_refused_and_holds_up_nobody(serving: Serving, sent: bytes) -> None:
    with connected(serving) as slow:
        slow.sendall(sent)
        assert timed_ping(serving) < READ_S
        answer = read_reply(receive(slow, 1 << 20, READ_S + 5))
    assert isinstance(answer, Refused) and answer.kind == "too_slow"


def test_a_client_that_drips_is_cut_off_too(serving: Serving) -> None:
    began = time.monotonic()
    with connected(serving) as slow, contextlib.suppress(BrokenPipeError):
        for byte in framed(b'{"verb": "ping"}' + b" " * 100):
            slow.sendall(bytes([byte]))
            time.sleep(0.05)
    assert time.monotonic() - began < READ_S + 3


def test_too_many_connections_of_a_user_are_refused(serving: Serving) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(connected(serving))
        with pytest.raises(JudgeRefused, match="connections open"):
            serving.client.ping()
    until_free(serving)


def test_a_client_that_dies_in_the_middle_can_ask_later(serving: Serving) -> None:
    with connected(serving) as dying:
        dying.sendall(framed(json.dumps(submission(source=hostile("steps += 2").source)).encode()))
        taken = read_reply(receive(dying, 1 << 20, 30))
        assert isinstance(taken, Waiting) and taken.state == "queued"
    deadline = time.monotonic() + 120
    while isinstance(state := serving.client.status(taken.submission), Waiting):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert isinstance(state, Judged) and state.evaluation.candidate == hostile("steps += 2").id
    assert serving.records()[-1] == state.evaluation


def test_a_client_that_dies_before_its_request_is_whole_is_nothing(serving: Serving) -> None:
    before = len(serving.received())
    with connected(serving) as dying:
        dying.sendall(framed(json.dumps(submission()).encode())[:-10])
    serving.client.ping()
    assert len(serving.received()) == before


# -- the queue -------------------------------------------------------------------------------------------------------------


def waiting(uid: int) -> Submission:
    problem = Problem(PROBLEM, SIZE, Path())
    return Submission(hostile(), problem, Peer(uid, uid, 1), Separation(kind="apart"))


def test_a_full_queue_refuses_its_user_and_nobody_else() -> None:
    queue = Queue(2)
    greedy = [waiting(1), waiting(1)]
    assert [queue.put(s) for s in greedy] == [0, 1]
    with pytest.raises(FrameError, match="2 submissions of uid 1 wait already") as refused:
        queue.put(waiting(1))
    assert refused.value.kind == "full"
    other = waiting(2)
    assert queue.put(other) == 1
    assert [queue.take(0) for _ in range(4)] == [greedy[0], other, greedy[1], None], "users take turns"


def test_a_submission_is_known_to_its_user_alone_and_a_closed_queue_answers_all() -> None:
    queue = Queue(4)
    mine, running = waiting(1), waiting(1)
    queue.put(running)
    queue.put(mine)
    assert queue.take(0) is running
    assert queue.find(mine.id, 1) == (mine, 1)
    with pytest.raises(FrameError, match="no such submission"):
        queue.find(mine.id, 2)
    queue.close()
    assert mine.refusal is not None and running.refusal is not None and mine.refusal[0] == running.refusal[0] == "closing"
    with pytest.raises(FrameError, match="ending"):
        queue.put(waiting(1))


def test_one_that_was_withdrawn_is_not_judged() -> None:
    queue = Queue(4)
    gone, next_one = waiting(1), waiting(1)
    queue.put(gone)
    queue.put(next_one)
    queue.withdraw(gone)
    assert queue.take(0) is next_one
    assert queue.take(0) is None


# -- another uid -----------------------------------------------------------------------------------------------------------

ATTACK = """
import glob, json, os, signal, socket, struct, sys
store, cache, weights, path, code, pid, request = sys.argv[1:]
def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "DONE"
def ask(body):
    s = socket.socket(socket.AF_UNIX); s.settimeout(240); s.connect(path); s.sendall(struct.pack(">I", len(body)) + body)
    answers = []
    while True:
        try:
            head = s.recv(4, socket.MSG_WAITALL)
        except ConnectionResetError:  # the server refused before it had read all
            head = b""
        if len(head) < 4: return answers
        answers.append(json.loads(s.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL)))
print(json.dumps({
    "uid": os.geteuid(), "groups": os.getgroups(), "environment": dict(os.environ), "here": os.getcwd(),
    "own file": tried(lambda: open("note", "w").write("x")),
    "list weights": tried(lambda: os.listdir(cache + "/weights")),
    "read weights": tried(lambda: open(weights, "rb")),
    "list records": tried(lambda: os.listdir(store)),
    "append a record": tried(lambda: open(store + "/evaluations.jsonl", "a")),
    "write the cache": tried(lambda: open(cache + "/x", "w")),
    "write a library": tried(lambda: open(cache + "/libraries/x.so", "w")),
    "remove the socket": tried(lambda: os.unlink(path)),
    "listen instead": tried(lambda: socket.socket(socket.AF_UNIX).bind(path + "2")),
    "rename the store": tried(lambda: os.rename(store, store + "2")),
    "change the code": tried(lambda: open(code, "a")),
    "end the server": tried(lambda: os.kill(int(pid), signal.SIGKILL)),
    "read its memory": tried(lambda: open("/proc/" + pid + "/mem", "rb")),
    "regain root": tried(lambda: os.setuid(0)),
    "answers": ask(request.encode()),
}))
"""


def agent(serving: Serving, uid: int, request: bytes, folder: Path) -> dict[str, Any]:
    """What an agent under a uid found when it tried everything."""
    weights = next((serving.base / "cache/weights").glob("*.safetensors"))
    command = [str(SYSTEM_PYTHON), "-c", ATTACK, str(serving.store), str(serving.base / "cache"), str(weights), str(serving.socket),
               str(REPO / "sandbox/judge.py"), str(serving.process.pid), request.decode()]  # fmt: skip
    started = run_as_agent(command, uid, folder, serving.socket, say=print, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, error = started.process.communicate(timeout=300)
    assert started.process.returncode == 0, error.decode()
    assert started.walled
    found: dict[str, Any] = json.loads(out)
    return found


@as_agent
def test_an_agent_can_submit_and_touch_nothing(serving: Serving) -> None:
    folder = serving.base / "agent"
    before = serving.records()
    found = agent(serving, AGENT, json.dumps(submission(source=hostile("steps += 3").source)).encode(), folder)
    answers = found.pop("answers")
    assert found.pop("environment") == {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8",
                                        "KERNELBRAID_JUDGE": str(serving.socket)}  # fmt: skip
    assert (found.pop("uid"), found.pop("groups"), found.pop("here"), found.pop("own file")) == (AGENT, [], str(folder), "DONE")
    assert set(found.values()) <= {"PermissionError"}, found
    assert [a["answer"] for a in answers] == ["waiting", "judged"]
    assert {a["separation"]["kind"] for a in answers} == {"apart"}, answers
    record = Evaluation.model_validate(answers[1]["evaluation"])
    assert serving.records() == [*before, record]
    assert (serving.received()[-1]["uid"], serving.received()[-1]["separation"]["kind"]) == (AGENT, "apart")
    with pytest.raises(JudgeRefused, match="no such submission"):  # it is another user's
        serving.client.status(answers[1]["submission"])


@as_agent
def test_a_uid_that_nobody_named_is_refused(serving: Serving) -> None:
    found = agent(serving, STRANGER, b'{"verb":"ping"}', serving.base / "stranger")
    assert [(a["answer"], a["kind"]) for a in found["answers"]] == [("refused", "not_allowed")]


@as_root
def test_every_hole_in_the_wall_is_named(serving: Serving) -> None:
    with open_folder() as base:
        for name in ("store", "cache", "sockets", "cache/weights"):
            (base / name).mkdir(mode=0o755)
        weights, record = base / "cache/weights/w.safetensors", base / "store/evaluations.jsonl"
        for path in (weights, record):
            path.touch(0o600)
        places, who = Places(base / "store", base / "cache", base / "sockets"), Who.of(AGENT)
        assert server_identity(who, places) == Separation(kind="apart")
        for path, mode, says in [
            (base / "store", 0o777, "store of the judge"),
            (base / "cache", 0o757, "cache of the judge"),
            (base / "sockets", 0o777, "folder of the socket of the judge"),
            (base, 0o777, "store of the judge"),
            (record, 0o666, "may write"),
            (weights, 0o644, "may read"),
        ]:
            before = path.stat().st_mode
            path.chmod(mode)
            found = server_identity(who, places)
            assert found.kind == "unwalled" and says in found.reason and str(path) in found.reason
            path.chmod(before)
        os.chown(record, AGENT, AGENT)
        assert "may write" in server_identity(who, places).reason
        assert server_identity(Who.of(0), places).kind == "unwalled"


@as_root
def test_rights_are_read_as_the_kernel_grants_them(tmp_path: Path) -> None:
    with open_folder() as base:
        path = base / "file"
        path.touch()
        for mode in (0o000, 0o004, 0o002, 0o040, 0o020, 0o060, 0o044, 0o006, 0o046, 0o064):
            for gid in (0, AGENT):
                os.chown(path, 0, gid)
                path.chmod(mode)
                granted = in_fork(AGENT, lambda: (os.access(path, os.R_OK), os.access(path, os.W_OK)))
                who = Who(AGENT, frozenset({AGENT}))
                assert (who.may(4, path), who.may(2, path)) == granted, (oct(mode), gid)


def in_fork(uid: int, work: Any) -> Any:
    """What a function returns in a process of another uid."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer = repr(work())
        except BaseException as error:
            answer = repr(f"{type(error).__name__}: {error}")
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        answer = file.read().decode()
    os.waitpid(pid, 0)
    return eval(answer)


@as_root
def test_where_we_are_not_root_it_is_said_that_there_is_no_wall() -> None:
    with open_folder() as base:
        base.chmod(0o777)

        def work() -> tuple[bool, int, list[str]]:
            said: list[str] = []
            started = run_as_agent(["/bin/true"], STRANGER, base / "own", base / "socket", say=said.append)
            return started.walled, started.process.wait(), said

        walled, code, said = in_fork(AGENT, work)
    assert (walled, code) == (False, 0)
    assert len(said) == 1 and said[0].startswith(f"unwalled: only root can start an agent under uid {STRANGER}")


@as_root
def test_uids_and_folders_that_will_not_do_are_refused() -> None:
    with open_folder() as base:
        for uid, says in ((0, "is root"), (64100, "boxes take")):
            with pytest.raises(KernelbraidError, match=says):
                run_as_agent(["/bin/true"], uid, base / "a", base / "s", say=print)
        full = base / "full"
        full.mkdir()
        (full / "mine").touch()
        with pytest.raises(KernelbraidError, match="not ours to give"):
            run_as_agent(["/bin/true"], AGENT, full, base / "s", say=print)
        private = base / "private"
        private.mkdir(mode=0o700)
        with pytest.raises(KernelbraidError, match="cannot pass through"):
            run_as_agent(["/bin/true"], AGENT, private / "a", base / "s", say=print)


# -- beginning and end of a server -------------------------------------------------------------------------------------------


def test_nobody_listens_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no judge answers at .*kernelbraid judge serve"):
        JudgeClient(tmp_path / "none").submit(hostile(), PROBLEM, SIZE)
    with pytest.raises(UnavailableError, match="too long"):
        JudgeClient(tmp_path / ("x" * 200)).ping()


def test_a_second_server_on_store_or_socket_is_refused(serving: Serving, tmp_path: Path) -> None:
    arguments = kit(serving.base)
    for other in (["", "", str(tmp_path / "socket")], ["", str(tmp_path / "store"), ""]):
        command = [arguments[0], *(mine or theirs for mine, theirs in zip(other[1:], arguments[1:3], strict=True)), *arguments[3:]]
        ended = subprocess.run(
            [sys.executable, *command], cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, text=True
        )
        assert ended.returncode != 0 and "another" in ended.stderr.splitlines()[-1]
    serving.client.ping()


def test_killed_while_it_judges_then_edited() -> None:
    """A client of a killed server hears so; the next server goes on with the store; an edited store is refused by all."""
    with open_folder() as base:
        server = start(base, kit(base))
        first = server.client.submit(hostile(), PROBLEM, SIZE)
        with connected(server) as connection:
            connection.sendall(framed(json.dumps(submission(source=hostile("for (volatile int i = 0;; ++i) {}").source)).encode()))
            receive(connection, 1 << 20, 30)
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
            with pytest.raises(FrameError, match="ended"):
                receive(connection, 1 << 20, 30)
        with pytest.raises(UnavailableError, match="no judge answers"):
            server.client.ping()
        (base / "server.log").write_text("")
        server = start(base, kit(base))  # the dead one's socket and lock are no obstacle
        second = server.client.submit(hostile(), PROBLEM, SIZE)
        assert (second.attempt, second.previous) == (2, first.id)
        server.process.terminate()
        assert server.process.wait(60) == 0
        path = server.store / RECORDS
        whole = path.read_text()
        for edited in (whole.replace('"status":"wrong"', '"status":"crash"', 1), whole.split("\n", 1)[1]):
            path.write_text(edited)
            with pytest.raises(RecordError, match="edited or records are missing"):
                read_chain(path)
            ended = subprocess.run(
                [sys.executable, *kit(base)], cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, text=True
            )
            assert ended.returncode != 0 and "was edited or records are missing" in ended.stderr


def test_records_removed_while_it_runs_end_the_judging() -> None:
    with open_folder() as base:
        server = start(base, kit(base))
        server.client.submit(hostile(), PROBLEM, SIZE)
        (server.store / RECORDS).write_text("")
        for _ in range(2):
            with pytest.raises(JudgeRefused, match="somebody else wrote"):
                server.client.submit(hostile(), PROBLEM, SIZE)
        server.process.terminate()
        assert server.process.wait(60) == 0


# -- the command line ----------------------------------------------------------------------------------------------------------


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "kernelbraid.py", "judge", *words], cwd=REPO, capture_output=True, text=True, timeout=300)


def test_serve_and_submit_on_the_command_line(tmp_path: Path) -> None:
    problem = Problem.load(PROBLEM, SIZE)
    plan = load_plan(problem.plan_file("fused"), problem.graph, 1)
    honest = merge(problem.graph, plan, pick(problem.graph, load_implementations(), "cpu", oracle=True))
    (tmp_path / "honest.cpp").write_text(honest.source)
    (tmp_path / "lazy.cpp").write_text(hostile().source)
    with open_folder() as base:
        where = ["--socket", str(base / "judge"), "--store", str(base / "store"), "--cache", str(base / "cache")]
        server = start(base, ["kernelbraid.py", "judge", "serve", "--size", SIZE, "--check", "--seeds", "1", "--threads", "1", *where])
        passed = cli("submit", str(tmp_path / "honest.cpp"), *where[:2], "--json")
        assert passed.returncode == 0, passed.stderr
        answer = json.loads(passed.stdout.splitlines()[-1])
        assert answer["evaluation"]["status"] == "passed" and answer["separation"]["kind"] == "unwalled"
        assert "judge and agent are unwalled: agent and judge are the same user" in passed.stderr
        wrong = cli("submit", str(tmp_path / "lazy.cpp"), *where[:2])
        assert wrong.returncode == 1 and "wrong (provisional)" in wrong.stderr
        other = cli("submit", str(tmp_path / "lazy.cpp"), *where[:2], "--size", "full")
        assert other.returncode == 2 and other.stderr.startswith(f"error: the judge has {PROBLEM}/{SIZE}")
        server.process.terminate()
        assert server.process.wait(60) == 130
        assert [r.status for r in read_chain(base / "store" / RECORDS)] == [Status.PASSED, Status.WRONG]
        gone = cli("submit", str(tmp_path / "lazy.cpp"), *where[:2])
        assert gone.returncode == 2 and len(gone.stderr.splitlines()) == 1 and "no judge answers" in gone.stderr
