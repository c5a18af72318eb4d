"""The protocol loop shared by all children: JSON lines in, JSON lines out. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.child_memory import Misused, Raised, Refused

HELLO = "kernelbraid-child-1"
Reply = dict[str, Any]
Handler = Callable[[dict[str, Any]], Reply]


def handlers_of(serving: object) -> dict[str, Handler]:
    """Public methods by name: the commands of a child."""
    return {name: getattr(serving, name) for name in dir(serving) if not name.startswith("_")}


class Channel:
    """The parent's two pipes, moved to numbers of their own before any candidate code is loaded."""

    def __init__(self) -> None:
        self._commands, self._replies = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        self._rest = b""

    def read(self) -> bytes | None:
        """The next line, or None at the end."""
        while b"\n" not in self._rest:
            data = os.read(self._commands, 1 << 20)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def write(self, reply: Reply) -> None:
        data = memoryview(json.dumps(reply).encode() + b"\n")
        while data:
            data = data[os.write(self._replies, data) :]


def serve(channel: Channel, handlers: Mapping[str, Handler], hello: Reply) -> None:
    """Answer commands until quit or the end of the pipe; then leave without anybody's exit handlers."""
    identity: object = None
    # Python ignores it; a file past the limit shall end the process, so that the parent sees why
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    channel.write({"ok": True, "hello": HELLO, **hello})
    while (line := channel.read()) is not None:
        try:
            identity = None
            request = json.loads(line)
            identity = request["id"]
            reply = {"ok": True, **handlers[request["do"]](request)}
        except Refused as error:
            reply = {"ok": False, "kind": "refused", "error": str(error)}
        except Raised as error:
            reply = {"ok": False, "kind": "raised", "error": str(error)}
        except (Misused, KeyError, ValueError, TypeError) as error:
            reply = {"ok": False, "kind": "protocol", "error": f"{type(error).__name__}: {error}"}
        except Exception as error:
            reply = {"ok": False, "kind": "refused", "error": f"{type(error).__name__}: {error}"}
        channel.write({**reply, "id": identity})
        if reply.get("bye"):
            break
    sys.stderr.flush()
    os._exit(0)
