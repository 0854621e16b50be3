"""What becomes of requests while replicas and nodes of a cluster of Ray are lost, replaced, or taken away.

    python benchmarks/ray_faults.py --write      # benchmarks/results/tables.md, five minutes

Runs the tests of `scripts/ray_tests` that keep account of the requests of four clients, on a cluster of three nodes on
this machine, and makes a table of their accounts.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

from overhead import put_into_report

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "results" / "tables.md"
_TESTS = "killed_replica or killed_raylet or removed or update or follow"
_ACCOUNT = re.compile(r"^account of (.+?): (\{.*?\})", re.MULTILINE)
_COLUMNS = ("sent", "answered", "refused", "failed", "wrong")


def accounts() -> list[tuple[str, dict[str, int]]]:
    """What happened, and the requests by their outcomes. Ends the program if a test fails."""
    command = [str(ROOT / "scripts" / "ray_tests"), "-s", "-q", "-k", _TESTS]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(command)} failed")
    return [(name, json.loads(outcomes)) for name, outcomes in _ACCOUNT.findall(done.stdout)]


def table(rows: list[tuple[str, dict[str, int]]]) -> str:
    lines = [f"| what happened | {' | '.join(_COLUMNS)} |", f"|---|{'--:|' * len(_COLUMNS)}"]
    lines += [f"| {name} | {' | '.join(f'{outcomes[column]:,}' for column in _COLUMNS)} |" for name, outcomes in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/results/tables.md")
    options = parser.parse_args()
    text = table(accounts())
    print(text)
    if options.write:
        put_into_report("ray_faults.py", text, PAGE)


if __name__ == "__main__":
    main()
