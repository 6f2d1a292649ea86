"""`python -m wsync.checkpoint_engine`: makes a stock vLLM or SGLang server follow a trainer. `wsync.checkpoint_engine` says how."""
from __future__ import annotations

import argparse
import logging
import re
import signal
import sys

from .._errors import Error

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text: str) -> int:
    """Bytes of a text such as 512MiB."""
    found = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB|)", text)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is no size; expected one such as 512MiB")
    return int(found[1]) * _UNITS[found[2]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m wsync.checkpoint_engine", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--sidecar", "--socket", dest="sidecar", required=True,
                        help="the name of the sidecar, or the path of its engine socket")
    parser.add_argument("--replica", required=True, help="the name of the replica")
    parser.add_argument("--engine-url", required=True, help="of the engine's server, such as http://127.0.0.1:8000")
    parser.add_argument("--kind", choices=("vllm", "sglang"), default="vllm", help="which server it is (default: vllm)")
    parser.add_argument("--devices", help="the numbers of the engine's GPUs as this process counts them, such as 0,1 (default: all)")
    parser.add_argument("--bucket", type=size, default=512 << 20, help="a half of the buffer on each GPU (default: 512MiB)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a worker may be silent (default: 60)")
    parser.add_argument("--cache", choices=("clear", "keep"), default="clear", help="the KV cache during a pause (default: clear)")
    parser.add_argument("--api-key-file", help="a file with the key of the engine's server")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        from .adapter import Adapter
        from .buffers import cuda_devices
        from .engine import KINDS
    except ModuleNotFoundError as failure:
        print(f"wsync.checkpoint_engine needs the package '{failure.name}': pip install 'wsync[checkpoint-engine]'",
              file=sys.stderr)
        return 1
    try:
        key = open(options.api_key_file, encoding="utf-8").read().strip() if options.api_key_file else None
        devices = cuda_devices([int(number) for number in options.devices.split(",")] if options.devices else None)
        engine = KINDS[options.kind](options.engine_url, options.cache == "clear", key)
        adapter = Adapter(options.sidecar, options.replica, engine, devices, options.bucket, options.timeout)
    except (Error, OSError, ValueError) as failure:
        print(f"wsync.checkpoint_engine: {failure}", file=sys.stderr)
        return 1
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: adapter.stop())
    adapter.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
