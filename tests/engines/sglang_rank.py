"""Schedulers of SGLang for the tests of wsync.sglang. Importing SGLang takes long, so one process imports it, and forks a
scheduler for each line of its standard input: a JSON list of the arguments of `main`, and the environment.

Real: SGLang's plugins and hooks, `Scheduler.run_event_loop`, `ingest_requests`, `process_input_requests`, `pause_generation`,
`continue_generation`, `is_fully_idle`, `flush_cache`, the receiver with its broadcast over gloo, the session of a weight update,
and the runner's updater. Stand-ins: the model, the batches of the event loop, memory pools, and packages that need a GPU and that
importing wants. A request is its number of tokens, and a token is what the model holds: each rank writes (step, tokens) to its
log."""
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import os
import signal
import sys
import types
from unittest import mock

import torch


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in the place of packages that are not there."""
    names = ("torchvision", "gguf")

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.names else None

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__name__, module.__path__, module.__spec__ = spec.name, [], spec
        return module

    def exec_module(self, module):
        pass


def prepare():
    """Makes sglang importable without a GPU."""
    for name in "transformers.image_utils", "transformers.processing_utils":  # which ask whether torchvision is there
        importlib.import_module(name)
    sys.meta_path.insert(0, Missing())


class Model(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.held = {}
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def load_weights(self, weights):
        for name, tensor in weights:
            if tensor.flatten()[0] == 666 and self.rank == 1:
                raise ValueError(f"{name} has a bad number")
            self.held[name] = tensor.clone()

    def token(self):
        digest = hashlib.sha256()
        for name in sorted(self.held):
            digest.update(self.held[name].reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()[:8] if self.held else "own"


def main(rank, size, directory, model_path):
    import msgspec
    import zmq
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.managers import io_struct
    from sglang.srt.managers import scheduler as under_test
    from sglang.srt.managers.scheduler_components import request_receiver, weight_updater
    from sglang.srt.model_executor.model_runner_components import weight_updater as runner_updater
    from sglang.srt.plugins import load_plugins

    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/gloo", rank=rank, world_size=size)
    parallel = types.SimpleNamespace(tp_rank=rank, tp_size=size, pp_rank=0, pp_size=1, dp_size=1, attn_dp_enabled=False,
                                     attn_tp_rank=rank, attn_tp_size=size, attn_cp_rank=0, attn_cp_size=1, attn_dp_rank=0,
                                     tp_group=types.SimpleNamespace(rank=rank, ranks=list(range(size)),
                                                                    cpu_group=torch.distributed.group.WORLD))
    load_plugins()
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(("sglang.", "wsync.sglang")) and "get_parallel" in vars(module):
            module.get_parallel = lambda: parallel
    disagg = types.SimpleNamespace(language_only=False, enable_pd_role_switch=False, encoder_transfer_backend="")
    for module in under_test, request_receiver:
        module.get_disagg = lambda: disagg
    under_test.get_mm = lambda: types.SimpleNamespace(mm_feature_transport="")
    runner_updater.get_model = lambda: types.SimpleNamespace(weight_cache_mode="off")

    log = open(os.path.join(directory, f"steps.{rank}"), "w", encoding="utf-8", buffering=1)
    model = Model(rank)
    runner = types.SimpleNamespace(model=model)
    runner.weight_updater = runner_updater.WeightUpdater(
        tp_rank=rank, device="cpu", gpu_id=0, model_config=None, custom_weight_loaders={}, get_model=lambda: model,
        update_model_fields=None, recapture_cuda_graph=None, get_model_runner=lambda: runner)

    class Batch:
        def __init__(self, reqs=()):
            self.reqs = list(reqs)
            self.forward_mode = types.SimpleNamespace(is_extend=lambda: False)

        def is_empty(self):
            return not self.reqs

    class Socket:
        """What clients of the test have written to DIRECTORY/requests: a line for each request, its name and number of tokens."""
        seen = 0

        def recv(self, flags=0):
            with open(os.path.join(directory, "requests"), encoding="utf-8") as file:
                lines = [line for line in file if line.endswith("\n")]
            if self.seen == len(lines):
                raise zmq.Again()
            self.seen += 1
            name, tokens = lines[self.seen - 1].split()
            fields = msgspec.structs.fields(io_struct.TokenizedGenerateReqInput)
            return io_struct.TokenizedGenerateReqInput(**{field.name: None for field in fields if field.required}
                                                       | {"rid": name, "priority": int(tokens)})

    io_struct.sock_recv = request_receiver.sock_recv = lambda socket, flags=0: socket.recv(flags)
    nothing = types.SimpleNamespace(recv=mock.Mock(side_effect=zmq.Again))

    class Bare(under_test.Scheduler):
        """What its __init__ would set is off, unless it is set here."""

        def __init__(self):
            pass

        def __getattr__(self, name):
            return None

    scheduler = Bare()
    vars(scheduler).update(
        server_args=types.SimpleNamespace(port=30000, nnodes=1, enable_pd_role_switch=False), draft_worker=None, enable_pdmux=False,
        disaggregation_mode=DisaggregationMode.NULL, model_config=types.SimpleNamespace(
            model_path=model_path, hf_text_config=types.SimpleNamespace(tie_word_embeddings=False), is_multimodal=False),
        gracefully_exit=False, _engine_paused=False, _pause_started_at=None, _pause_intervals=[], enable_overlap=False,
        enable_overlap_mlx=False, last_batch=None, running_batch=Batch(), chunked_req=None, waiting_queue=[],
        decode_offload_manager=None, disagg_decode_prealloc_queue=None, enable_hisparse=False, hisparse_coordinator=None,
        dllm_manager=types.SimpleNamespace(any_staging_reqs=lambda: False), grammar_manager=mock.MagicMock(grammar_queue=[]),
        metrics_reporter=mock.MagicMock(current_scheduler_metrics_enabled=False), kv_events_publisher=mock.MagicMock(),
        tree_cache=mock.MagicMock(), req_to_token_pool=mock.MagicMock(), token_to_kv_pool_allocator=mock.MagicMock(),
        flush_wrapper=mock.MagicMock(), external_corpus_manager=None, session_controller=mock.MagicMock(), device="cpu",
        device_module=torch.cpu, schedule_stream=types.SimpleNamespace(), _deferred_input_requests=[], cur_batch_for_debug=None,
        _pp_microbatches_drained=lambda: True, _poll_timeout_aborts=lambda: [],
        _record_scheduler_state_for_paused_engine=lambda: None,
        _tokenized_requests=lambda request: [], on_idle=lambda: None, rust_server=None, scheduler_stage_metrics=None,
        record_weight_version_change=lambda new_version: log.write(json.dumps(["version", new_version]) + "\n"))
    under_test.retract_all = lambda reqs, **_: log.write(json.dumps(["retract", [r.rid for r in reqs]]) + "\n")
    scheduler._add_request_to_queue = lambda request: scheduler.waiting_queue.insert(0, request)

    class Request:
        def __init__(self, rid, tokens):
            self.rid, self.left, self.aborted = rid, tokens, False
            self.kv = types.SimpleNamespace(holds_kv=False)

        def finished(self):
            return self.left == 0

    def abort(command):
        scheduler.waiting_queue.clear()
        for request in scheduler.running_batch.reqs:
            request.left, request.aborted = 1, True  # it ends with the next step, as in SGLang

    def next_batch(running_batch, last_batch):
        running_batch.reqs += scheduler.waiting_queue
        scheduler.waiting_queue = []
        return types.SimpleNamespace(running_batch=running_batch, batch_to_run=running_batch if running_batch.reqs else None)

    steps = iter(range(1 << 40))

    def run_batch(batch):
        torch.distributed.barrier()  # ranks that disagree on a step hang here
        log.write(json.dumps(["step", next(steps), model.token(), [request.rid for request in batch.reqs]]) + "\n")

    def process(batch, result):
        for request in batch.reqs:
            request.left -= 1
            if not request.left:
                log.write(json.dumps(["end", request.rid, "abort" if request.aborted else "length"]) + "\n")
        batch.reqs = [request for request in batch.reqs if request.left]

    scheduler.get_next_batch_to_run, scheduler.run_batch, scheduler.process_batch_result = next_batch, run_batch, process
    scheduler._request_dispatcher = under_test.TypeBasedDispatcher([
        (io_struct.TokenizedGenerateReqInput, lambda r: scheduler.waiting_queue.append(Request(r.rid, r.priority))),
        (io_struct.AbortReq, abort)])
    scheduler.weight_updater = weight_updater.SchedulerWeightUpdaterManager(
        tp_worker=types.SimpleNamespace(weight_update_runners=lambda: [("target", runner)]), draft_worker=None,
        memory_saver_adapter=None, flush_cache=scheduler.flush_cache, is_fully_idle=scheduler.is_fully_idle, scheduler=scheduler)
    scheduler.request_receiver = request_receiver.SchedulerRequestReceiver(
        recv_from_tokenizer=Socket(), recv_from_rpc=nothing, recv_skipper=None, input_blocker=None, mm_receiver=None,
        server_args=None, model_config=scheduler.model_config,
        max_recv_per_poll=-1, stream_output=None, get_last_batch=lambda: scheduler.last_batch)
    scheduler.run_event_loop()


def serve():
    prepare()
    for name in "sglang.srt.managers.scheduler", "sglang.srt.plugins":
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        arguments, environment = json.loads(line)
        if os.fork() == 0:
            os.environ.update(environment)
            log = os.open(os.path.join(arguments[2], f"rank{arguments[0]}.log"), os.O_CREAT | os.O_WRONLY, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            logging.basicConfig(level=logging.INFO, force=True)
            with open(os.path.join(arguments[2], f"pid{arguments[0]}"), "w", encoding="utf-8") as file:
                file.write(str(os.getpid()))
            try:
                main(*arguments)
            except BaseException:
                logging.exception("rank %d", arguments[0])
            finally:
                os._exit(1)


if __name__ == "__main__":
    serve()
