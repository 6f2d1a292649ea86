"""What a run of faults.py has counted, as a table and as an object."""
import collections
import http.client
import json
import os
import platform
import re
import statistics

from pages import get

MIB = 2**20
LOADS = re.compile(r'^(wsync_loads_total\{kind="(?P<kind>\w+)"\}|(?P<fallbacks>wsync_patch_fallbacks_total)) (?P<value>[0-9.e+]+)$', re.M)
FALLBACKS = "fallbacks"


class Loads:
    """Loads of ranks by kind, as the sidecars count them (`wsync_loads_total`). A process counts from 0, so the last figures of each one
    are kept. What a process has counted between its last reading and its SIGKILL is lost: the sums are the least that there were. A
    process is the object of it, because a long run has two processes with one number."""

    def __init__(self):
        self.of_process = {}

    def read(self, process, socket):
        """Reads the page of one sidecar, if it has one and answers."""
        try:
            status, text = get(socket, "/metrics")
        except (OSError, http.client.HTTPException):
            return  # it is ending, or has not opened its page yet
        if status == 200:
            self.of_process[process] = {found["kind"] or FALLBACKS: int(float(found["value"])) for found in LOADS.finditer(text)}

    def sums(self):
        sums = collections.Counter({"patch": 0, "full": 0, FALLBACKS: 0})
        for counted in self.of_process.values():
            sums.update(counted)
        return dict(sums)


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"^model name\s*: (.*)$", file.read(), re.M)
    return {"cpu": model[1] if model else platform.processor(), "cores": os.cpu_count(), "kernel": f"{platform.system()} {platform.release()}"}


def object_of(run):
    """The result of a run that has ended well."""
    return {
        "command": "faults", "machine": machine(), "passed": True, "seed": run.seed, "fleets": run.fleets, "cycles": run.cycles, "seconds": round(run.seconds, 1),
        "published": run.publishes, "refused": run.refused, "published_by_kind": dict(run.kinds), "torn": 0,
        "loads": run.loads, "loads_at_rest": {replica: dict(counted) for replica, counted in sorted(run.loads_at_rest.items())},
        "verified": {"versions": run.verified, "ranks": run.ranks_verified, "bytes": run.bytes_verified},
        "more_at_rest": {name: run.most[name] for name in ("descriptors", "bytes", "arenas")},
        "faults": [{"fault": fault, "of": kind, "times": len(took), "median_s": round(statistics.median(took), 3), "most_s": round(max(took), 3)}
                   for (fault, kind), took in sorted(run.took.items())]}


def write(run, path):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(object_of(run), file, indent=1)
        file.write("\n")


def text_of(run):
    kinds = ", ".join(f"{count} with {kind} changed" for kind, count in run.kinds.items())
    of_fleets = f" of {run.fleets} fleets beside each other" if run.fleets > 1 else ""
    lines = [f"{run.cycles} cycles{of_fleets} in {run.seconds:.0f} s, seed {run.seed}: {run.publishes} versions published ({kinds}), "
             f"{run.refused} refused; 0 torn, nothing left",
             f"loads of ranks: {run.loads['patch']} by a patch and {run.loads['full']} in full at least, {run.loads[FALLBACKS]} patches that failed "
             "and were followed by a full load",
             f"{run.verified} versions computed a second time; equal on {run.ranks_verified} ranks, {run.bytes_verified / MIB:.0f} MiB",
             f"at rest a process had at most {run.most['descriptors']} descriptors and {run.most['bytes'] / MIB:.1f} MiB more "
             f"than before the faults, and the fleet {run.most['arenas']} arenas more",
             "last load at rest, by replica: " + "; ".join(
                 f"{replica} {', '.join(f'{kind} {count}' for kind, count in sorted(counted.items()))}"
                 for replica, counted in sorted(run.loads_at_rest.items())),
             f"{'fault':<22} {'of':<8} {'times':>6} {'median s':>9} {'most s':>8}"]
    for (fault, kind), took in sorted(run.took.items()):
        lines.append(f"{fault:<22} {kind:<8} {len(took):>6} {statistics.median(took):>9.2f} {max(took):>8.2f}")
    return "\n".join(lines)
