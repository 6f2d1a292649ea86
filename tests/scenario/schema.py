"""What commands print with --json, against the schemas in deploy/cli/schema.

A scenario reads the output of a command by validate(), so that each field that is missing, unknown or of another type fails it.
"""
import functools
import json
import os
import pathlib
import sys
import threading
import warnings

try:
    import jsonschema
except ImportError:
    # The system's package, where another Python runs the tests.
    sys.path.append("/usr/lib/python3/dist-packages")
    import jsonschema

DIRECTORY = pathlib.Path(os.path.abspath(__file__)).parents[2] / "deploy" / "cli" / "schema"
NO_COMMANDS = {"envelope", "common", "bench-result", "bench-suites", "engine-event", "train-event"}
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.json"))
COMMANDS = [name for name in NAMES if name not in NO_COMMANDS]
SUITES = {name.removeprefix("bench-") for name in COMMANDS if name.startswith("bench-")} - {"list", "compare", "report"}
SHOWN = 5  # errors of one object
FOUND_MOST = 300  # characters of what was found
LOCK = threading.Lock()  # a validator keeps its place in the schema while it works


def read(name):
    with open(DIRECTORY / f"{name}.json", encoding="utf-8") as file:
        return json.load(file)


def resolver(name):
    """What finds the schemas that a schema refers to."""
    with warnings.catch_warnings():
        # Newer releases have another class for it, which Debian 12's does not have.
        warnings.simplefilter("ignore", DeprecationWarning)
        return jsonschema.RefResolver((DIRECTORY / f"{name}.json").as_uri(), read(name))


@functools.cache
def validator(name):
    return jsonschema.Draft7Validator(read(name), resolver=resolver(name))


def schema_of(arguments):
    """The schema of a command line, which begins with the program. A line that names no command has the envelope's."""
    words = arguments[1:]
    if words[:1] == ["bench"] and words[1:2] and words[1] in SUITES and SUITES.intersection(words[2:]):
        return "bench-suites"
    for count in (2, 1):
        name = "-".join(words[:count])
        if name in COMMANDS:
            return name
    return "envelope"


def causes(error):
    """The errors that an alternative was refused for, or the error itself."""
    return [cause for inner in error.context for cause in causes(inner)] if error.context else [error]


def sentence_of(error):
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    found = json.dumps(error.instance)
    if len(found) > FOUND_MOST:
        found = found[:FOUND_MOST] + " ..."
    reason = error.message if len(error.message) <= FOUND_MOST else f"it breaks '{error.validator}'"
    return f"at {path or 'the top'}: {reason}; found {found}"


def refuse_constant(text):
    raise ValueError(f"{text} is not JSON")


def check(name, value):
    """Fails unless the value is as the schema of that name says."""
    with LOCK:
        errors = [cause for error in validator(name).iter_errors(value) for cause in causes(error)]
    if errors:
        shown = "\n".join("  " + sentence_of(error) for error in errors[:SHOWN])
        raise AssertionError(f"schema {name}.json: {len(errors)} errors\n{shown}")


def validate(command, text):
    """The object on one line of output. `command`: the command line that printed it, with the program first, or the name of its
    schema. A line of an engine or of a training run may be an event."""
    name = command if isinstance(command, str) else schema_of(list(command))
    lines = text.splitlines()
    if len(lines) != 1:
        raise AssertionError(f"schema {name}.json: expected one line; found {len(lines)}: {text[:FOUND_MOST]!r}")
    try:
        value = json.loads(lines[0], parse_constant=refuse_constant)
    except ValueError as error:
        raise AssertionError(f"schema {name}.json: {error}; found {text[:FOUND_MOST]!r}") from error
    if name in ("engine", "train") and isinstance(value, dict) and "event" in value:
        name += "-event"
    check(name, value)
    return value
