"""What the judge's server and its clients say to each other: one frame asked, one or two frames answered.

A frame is a length (4 bytes, big-endian) and as many bytes of JSON. Everything that a client may ask for stands in `Request`:
it has no word for limits, seeds, pairings, paths or any purpose but `search`, and unknown words are refused.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from sandbox.candidate import Candidate
from sandbox.errors import KernelbraidError, RecordError
from sandbox.evaluation import Evaluation
from sandbox.records import Frozen, canonical_json
from sandbox.separation import Separation

MAX_REQUEST = 4 << 20  # bytes of a request's JSON
MAX_ANSWER = 16 << 20  # bytes of an answer's: an Evaluation with many cases
MAX_WORD = 100  # characters of a name
_LENGTH = struct.Struct(">I")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable characters")
    return text


Word = Annotated[str, Field(max_length=MAX_WORD), AfterValidator(_printable)]


class Ping(Frozen):
    """Who is there, and what is judged."""

    verb: Literal["ping"]


class Submit(Frozen):
    """Judge this candidate. `agent` is who the client says it is; who it is stands in its credentials."""

    verb: Literal["submit"]
    candidate: Candidate
    problem: Word
    size: Word
    purpose: Literal["search"] = "search"
    agent: Word = ""


class Ask(Frozen):
    """How a submission of the same uid stands."""

    verb: Literal["status"]
    submission: Word
    agent: Word = ""


Request = Annotated[Ping | Submit | Ask, Field(discriminator="verb")]

RefusalKind = Literal["malformed", "too_large", "too_slow", "not_allowed", "not_offered", "full", "unknown_submission", "failed", "closing"]


class Answer(Frozen):
    """What every answer says: how far apart this client and the judge are."""

    separation: Separation


class Pong(Answer):
    """The judge is there. `offers` are the (problem, size) pairs that it judges."""

    answer: Literal["pong"] = "pong"
    offers: tuple[tuple[str, str], ...]


class Waiting(Answer):
    """A submission was taken (`ahead` others come first), or is being judged. The first of two answers to `submit`."""

    answer: Literal["waiting"] = "waiting"
    submission: str
    state: Literal["queued", "judging"]
    ahead: int = 0


class Judged(Answer):
    """The record, as it stands in the judge's store."""

    answer: Literal["judged"] = "judged"
    submission: str
    evaluation: Evaluation


class Refused(Answer):
    """Nothing was judged; `reason` is one sentence."""

    answer: Literal["refused"] = "refused"
    kind: RefusalKind
    reason: str


Reply = Annotated[Pong | Waiting | Judged | Refused, Field(discriminator="answer")]
_REQUEST: TypeAdapter[Ping | Submit | Ask] = TypeAdapter(Request)
_REPLY: TypeAdapter[Pong | Waiting | Judged | Refused] = TypeAdapter(Reply)


class FrameError(KernelbraidError):
    """Bytes that are no frame of ours, or did not come in time. `kind` says which, `clean_end` that there were none at all."""

    def __init__(self, kind: RefusalKind, reason: str, clean_end: bool = False) -> None:
        super().__init__(reason)
        self.kind: RefusalKind = kind
        self.clean_end = clean_end


def read_request(body: bytes) -> Ping | Submit | Ask:
    """The request in a frame's bytes. Raises FrameError, with what is wrong but nothing of what was sent."""
    try:
        request = _REQUEST.validate_json(body)
        canonical_json(request).encode()  # text that no file could hold is refused here, not when the record is written
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:MAX_WORD]
        raise FrameError("malformed", f"this is no request: {where + ': ' if where else ''}{first['msg'][:200]}") from None
    except RecordError as error:
        raise FrameError("malformed", f"this is no request: {str(error)[:300]}") from None
    except (ValueError, RecursionError) as error:
        raise FrameError("malformed", f"this is no request: {type(error).__name__}") from None
    if isinstance(request, Submit) and not (_short(request.candidate.name) and _short(request.candidate.author)):
        raise FrameError("malformed", f"name and author of a candidate are at most {MAX_WORD} printable characters")
    return request


def _short(text: str) -> bool:
    return len(text) <= MAX_WORD and text.isprintable()


def read_reply(body: bytes) -> Pong | Waiting | Judged | Refused:
    """The answer in a frame's bytes. Raises FrameError: whoever listens is no judge of this version."""
    try:
        return _REPLY.validate_json(body)
    except (ValueError, RecordError):
        raise FrameError("malformed", "the answer is none of a judge of this version") from None


def send(connection: socket.socket, record: Frozen, seconds: float) -> None:
    """One frame. Raises OSError if it could not be sent within so many seconds."""
    body = canonical_json(record).encode()
    connection.settimeout(seconds)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket, limit: int, seconds: float) -> bytes:
    """The bytes of one frame, all of it within so many seconds. Raises FrameError; a length above the limit is never read."""
    deadline = time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline, seconds, first=True))
    if length > limit:
        raise FrameError("too_large", f"{length} bytes are announced, but a frame holds at most {limit}")
    return _exactly(connection, length, deadline, seconds)


def _exactly(connection: socket.socket, count: int, deadline: float, seconds: float, first: bool = False) -> bytes:
    got = bytearray()
    while len(got) < count:
        left = deadline - time.monotonic()
        try:
            connection.settimeout(max(left, 1e-3))
            part = connection.recv(min(1 << 16, count - len(got))) if left > 0 else None
        except TimeoutError:
            part = None
        except OSError as error:
            raise FrameError("malformed", f"the connection broke: {error.strerror}", clean_end=first and not got) from None
        if part is None:
            raise FrameError("too_slow", f"a whole frame must come within {seconds:g} s")
        if not part:
            raise FrameError("malformed", f"the connection ended {count - len(got)} bytes too early", clean_end=first and not got)
        got += part
    return bytes(got)
