"""Drives the Autobahn cases against an echo server: autobahn.py URL --cases N [--not-strict IDS] [--informational IDS].

All cases but the groups 12 and 13 (compression) must be run, so many as said, and each must pass: OK, or exactly those
that are named as not strict or informational.
"""

import argparse
import asyncio
from typing import Any

from kosoku import FailureError, run_fuzzingclient
from peer import finish


async def main() -> dict[str, Any]:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url")
    arguments.add_argument("--cases", type=int, required=True)
    arguments.add_argument("--not-strict", default="")
    arguments.add_argument("--informational", default="")
    given = arguments.parse_args()
    try:
        results = await run_fuzzingclient(given.url, exclude_cases=["12.*", "13.*"], concurrency=4)
    except FailureError as failure:
        results = failure.results

    named = {"NON-STRICT": given.not_strict, "INFORMATIONAL": given.informational}
    allowed = {case: verdict for verdict, cases in named.items() for case in cases.split(",") if case}
    wrong, seen = [], set()
    for result in results:
        said = (result.behavior.value, result.behavior_close.value)
        verdict = allowed.get(result.case_id, "OK")
        # How a case is closed that has no right answer has none either.
        if said[0] != verdict or said[1] not in ("OK", verdict if verdict == "INFORMATIONAL" else "OK"):
            wrong.append({"case": result.case_id, "said": said, "why": [result.result, result.result_close]})
        seen.add(result.case_id)
    if len(results) != given.cases or len(seen) != given.cases or not allowed.keys() <= seen:
        wrong.append({"case": "all", "why": f"{len(results)} cases were run, {len(seen)} different ones"})
    return {"ok": not wrong, "peer": "kosoku", "cases": len(results), "why": wrong}


if __name__ == "__main__":
    finish(asyncio.run(main()))
