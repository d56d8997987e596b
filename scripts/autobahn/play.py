"""Plays Autobahn's cases to the echo at a URL and says how each chapter went; scripts/autobahn/run starts it.

    python3 play.py ws://127.0.0.1:9000 [CASE…]

A case is passed when both what was said and how it ended are as the standard wants them. `INFORMATIONAL` is what the
standard leaves open; `NON-STRICT` (allowed, but not what is best) is not good enough here.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys

KEPT = pathlib.Path(os.environ["AUTOBAHN_KEPT"])
CHAPTERS = {
    1: "framing", 2: "pings and pongs", 3: "reserved bits", 4: "opcodes", 5: "fragments", 6: "UTF-8",
    7: "closing", 9: "limits and speed", 10: "other",
}
PASSED = {"OK", "INFORMATIONAL"}
# Of the chapters above, as the suite has them; fewer means that something was not played.
CASES = 301


def play(url: str, cases: list[str]) -> dict:
    spec = {
        "outdir": str(KEPT / "report"),
        "servers": [{"agent": "rollcage", "url": url}],
        "cases": cases or [f"{chapter}.*" for chapter in CHAPTERS],
        "exclude-cases": [],
        "exclude-agent-cases": {},
    }
    path = KEPT / "spec.json"
    path.write_text(json.dumps(spec))
    command = [os.environ["AUTOBAHN_PYTHON"], KEPT / "suite/bin/wstest", "-m", "fuzzingclient", "-s", path]
    with open(KEPT / "wstest.log", "w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True, timeout=1800)
    return json.loads((KEPT / "report/index.json").read_text())["rollcage"]


def main() -> None:
    url, *cases = sys.argv[1:]
    results = play(url, cases)
    counts = collections.defaultdict(collections.Counter)
    failed = []
    for case, result in results.items():
        verdicts = {result["behavior"], result["behaviorClose"]}
        counts[int(case.split(".")[0])][" + ".join(sorted(verdicts))] += 1
        if not verdicts <= PASSED:
            failed.append((case, result["behavior"], result["behaviorClose"]))
    for chapter in sorted(counts):
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts[chapter].items()))
        print(f"{chapter:>3} {CHAPTERS.get(chapter, ''):18} {told}")
    for case, said, closed in failed:
        print(f"case {case}: {said}, closing {closed}; {KEPT}/report has its frames", file=sys.stderr)
    if not cases and len(results) != CASES:
        sys.exit(f"{len(results)} cases were played instead of {CASES}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


main()
