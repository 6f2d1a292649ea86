"""The HTTP routes of an engine."""
from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any, Optional

from .._errors import InvalidInput, PeerLost, Refused
from .._values import Pause, PauseMode, Version

_WORDS = 400  # characters of an answer that a sentence repeats


def _reason(body: bytes) -> str:
    """What an answer says, in one line."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(text)
        for key in ("message", "error", "detail"):
            if isinstance(found, dict) and key in found:
                inner = found[key]
                text = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
                break
    except ValueError:
        pass
    return " ".join(text.split())[:_WORDS]


class Engine:
    """The server of an engine. Failures are `wsync.Error`: `PeerLost` if it is not there, `Refused` if it answers with an error.

    Args:
        url: of the server, such as http://127.0.0.1:8000.
        clears_cache: keys and values of the old version are not used again.
        api_key: sent as a bearer token, if given.
    """

    def __init__(self, url: str, clears_cache: bool = True, api_key: Optional[str] = None):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"the URL of the engine is '{url}', expected one such as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.clears_cache = clears_cache
        self._parts = parts
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})

    def ask(self, method: str, path: str, body: Optional[Mapping] = None, timeout: Optional[float] = None) -> Any:
        """The answer to one request, from JSON; None if it is not JSON. A call with `timeout=None` can only end with the server."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=timeout)
        try:
            asked = None if body is None else json.dumps(body)
            connection.request(method, self._parts.path.rstrip("/") + path, asked, self._headers)
            answer = connection.getresponse()
            content = answer.read()
        except TimeoutError as failure:
            raise Refused(f"{method} {self.url}{path} was not answered within {timeout:.0f} s") from failure
        except (OSError, http.client.HTTPException) as failure:
            raise PeerLost(f"{method} {self.url}{path} was not answered: {type(failure).__name__}: {failure}") from failure
        finally:
            connection.close()
        if answer.status >= 400:
            raise Refused(f"{method} {self.url}{path} was answered with {answer.status}: {_reason(content)}")
        try:
            return json.loads(content)
        except ValueError:
            return None

    # What the kinds have.

    def label(self, timeout: float) -> Optional[str]:
        """The version that the server says it has, or None if it says none. Raises if the server is not there."""
        raise NotImplementedError

    def pause(self, pause: Pause) -> None:
        """Stops generation between two steps."""
        raise NotImplementedError

    def resume(self, timeout: float) -> None:
        """Goes on with generation."""
        raise NotImplementedError

    def update(self, endpoints: Mapping[str, str], version: Version) -> None:
        """Lets the workers of all GPUs connect to the endpoints, and returns when they have loaded what is sent there."""
        raise NotImplementedError

    def committed(self, version: Version, timeout: float) -> None:
        """Tells the server which version it has."""


class Vllm(Engine):
    """vLLM's server with VLLM_SERVER_DEV_MODE=1 and checkpoint-engine's worker extension."""

    def label(self, timeout: float) -> Optional[str]:
        self.ask("GET", "/health", timeout=timeout)
        try:
            return (self.ask("GET", "/weight_info", timeout=timeout) or {}).get("weight_version")
        except Refused:
            return None  # an older server

    def pause(self, pause: Pause) -> None:
        clear = "true" if self.clears_cache else "false"
        self.ask("POST", f"/pause?mode={pause.mode.name.lower()}&clear_cache={clear}", timeout=pause.deadline_s)

    def resume(self, timeout: float) -> None:
        self.ask("POST", "/resume", timeout=timeout)

    def update(self, endpoints: Mapping[str, str], version: Version) -> None:
        del version
        # No timeout of its own: vLLM would end the executor. Every wait has a deadline here.
        self.ask("POST", "/collective_rpc", {"method": "update_weights_from_ipc", "args": [dict(endpoints)], "timeout": None})

    def committed(self, version: Version, timeout: float) -> None:
        self.ask("POST", "/update_weight_version", {"new_version": str(version)}, timeout)


class Sglang(Engine):
    """SGLang's server."""

    _in_place = False

    def label(self, timeout: float) -> Optional[str]:
        self.ask("GET", "/ping", timeout=timeout)
        return (self.ask("GET", "/model_info", timeout=timeout) or {}).get("weight_version")

    def pause(self, pause: Pause) -> None:
        if pause.mode == PauseMode.WAIT:
            raise Refused("SGLang cannot pause after its running requests; publish with the pause mode abort or keep")
        mode = "abort" if pause.mode == PauseMode.ABORT else "retract" if self.clears_cache else "in_place"
        self.ask("POST", "/pause_generation", {"mode": mode}, pause.deadline_s)
        self._in_place = mode == "in_place"

    def resume(self, timeout: float) -> None:
        self.ask("POST", "/continue_generation", {}, timeout)

    def update(self, endpoints: Mapping[str, str], version: Version) -> None:
        # A flush fails while requests keep their place, and with it the update.
        answer = self.ask("POST", "/update_weights_from_ipc", {"zmq_handles": dict(endpoints), "flush_cache": not self._in_place,
                                                               "weight_version": str(version)})
        if not isinstance(answer, dict) or not answer.get("success"):
            raise Refused(f"the update of {self.url} failed: {answer}")


KINDS = {"vllm": Vllm, "sglang": Sglang}


class UpdateCall:
    """The HTTP call of an update, on a thread of its own.

    Attributes:
        ended: a socket that is readable when the call has ended.
        failure: why it has failed, or None; set before `ended`.
    """

    def __init__(self, engine: Engine, endpoints: Mapping[str, str], version: Version):
        self.failure: Optional[BaseException] = None
        self.ended, self._tell = socket.socketpair()
        self._arguments = (engine, endpoints, version)
        self._thread = threading.Thread(target=self._run, name="wsync update call", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        engine, endpoints, version = self._arguments
        try:
            engine.update(endpoints, version)
        except BaseException as failure:
            self.failure = failure
        self._tell.close()

    def close(self) -> None:
        """To be called after its end."""
        self._thread.join()
        self.ended.close()
