"""Engines that generate, and what one asks of them over HTTP, for scenario tests."""
import http.client
import json
import os
import urllib.parse

from fleet import DEADLINE_S
from training import TINY, TrainingFleet

# Two ranks can share it. Texts have up to 2048 tokens.
MODEL = TINY | {"model.heads": 4, "model.key_value_heads": 2}


class Server:
    """What listens at a URL."""

    def __init__(self, url):
        self.address = urllib.parse.urlsplit(url)

    def connect(self):
        return http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=DEADLINE_S)

    def ask(self, method, path, body=None):
        """The status, and the answer as an object."""
        connection = self.connect()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def complete(self, prompt, tokens=24, **more):
        status, answer = self.ask("POST", "/v1/completions", {
            "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "return_token_ids": True} | more)
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return answer["choices"][0]

    def stream(self, prompt, tokens, **more):
        """The choices of each event."""
        connection = self.connect()
        try:
            body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "return_token_ids": True} | more
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            for line in answer:
                if line.startswith(b"data: {"):
                    yield from json.loads(line[len(b"data: "):])["choices"]
                elif line.strip() == b"data: [DONE]":
                    return
        finally:
            connection.close()


class ServingFleet(TrainingFleet):
    def exported(self, values=None):
        """A checkpoint that an engine can generate with."""
        path = self.path("exported")
        if not os.path.exists(path):
            self.trained(MODEL | {"steps": 3} | (values or {}), "--export", path)
        return path

    def learned(self, seed):
        """As exported(), after some steps: what it computes depends on what it has read."""
        saved, path = self.path(f"saved_{seed}"), self.path(f"learned_{seed}")
        self.trained(MODEL | {"model.seed": seed, "steps": 30, "save.directory": saved})
        self.trained({**{key: value for key, value in MODEL.items() if not key.startswith("model.")}, "steps": 31},
                     "--resume", f"{saved}/step_30", "--export", path)
        return path

    def rank(self, model, *more):
        return self.start("engine", "--json", "--model", model, "--port", "0", "--stats-ms", "0", *more)

    def serving(self, model, *more):
        """An engine of one rank, and its server."""
        process = self.rank(model, *more)
        return process, Server(self.event(process, "listening")["url"])

    def pair(self, model, *more):
        """The ranks of a replica of two, and its server."""
        ranks = [self.rank(model, "--rank", str(rank), "--world-size", "2", *more) for rank in range(2)]
        return ranks, Server(self.event(ranks[0], "listening")["url"])

    def ready(self, server):
        self.until(lambda: server.ask("GET", "/ready")[0] == 200, "readiness")

    def ends_untorn(self, *engines):
        for engine in engines:
            code, said = self.stop(engine)
            assert code == 0 and '"torn":0' in said, said
