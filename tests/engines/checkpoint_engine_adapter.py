"""wsync.checkpoint_engine with buffers in the memory of the host: `python checkpoint_engine_adapter.py KEYWORDS-AS-JSON`."""
import json
import logging
import signal
import sys

from host_buffer import HostBuffer

from wsync.checkpoint_engine.adapter import Adapter
from wsync.checkpoint_engine.engine import KINDS

options = json.loads(sys.argv[1])
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
adapter = Adapter(options["socket"], options["replica"], KINDS[options["kind"]](options["url"], options["clears_cache"]),
                  {f"GPU-{number}": HostBuffer for number in range(options["workers"])}, options["bucket"], options["timeout"])
signal.signal(signal.SIGTERM, lambda *_: adapter.stop())
print("ready", flush=True)
adapter.run()
