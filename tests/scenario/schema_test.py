"""The schemas of deploy/cli/schema: each is a valid schema, each command has one, and a wrong object is refused."""
import copy
import itertools
import json
import os
import re
import subprocess
import sys
import unittest

import schema
from schema import jsonschema

WSYNC = sys.argv.pop()
DEADLINE_S = 60
OTHER_PROGRAMS = {"wsync-engine": ["engine"], "wsync-train": ["train", "schedule"], "wsync-bench": ["bench"]}
EVENT = {"event": "bucket", "version": "1.2", "bucket": 0, "of": 4}
VERIFIED = {"command": "verify", "ok": False, "result": {"match": False, "only_unreadable": False, "ranks": [{
    "replica": "r0", "rank": 0, "version": "1.2", "tensors": 7, "bytes": 4096, "failure": "", "is_unreadable": False,
    "is_controller": False,
    "follows": "all bytes are loaded again",
    "mismatches": [{"tensor": "w", "expected": "0" * 32, "found": "f" * 32}]}]}}
ERROR = {"command": "push", "ok": False, "error": {"code": "busy", "message": "an update runs"}}


def output_of(*arguments):
    return subprocess.run(arguments, text=True, capture_output=True, timeout=DEADLINE_S)


def commands_below(*words):
    """Commands that `--help` names and that take --json."""
    text = output_of(WSYNC, *words, "--help").stdout
    listed = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    below = re.findall(r"^  (\S+) ", listed, re.MULTILINE)
    if not below:
        return [words] if re.search(r"^ +--json\b", text, re.MULTILINE) else []
    return list(itertools.chain.from_iterable(commands_below(*words, word) for word in below))


def objects_in(value, path=()):
    """Objects of an instance, with the keys that lead to them."""
    if isinstance(value, dict):
        yield path, value
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from objects_in(inner, (*path, key))


def changed(value, path, change):
    """A copy whose object at the path is changed."""
    made = copy.deepcopy(value)
    at = made
    for key in path:
        at = at[key]
    change(at)
    return made


class Schemas(unittest.TestCase):
    def check_fields(self, name, at, part):
        """What our objects promise: they list their fields, refuse others, and describe each."""
        if isinstance(part, list):
            for index, inner in enumerate(part):
                self.check_fields(name, f"{at}/{index}", inner)
        if not isinstance(part, dict):
            return
        if part.get("type") == "object" and "properties" in part and (at or name in ("envelope", "bench-result")):
            self.assertIs(part.get("additionalProperties"), False, f"{name}.json#{at}")
        for key, inner in part.items():
            if key == "properties" and not at.endswith(("/if", "/properties", "/definitions")):
                for field, described in inner.items():
                    place = f"{name}.json#{at}/properties/{field}"
                    if isinstance(described, dict) and set(described) - {"const", "pattern"}:
                        self.assertIn("description", described, place)
                        self.assertRegex(described["description"], r"^\S.*\.$", place)
            self.check_fields(name, f"{at}/{key}", inner)
        for inner in part.get("required", ()) if part.get("additionalProperties") is False else ():
            self.assertIn(inner, part["properties"], f"{name}.json#{at} requires what it refuses")

    def test_each_is_a_valid_schema(self):
        self.assertGreater(len(schema.NAMES), 40)
        for name in schema.NAMES:
            jsonschema.Draft7Validator.check_schema(schema.read(name))

    def test_each_field_is_described_and_unknown_ones_are_refused(self):
        for name in schema.NAMES:
            self.check_fields(name, "", schema.read(name))

    def test_each_reference_leads_somewhere(self):
        for name in schema.NAMES:
            resolver = schema.resolver(name)
            for at, part in objects_in(schema.read(name)):
                if isinstance(part.get("$ref"), str):
                    self.assertIsInstance(resolver.resolve(part["$ref"])[1], dict, (name, at))

    def test_each_command_that_takes_json_has_one(self):
        names = {"-".join(words) for words in commands_below()}
        self.assertIn("trace-get", names)
        for program, first in OTHER_PROGRAMS.items():
            if not os.path.exists(os.path.join(os.path.dirname(WSYNC), program)):  # this build leaves it out
                names |= {name for name in schema.COMMANDS if name.split("-")[0] in first}
        self.assertEqual(names, set(schema.COMMANDS))

    def test_each_name_of_a_command_is_its_own(self):
        for name in schema.COMMANDS:
            command = schema.read(name)["properties"]["command"]
            first = command.get("const") or command["enum"][0]
            self.assertEqual(first.replace(" ", "-"), name)
            self.assertEqual(schema.schema_of(["wsync", *first.split(), "--json"]), name)


class Refusals(unittest.TestCase):
    def assert_refused(self, name, value, *words):
        with self.assertRaises(AssertionError) as raised:
            schema.validate(name, json.dumps(value))
        for word in (f"schema {name}", "found", *words):
            self.assertIn(word, str(raised.exception))

    def check_each_field(self, name, value):
        """The value is right, and wrong without any of its fields or with another one."""
        self.assertEqual(schema.validate(name, json.dumps(value)), value)
        for path, part in objects_in(value):
            self.assert_refused(name, changed(value, path, lambda at: at.update(unexpected=1)), "unexpected")
            for key in part:
                self.assert_refused(name, changed(value, path, lambda at, key=key: at.pop(key)))
                self.assert_refused(name, changed(value, path, lambda at, key=key: at.update({key: {"of": "another kind"}})))

    def test_without_a_field_and_with_another_one(self):
        self.check_each_field("verify", VERIFIED)
        self.check_each_field("push", ERROR)

    def test_what_a_command_prints_without_a_field(self):
        done = output_of(*[WSYNC, "completion", "bash", "--json"])
        self.check_each_field("completion", schema.validate(done.args, done.stdout))

    def test_an_event(self):
        self.assertEqual(schema.validate("engine", json.dumps(EVENT)), EVENT)
        for wrong in ({**EVENT, "event": "bukket"}, {**EVENT, "more": 1}, {**EVENT, "of": -1}, {"event": "bucket"}):
            with self.assertRaisesRegex(AssertionError, "schema engine-event.json"):
                schema.validate("engine", json.dumps(wrong))

    def test_an_error_says_where_and_what(self):
        wrong = changed(VERIFIED, ("result", "ranks", 0), lambda at: at.update(bytes="many"))
        self.assert_refused("verify", wrong, "schema verify.json", "at result.ranks[0].bytes", '"many"')
        self.assert_refused("push", VERIFIED, "at command")

    def test_a_result_and_an_error_exclude_each_other(self):
        self.assert_refused("push", {"command": "push", "ok": True})
        self.assert_refused("push", {**ERROR, "ok": True})
        self.assert_refused("verify", {**VERIFIED, "error": ERROR["error"]})

    def test_text_that_is_no_line(self):
        for wrong in ("", "no object", "{}", "[]", json.dumps(ERROR) * 2, json.dumps(ERROR) + "\n" + json.dumps(ERROR), "NaN"):
            with self.assertRaisesRegex(AssertionError, "schema push.json"):
                schema.validate("push", wrong)


if __name__ == "__main__":
    unittest.main()
