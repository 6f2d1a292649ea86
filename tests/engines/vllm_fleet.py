"""A fleet whose engines are real vLLM servers."""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scenario"))
from fleet import DEADLINE_S, Fleet, short  # noqa: E402

BIN = os.path.dirname(sys.executable)
WSYNC = os.path.join(BIN, "wsync")
# A server that starts beside others on two cores needs minutes.
START_S = 5 * DEADLINE_S
SMALL = ["--enforce-eager", "--kv-cache-memory-bytes", str(64 << 20), "--gpu-memory-utilization", "0.1", "--max-model-len", "512",
         "--max-num-seqs", "16", "--served-model-name", "m", "--disable-uvicorn-access-log", "--enable-scale-out"]


# Servers keep every processor busy, and what waits for one must not be taken for lost.
HEARTBEAT = {"heartbeat.deadline": short(20000)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One `vllm serve`."""

    def __init__(self, fleet, model, *more, attached=True, engines=None, replica=None, **environment):
        self.port = free_port()
        self.replica = replica or f"vllm-{self.port}"
        env = fleet.environment | {"VLLM_PLUGINS": "wsync" if attached else "", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        env |= environment
        if engines:
            env["WSYNC_ENGINE_SOCKET"] = engines
        if replica:
            env["WSYNC_ENGINE_REPLICA"] = replica
        command = [os.path.join(BIN, "vllm"), "serve", model, "--port", str(self.port), *SMALL, *more]
        if attached:
            command += ["--weight-transfer-config", '{"backend": "wsync"}']
        self.log_path = fleet.path(f"vllm-{self.port}.log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            # A process group of its own, so that a kill reaches the workers.
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
        self.fleet = fleet
        fleet.servers.append(self)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def ask(self, method, path, body=None, timeout=DEADLINE_S):
        """Status and answer of one HTTP request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None
        finally:
            connection.close()

    def until_serving(self):
        def serves():
            if self.process.poll() is not None:
                raise AssertionError(f"vllm has ended with {self.process.returncode}:\n{self.log()[-6000:]}")
            try:
                return self.ask("GET", "/health")[0] == 200
            except OSError:
                return False
        self.fleet.until(serves, "the server", START_S)
        return self

    def generate(self, prompt, count):
        """The tokens of a greedy completion, how it ended, and the spans (version, begin, end) of what computed them."""
        status, answer = self.ask("POST", "/inference/v1/generate", {
            "token_ids": prompt, "sampling_params": {"max_tokens": count, "temperature": 0, "ignore_eos": True}}, START_S)
        if status != 200:
            raise AssertionError((status, answer))
        choice = answer["choices"][0]
        spans = [(span["version"], span["start"], span["end"]) for span in choice["weight_versions"] or []]
        return choice["token_ids"], choice["finish_reason"], spans

    def metric(self, name):
        """The value of a counter of /metrics, over all labels."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " "))]
        if not found:
            raise AssertionError(f"/metrics has no {name}")
        return sum(found)

    def worker(self, rank):
        """The process of a rank of a server with several."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if os.getpgid(int(pid)) == self.process.pid and file.read().startswith(f"VLLM::Worker_TP{rank}".encode()):
                        found.append(int(pid))
            except OSError:
                pass  # it has ended meanwhile
        (pid,) = found
        return pid

    def state(self):
        return self.ask("GET", "/wsync")[1]

    def kill(self):
        """SIGKILL of all its processes."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Requests:
    """Completions that run at the same time, each on a thread."""

    def __init__(self, server, prompts, count):
        self.results = [None] * len(prompts)
        self.failures = []
        self.threads = [threading.Thread(target=self._run, args=(server, index, prompt, count))
                        for index, prompt in enumerate(prompts)]
        for thread in self.threads:
            thread.start()

    def _run(self, server, index, prompt, count):
        try:
            self.results[index] = server.generate(prompt, count)
        except Exception as failure:  # a thread's exception would be lost
            self.failures.append(failure)

    def done(self):
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        return self.results


class VllmFleet(Fleet):
    def __init__(self):
        super().__init__(WSYNC)
        self.servers = []
        # The workers of a server keep every processor busy: loops stand still for no fault of theirs.
        self.halted = True

    def __exit__(self, *failure):
        for server in self.servers:
            server.kill()
        if failure[0]:
            for server in self.servers:
                print(f"---- the end of {server.log_path}\n{server.log()[-3000:]}", file=sys.stderr)
        super().__exit__(*failure)

    def start(self, *arguments):
        if arguments[0] in ("sidecar", "trainer"):
            arguments += tuple(word for name, value in HEARTBEAT.items() for word in ("--set", f"{name}={value}"))
        return super().start(*arguments)

    def until(self, holds, what, limit_s=DEADLINE_S):
        import time
        end = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not come within {limit_s:.0f} s")
            time.sleep(0.05)  # the processors are for the servers

    def pushed(self, checkpoint, *more):
        """The version that a push of this checkpoint has made."""
        code, answer = self.ask("push", checkpoint, *more)
        if code != 0:
            raise AssertionError({**answer["result"], "problems": "..."})
        return answer["result"]["version"]
