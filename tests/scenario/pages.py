"""The pages that a process serves over HTTP, and a fleet whose processes say where theirs are."""
import http.client
import os
import re
import socket
import subprocess

from fleet import DEADLINE_S, Fleet

ANY_PORT = ["--set", "http.address=tcp://127.0.0.1:0"]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=DEADLINE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def answer_of(where, path, method="GET", headers=None):
    """Status, headers and text of a page; `where` is HOST:PORT or the path of a socket."""
    connection = UnixConnection(where) if where.startswith("/") else http.client.HTTPConnection(where, timeout=DEADLINE_S)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def get(where, path, method="GET"):
    """Status and text of a page."""
    status, _, text = answer_of(where, path, method)
    return status, text


def copied_bytes(fleet, sidecar):
    """Bytes that a sidecar of this fleet has copied, by stage: receive, h2d and broadcast."""
    status, text = get(os.path.join(fleet.run_dir, f"{sidecar}.http"), "/metrics")
    assert status == 200, text
    return {stage: float(value) for stage, value in re.findall(r'^wsync_copied_bytes_total\{stage="(\w+)"\} (\S+)$', text, re.MULTILINE)}


class LoggedFleet(Fleet):
    """A fleet whose processes say on files where their pages are."""

    def logged(self, name, *command):
        log = self.path(name + ".log")
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen(command, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=file)
        self.processes.append(process)
        return process, log

    def said(self, log, pattern):
        """The group of the pattern in the log, when it is there."""
        found = []

        def look():
            with open(log, encoding="utf-8") as file:
                found[:] = re.findall(pattern, file.read())
            return found
        self.until(look, f"{pattern} in {log}")
        return found[0]

    def with_pages(self, name, *arguments):
        """A process of wsync and the address of its pages."""
        process, log = self.logged(name, self.wsync, *arguments, *ANY_PORT)
        return process, self.said(log, r"metrics and health at (\S+)")

    def push(self, path):
        code, answer = self.ask("push", path)
        return code == 0, answer["result"]
