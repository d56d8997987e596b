"""OpenEnv's own clients against a running `rollcage serve`: whole rollouts of the real OpenCode, with the scripted model.

    python openenv_client.py http://127.0.0.1:8000

Needs `pip install openenv==0.10.0`. Exits with 0 when everything held.
"""

import asyncio
import json
import math
import sys

from openenv.core import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from openenv.harbor.client import HarborEnv
from pydantic import BaseModel, ConfigDict

TASK = {
    "instruction": "Write the word ok into answer.txt.",
    "setup": ["echo ready > ready.txt"],
    "verify": ["test -f ready.txt", "grep -qx ok answer.txt"],
    "endpoint": "scripted",
    "solution": [{"run": "echo ok > answer.txt"}],
}
# The same task as the earlier variant asks for it.
EARLIER = {
    "instruction": "Write the word ok into answer.txt.",
    "setup_shell": "echo ready > ready.txt",
    "upload_files": {"/home/user/tests/expected.txt": "ok\n", "/tmp/beside.txt": "beside\n"},
    # The original's places: the instruction, the agent's own events, the proxy's log, the script itself.
    "test_script": """set -e
        cmp answer.txt /home/user/tests/expected.txt
        test "$0" = /home/user/tests/test.sh -a -x "$0" -a -f /tmp/beside.txt
        grep -q ok /home/user/task/instruction.md
        head -n1 /home/user/logs/agent/opencode.jsonl | grep -q '^{'
        test -s /home/user/logs/agent/proxy.log
        echo 1 > /home/user/logs/verifier/reward.txt""",
    "model_key": "scripted/any",
    "solution": [{"run": "echo ok > answer.txt"}],
}


# What the earlier variant keeps of a request.
REQUEST = {
    "model", "messages", "temperature", "top_p", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "stream",
}


class Strict(BaseModel):
    """Types are taken as they are; what is more than the original had is no error."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Command(Strict):
    cmd: str
    exit_code: int
    stdout: str
    stderr: str
    duration_s: float


class Turn(Strict):
    turn: int
    finish_reason: str | None
    completion_tokens: list[str]
    completion_token_ids: list[int]
    per_token_logps: list[float]
    latency_s: float
    timestamp: float


class OneToolResult(Strict):
    """What the variant with one tool returns."""

    task_id: str
    sandbox_id: str
    reward: float | None
    agent_exit_code: int | None
    wall_s: float
    mode: str
    setup_results: list[Command]
    verify_results: list[Command]
    proxy_turns: list[Turn]
    files: dict[str, str]
    files_extra: list[str]
    agent_log_tail: str
    proxy_log_tail: str
    error: str | None


class SixToolResult(Strict):
    """What the variant with six tools returns."""

    task_id: str
    sandbox_id: str
    reward: float | None
    exit_code: int
    wall_s: float
    mode: str
    proxy_turns: list[Turn]
    workdir_files: dict[str, str]
    verifier_stdout: str
    verifier_stderr: str
    test_exit_code: int | None
    install_log_tail: str
    agent_log_tail: str
    proxy_log_tail: str
    error: str | None


def check(raw: str, reward: float | None) -> dict:
    for model in (OneToolResult, SixToolResult):
        result = model.model_validate_json(raw)
        assert result.reward == reward, raw
    for turn in result.proxy_turns:
        assert all(math.isfinite(logp) and logp <= 0 for logp in turn.per_token_logps), turn
        for tokens in (turn.completion_tokens, turn.completion_token_ids):
            assert len(tokens) == len(turn.per_token_logps), turn
    assert result.mode in ("transparent_proxy", "black_box"), result.mode
    return json.loads(raw)


def check_whole(raw: str) -> None:
    result = check(raw, 1.0)
    assert result["ended"] == "completed" and result["error"] is None, result["error"]
    assert result["files"]["/home/user/workdir/answer.txt"] == "ok\n", result["files"]
    for turn in result["proxy_turns"]:
        assert REQUEST <= turn["request"].keys(), turn["request"].keys()
    assert 0 < len(result["agent_log_tail"].splitlines()) <= 20, result["agent_log_tail"]
    turns = result["training_trace"]["turns"]
    assert turns and all(len(turn["per_token_logps"]) == len(turn["completion_token_ids"]) for turn in turns)


async def whole_rollout(url: str) -> None:
    async with MCPToolClient(base_url=url, message_timeout_s=300) as env:
        await env.reset(episode_id="e-1")
        check_whole(await env.call_tool("run_rollout", **TASK, task_id="async"))
        check_whole(await env.call_tool("run_rollout", **EARLIER, task_id="earlier"))
        state = await env.state()
        assert state.episode_id == "e-1", state


def whole_rollout_sync(url: str) -> None:
    with MCPToolClient(base_url=url, message_timeout_s=300).sync() as env:
        env.reset()
        check_whole(env.call_tool("run_rollout", **TASK, task_id="sync"))


async def six_tools(url: str) -> None:
    """One rollout is aborted while its agent works; the other, started beside it, ends as if nothing had been."""
    slow = {**TASK, "solution": [{"run": "sleep 600"}], "task_id": "slow"}
    async with MCPToolClient(base_url=url, message_timeout_s=300) as env:
        started = json.loads(await env.call_tool("start_rollout", **slow))
        other = json.loads(await env.call_tool("start_rollout", **TASK, task_id="other"))
        assert started["status"] == "starting" and started["task_id"] == "slow", started
        rollout = {"rollout_id": started["rollout_id"]}
        while True:
            state = json.loads(await env.call_tool("get_state", **rollout))
            session = state["serve_session_id"]
            assert state["status"] == "running" and (session is None or session.startswith("ses_")), state
            if state["proxy_turns_so_far"] > 0:
                break
            await asyncio.sleep(0.2)
        messages = json.loads(await env.call_tool("get_messages", **rollout))
        assert messages["messages"][0]["info"]["role"] == "user", messages
        # OpenCode's own transcript, of its own session.
        assert messages["serve_session_id"] == messages["messages"][0]["info"]["sessionID"], messages
        late = await env.call_tool("finalize_rollout", **rollout, wait_s=0.1)
        assert json.loads(late)["error"].startswith("timeout waiting for rollout_id="), late
    # Another session, as after a lost connection.
    async with MCPToolClient(base_url=url, message_timeout_s=300) as env:
        aborted = json.loads(await env.call_tool("abort_rollout", **rollout))
        assert aborted == {**rollout, "aborted": True}, aborted
        # What was there when the agent was ended is verified and collected.
        result = check(await env.call_tool("finalize_rollout", **rollout), 0.5)
        assert result["ended"] == "cancelled" and result["graded"] and not result["reward_valid"], result["error"]
        assert result["workdir_files"] == {"/home/user/workdir/ready.txt": "ready\n"}, result["workdir_files"]
        check_whole(await env.call_tool("finalize_rollout", rollout_id=other["rollout_id"]))
        unknown = json.loads(await env.call_tool("get_state", rollout_id="nobody"))
        assert unknown == {"rollout_id": "nobody", "status": "unknown"}, unknown


async def rewards_of_steps(url: str) -> None:
    """A step has the reward of the rollout that it finished, and any other none."""
    async with GenericEnvClient(base_url=url, message_timeout_s=300) as env:
        await env.reset()
        call = {"type": "call_tool", "tool_name": "run_rollout", "arguments": TASK}
        assert (await env.step(call)).reward == 1.0
        assert (await env.step({"type": "list_tools"})).reward == 0.0
        assert (await env.state())["last_reward"] == 1.0


def tasks_of_harbor(url: str) -> None:
    """`HarborEnv` finds the server's tasks, though its paths have the name of its own server."""
    env = HarborEnv(base_url=url)
    try:
        split = env.splits()[0]
        assert env.num_tasks(split["name"]) == split["num_tasks"] > 1, split
        second = env.get_task(split["name"], 1)
        assert second.index == 1 and second.task_id and second.instruction, second
        assert env.get_task_range(split["name"], 1, 2) == [second], second
    finally:
        env._http.close()


def main() -> None:
    url = sys.argv[1]
    tasks_of_harbor(url)
    asyncio.run(rewards_of_steps(url))
    asyncio.run(whole_rollout(url))
    whole_rollout_sync(url)
    asyncio.run(six_tools(url))
    print("OpenEnv's clients: whole rollouts, async and sync, and six tools with an abort")


main()
