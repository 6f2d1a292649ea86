"""Which packages of those named are there: one line, {"torch": "2.13.0", "zmq": null}. Nothing is imported."""
import importlib.metadata
import importlib.util
import json
import sys

DISTRIBUTIONS = {"zmq": "pyzmq"}


def version_of(module):
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(module, module))
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


print(json.dumps({module: version_of(module) for module in sys.argv[1:]}))
