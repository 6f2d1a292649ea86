"""An engine for the tests of wsync.checkpoint_engine: the HTTP routes of vLLM or SGLang, and workers in processes of their own
that run checkpoint-engine's code. `python checkpoint_engine_server.py PORT KIND WORKERS DIRECTORY`.

Of checkpoint_engine.worker only what belongs to a device is replaced: `DeviceManager` and `_device_uuid`. KIND is vllm, vllm-real
or sglang; only "vllm-real" imports vLLM, whose modules that the extension wants are empty otherwise. The file DIRECTORY/fault
says what a worker does when it loads a list: "hang" (until DIRECTORY/go exists), "kill", "post_hook" (it raises after the load),
or nothing; "http" makes the update call fail before any worker is told of it. A tensor that is called "poison" raises."""
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def worker_main(pipe, number, kind, directory):
    if kind != "vllm-real":
        for name in "vllm", "vllm.platforms", "vllm.model_executor", "vllm.model_executor.model_loader":
            sys.modules[name] = types.ModuleType(name)
        sys.modules["vllm.platforms"].current_platform = types.SimpleNamespace(device_type="cuda")
        sys.modules["vllm.model_executor.model_loader"].utils = types.ModuleType("utils")
        sys.modules["vllm.model_executor.model_loader.utils"] = sys.modules["vllm.model_executor.model_loader"].utils
    import torch
    from checkpoint_engine import worker as under_test

    class Device:
        device_module = types.SimpleNamespace(synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None)

    under_test.DeviceManager = Device
    parent = os.getppid()

    def fault():
        path = os.path.join(directory, "fault")
        return open(path, encoding="utf-8").read() if os.path.exists(path) else ""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.held, self.lists, self.orders = {}, 0, []

        def load_weights(self, weights):
            self.lists += 1
            self.orders.append([name for name, _ in weights])
            what = fault()
            if what == "kill" and self.lists == 2 and number == 0:
                os.remove(os.path.join(directory, "fault"))
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hang" and self.lists == 2:
                open(os.path.join(directory, "hangs"), "w").close()
                while not os.path.exists(os.path.join(directory, "go")) and os.getppid() == parent:
                    time.sleep(0.01)
            for name, tensor in weights:
                if name.endswith("poison"):
                    raise ValueError(f"{name} does not fit:\n the model has another shape")
                self.held[name] = tensor.clone()

    class Worker(under_test.VllmColocateWorkerExtension):
        _device_uuid = f"GPU-{number}"
        device = torch.device("cpu")
        model_config = None

        def __init__(self):
            self.model_runner = type("runner", (), {"model": Model()})()

    worker = Worker()
    from vllm.model_executor.model_loader import utils
    utils.process_weights_after_loading = lambda *_: after_load()

    def after_load():
        if fault() == "post_hook":
            raise RuntimeError("no kernel for this layout")

    pipe.send("ready")
    while True:
        try:
            handles = pipe.recv()
        except EOFError:
            return
        model = worker.model_runner.model
        model.lists, model.orders = 0, []
        try:
            worker.update_weights_from_ipc(handles)
            failure = None
        except BaseException as error:
            failure = f"{type(error).__name__}: {error}"
        held = {name: [str(tensor.dtype), list(tensor.shape),
                       hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest()]
                for name, tensor in model.held.items()}
        pipe.send((failure, held, model.orders))


class Workers:
    def __init__(self, count, kind, directory):
        self.context = multiprocessing.get_context("spawn")
        self.kind = kind
        self.directory = directory
        self.all = [self.start(number) for number in range(count)]
        self.held, self.orders = [{}] * count, [[]] * count
        self.lock = threading.Lock()  # one update at a time, as in an engine

    def start(self, number):
        mine, its = self.context.Pipe()
        process = self.context.Process(target=worker_main, args=(its, number, self.kind, self.directory), daemon=True)
        process.start()
        its.close()
        mine.recv()
        return process, mine

    def update(self, handles):
        """None, or why it failed."""
        if os.path.exists(os.path.join(self.directory, "fault")):
            with open(os.path.join(self.directory, "fault"), encoding="utf-8") as file:
                if file.read() == "http":
                    return "this server has no such method"
        with self.lock:
            return self.updated(handles)

    def updated(self, handles):
        for _, pipe in self.all:
            pipe.send(handles)
        failures, waiting = [], {pipe: number for number, (_, pipe) in enumerate(self.all)}
        while waiting:
            for pipe in multiprocessing.connection.wait(waiting):
                number = waiting.pop(pipe)
                try:
                    failure, self.held[number], self.orders[number] = pipe.recv()
                    failures += [failure] if failure else []
                except EOFError:  # the others are killed as well, as in an engine
                    for other in waiting.values():
                        self.all[other][0].kill()
                    for other in [number, *waiting.values()]:
                        self.held[other] = {}
                        self.all[other] = self.start(other)
                    return f"worker {number} has died"
        return "; ".join(failures) or None


def main():
    port, kind, count, directory = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    workers = Workers(count, kind, directory)
    kind = kind.split("-")[0]
    state = {"paused": False, "label": "default", "calls": [], "updates_while_running": 0}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, status, content):
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            if self.path == "/state":
                return self.answer(200, state | {"held": workers.held, "orders": workers.orders})
            if self.path in (("/health", "/weight_info") if kind == "vllm" else ("/ping", "/model_info")):
                return self.answer(200, {"weight_version": state["label"]})
            self.answer(404, {"detail": "Not Found"})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            state["calls"].append([self.path, {key: value for key, value in body.items() if key not in ("args", "zmq_handles")}])
            path = self.path.split("?")[0]
            if path in ("/pause", "/pause_generation"):
                state["paused"] = True
            elif path in ("/resume", "/continue_generation"):
                state["paused"] = False
            elif path == "/update_weight_version":
                state["label"] = body["new_version"]
            elif path in ("/collective_rpc", "/update_weights_from_ipc"):
                state["updates_while_running"] += not state["paused"]
                failure = workers.update(body["args"][0] if kind == "vllm" else body["zmq_handles"])
                if failure and kind == "vllm":
                    code = 400 if "no such method" in failure else 500
                    return self.answer(code, {"error": {"message": failure, "type": "Internal Server Error"}})
                if failure:
                    return self.answer(400, {"success": False, "message": failure})
                if kind == "sglang":
                    state["label"] = body["weight_version"]
                    return self.answer(200, {"success": True, "message": "Succeeded"})
                return self.answer(200, {"results": [None] * count})
            else:
                return self.answer(404, {"detail": "Not Found"})
            self.answer(200, {"status": "ok"})

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
