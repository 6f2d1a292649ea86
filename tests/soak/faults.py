#!/usr/bin/env python3
"""Random faults in fleets under trainers that publish all the time: the command. README.md (faults) says what must hold after each."""
import argparse
import math
import signal
import sys

import soak  # noqa: F401  (its import finds the scenarios' modules)
import fault_figures
from fault_fleet import LENDING
from fault_fleets import run_fleets, together


def main():
    parser = argparse.ArgumentParser(description="Random faults in a fleet under a trainer that publishes all the time.")
    for name in ("wsync", "trainer_rank", "forking_engine"):
        parser.add_argument(name, help="program of the build")
    parser.add_argument("--cycles", type=int, default=100, help="faults (default: 100)")
    parser.add_argument("--fleets", type=int, default=1, help="fleets beside each other, each with a seed of its own from --seed on; they share the "
                        "cycles (default: 1)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after the cycle in which so much time has passed (default: never)")
    parser.add_argument("--output", help="file for the figures, as a JSON object")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of faults, processes and times (default: 1)")
    parser.add_argument("--lend", action="store_true", help="no engine serves from the trainer's arena, so that it is changed in place")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not 1 <= options.fleets <= max(1, options.cycles):
        parser.error(f"--fleets {options.fleets}: expected 1 to the number of cycles ({options.cycles})")
    print(f"seed {options.seed}", flush=True)
    try:
        runs = run_fleets((options.wsync, options.trainer_rank, options.forking_engine), range(options.seed, options.seed + options.fleets),
                          options.cycles, options.seconds, replicas=LENDING if options.lend else None)
    except AssertionError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(128 + 2)
    run = together(runs.values())
    print(fault_figures.text_of(run))
    if options.output:
        fault_figures.write(run, options.output)


if __name__ == "__main__":
    main()
