"""Long rollouts read by OpenEnv's own clients: 200 calls, and 200 calls whose prompt is rendered anew for each.

    python long_client.py http://127.0.0.1:8000 [CALLS]

Needs `pip install openenv==0.10.0`, and a server that knows the agents `shell-loop` (manifests/) and `restless` (beside
this file): both go to $ROLLCAGE_HOME/agents. Exits with 0 when everything held.
"""

import asyncio
import json
import pathlib
import sys
import urllib.request

from openenv.core.generic_client import GenericEnvClient
from openenv.core.harness.training import TrainingTrace
from openenv.core.mcp_client import MCPToolClient

URL = sys.argv[1].rstrip("/")
CALLS = int(sys.argv[2]) if len(sys.argv) > 2 else 200
ANSWER_BYTES_MAX = 32 << 20
DOCS = pathlib.Path(__file__).parents[4] / "docs/results.md"

# `rows` and `calls`, as they are documented.
exec(DOCS.read_text().split("<!-- expand -->\n```python\n")[1].split("```")[0])


def task(agent: str, n_calls: int) -> dict:
    """Commands that print a screen of numbers each, and a last word."""
    steps = [{"say": f"Step {step}.", "run": f"seq {step * 1000} {step * 1000 + 300}"} for step in range(n_calls - 1)]
    return {
        "instruction": "Count.", "verify": ["true"], "endpoint": "scripted", "agent": agent,
        "solution": steps + [{"say": "Done."}], "task_id": f"{agent}-{n_calls}", "agent_timeout_s": 1800,
    }


def get(path: str) -> bytes:
    with urllib.request.urlopen(URL + path) as answer:
        return answer.read()


async def run(agent: str, n_calls: int) -> dict:
    async with GenericEnvClient(base_url=URL, message_timeout_s=1800) as env:
        await env.reset()
        arguments = task(agent, n_calls)
        step = await env.step({"type": "call_tool", "tool_name": "run_rollout", "arguments": arguments}, timeout_s=1800)
        assert step.observation["error"] is None, step.observation["error"]
        text = step.observation["result"]["data"]
        assert len(json.dumps(text)) <= ANSWER_BYTES_MAX, len(text)
        return json.loads(text)


async def pages(rollout_id: str, form: str) -> list:
    items, offset = [], 0
    async with MCPToolClient(base_url=URL, message_timeout_s=1800) as env:
        whole = json.loads(await env.call_tool("finalize_rollout", rollout_id=rollout_id))
        assert whole["rollout_id"] == rollout_id and len(whole["proxy_turns"]) == whole["usage"]["calls"]
        while offset is not None:
            page = json.loads(await env.call_tool("get_trace", rollout_id=rollout_id, form=form, offset=offset))
            items += page["items"]
            offset = page["next_offset"]
    assert len(items) == page["total"]
    return items


def check(agent: str, n_calls: int) -> dict:
    result = asyncio.run(run(agent, n_calls))
    assert (result["ended"], result["reward"]) == ("completed", 1.0), (result["ended"], result["error"])
    assert result["usage"]["calls"] == result["usage"]["trainable_turns"] == n_calls, result["usage"]
    assert len(result["proxy_turns"]) == n_calls
    rollout_id = result["rollout_id"]
    # What was too large for one answer comes page by page, and is what OpenEnv's strict model takes.
    turns = asyncio.run(pages(rollout_id, "training_trace"))
    trace = TrainingTrace.model_validate({"schema_version": 1, "turns": turns})
    if result["training_trace"] is None:
        assert "trace_too_large" in [finding["code"] for finding in result["findings"]], result["findings"]
    else:
        assert TrainingTrace.model_validate(result["training_trace"]) == trace
    # Every token of the rows is that of the trace, one by one, and each is trained once.
    sequences = get(f"/v1/rollouts/{rollout_id}?trace=sequences")
    found = {}
    for row in rows(map(json.dumps, json.loads(sequences)["sequences"])):
        assert sum(row["loss_mask"]) == row["n_trainable"]
        for turn in row["turns"]:
            start, end = turn["start"], turn["start"] + turn["len"]
            assert all(row["loss_mask"][start:end]) and turn["node_id"] not in found
            found[turn["node_id"]] = (row["input_ids"][:start], row["input_ids"][start:end], row["logprobs"][start:end])
    sent = {turn.node_id: (turn.prompt_token_ids, turn.completion_token_ids, turn.per_token_logps) for turn in trace.turns}
    assert found == sent, "the rows are not the trace"
    every = list(calls(get(f"/v1/rollouts/{rollout_id}/trace?format=turns").decode().splitlines()))
    assert {call["node_id"]: call["prompt_token_ids"] for call in every} == {name: own[0] for name, own in sent.items()}
    sizes = {"trace=none": len(get(f"/v1/rollouts/{rollout_id}?trace=none")), "trace=sequences": len(sequences)}
    sizes["trace=turns"] = len(get(f"/v1/rollouts/{rollout_id}?trace=turns"))
    for form in ("sequences", "turns", "sft"):
        sizes[f"export {form}"] = len(get(f"/v1/rollouts/{rollout_id}/trace?format={form}"))
    sizes["OpenEnv's answer"] = len(json.dumps(result))
    record = pathlib.Path(result["record"]) / "exchanges.rec"
    if record.exists():
        sizes["exchanges.rec"] = record.stat().st_size
    return sizes


def main() -> None:
    for agent in ("shell-loop", "restless"):
        half, whole = check(agent, CALLS // 2), check(agent, CALLS)
        for name, large in whole.items():
            print(f"{agent:12} {name:18} {half[name]:>12,} {large:>12,}", flush=True)
            if name != "OpenEnv's answer":
                assert large < 2.3 * half[name], f"{name} grows faster than the calls"


main()
