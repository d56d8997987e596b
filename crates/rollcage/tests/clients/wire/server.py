"""The server that is looked at, and the ways to talk to it: HTTP, JSON-RPC and WebSockets.

Every wait has a deadline, so that a server which does not answer fails a test instead of hanging it.
"""

import asyncio
import dataclasses
import json
import unittest
import uuid

import httpx
import websockets

DEADLINE_S = 60
# What a tool or an argument may be called that no server has.
NOBODY = "nobody_knows_this"


@dataclasses.dataclass(frozen=True)
class Sample:
    """Two tools of a server: one that answers at once, and one that takes a few seconds."""

    tool: str
    arguments: dict
    answer: object
    slow_tool: str
    slow_arguments: dict

    def call(self, **more) -> dict:
        return {"type": "call_tool", "tool_name": self.tool, "arguments": self.arguments} | more

    def slow_call(self) -> dict:
        return {"type": "call_tool", "tool_name": self.slow_tool, "arguments": self.slow_arguments}

    def params(self, **more) -> dict:
        return {"name": self.tool, "arguments": self.arguments} | more

    def slow_params(self, **more) -> dict:
        return {"name": self.slow_tool, "arguments": self.slow_arguments} | more


# The tools of `rollcage serve`, and those of the server in crates/rollcage/src/server/tests.
ROLLOUTS = Sample(
    "get_state", {"rollout_id": "nobody"}, '{"rollout_id":"nobody","status":"unknown"}',
    "run_rollout", {"agent": "nop", "instruction": "wait", "setup": ["sleep 3"]},
)
TEST_TOOLS = Sample("echo", {"message": "é☃"}, "é☃", "slow", {"seconds": 3})


@dataclasses.dataclass(frozen=True)
class Server:
    url: str
    is_production: bool
    sessions_max: int
    sample: Sample

    @property
    def ws_url(self) -> str:
        return "ws" + self.url.removeprefix("http")


def sample_of(url: str) -> Sample:
    request = {"jsonrpc": "2.0", "method": "tools/list", "id": 1}
    tools = httpx.post(f"{url}/mcp", json=request, timeout=DEADLINE_S).json()["result"]["tools"]
    return TEST_TOOLS if any(tool["name"] == "echo" for tool in tools) else ROLLOUTS


def new_episode() -> str:
    return f"episode-{uuid.uuid4()}"


class Socket:
    """A WebSocket on which every request has one answer."""

    def __init__(self, wire: websockets.ClientConnection):
        self.wire = wire

    async def send(self, message: object) -> None:
        await self.wire.send(message if isinstance(message, str) else json.dumps(message))

    async def receive(self) -> dict:
        text = await asyncio.wait_for(self.wire.recv(), DEADLINE_S)
        if not isinstance(text, str):
            raise AssertionError("the server sent a binary frame")
        return json.loads(text)

    async def ask(self, message: object) -> dict:
        await self.send(message)
        return await self.receive()

    async def ping(self) -> None:
        pong = await self.wire.ping()
        await asyncio.wait_for(pong, DEADLINE_S)

    async def close_code(self) -> int:
        """The code with which the server closes; anything that it says before is an error."""
        try:
            said = await asyncio.wait_for(self.wire.recv(), DEADLINE_S)
        except websockets.ConnectionClosed as closed:
            if closed.rcvd is None:
                raise AssertionError("the connection ended without a close frame") from closed
            return closed.rcvd.code
        raise AssertionError(f"said instead of closing: {said[:200]}")


class WireTest(unittest.IsolatedAsyncioTestCase):
    """What all tests here share."""

    server: Server
    maxDiff = None

    async def asyncSetUp(self) -> None:
        self.http = httpx.AsyncClient(base_url=self.server.url, timeout=DEADLINE_S)
        self.addAsyncCleanup(self.http.aclose)
        self.sample = self.server.sample

    async def socket(self, path: str = "/ws", **options) -> Socket:
        opening = websockets.connect(
            self.server.ws_url + path, open_timeout=DEADLINE_S, close_timeout=DEADLINE_S, proxy=None, **options
        )
        wire = await opening
        self.addAsyncCleanup(wire.close)
        return Socket(wire)

    async def post_rpc(self, body: bytes) -> dict:
        """One JSON-RPC exchange. Whatever is asked, the status is 200 and the answer is of JSON-RPC's form."""
        answer = await self.http.post("/mcp", content=body, headers={"content-type": "application/json"})
        self.assertEqual(answer.status_code, 200, answer.text)
        self.assertEqual(answer.headers["content-type"].split(";")[0], "application/json")
        said = answer.json()
        self.assertEqual(said["jsonrpc"], "2.0")
        self.assertIn("id", said)
        self.assertEqual(len({"result", "error"} & said.keys()), 1, said)
        if "error" in said:
            self.assertIs(type(said["error"]["code"]), int)
            self.assertIs(type(said["error"]["message"]), str)
        return said

    async def rpc(self, method: str, request_id: object = 1, **params) -> dict:
        request = {"jsonrpc": "2.0", "method": method, "params": params, "id": request_id}
        said = await self.post_rpc(json.dumps(request).encode())
        self.assertEqual(said["id"], request_id)
        return said

    async def create_session(self) -> str:
        return (await self.rpc("openenv/session/create"))["result"]["session_id"]

    async def eventually(self, ask, is_right):
        """What is asked for, as soon as it is right: servers may tidy up after they have answered."""
        async with asyncio.timeout(DEADLINE_S):
            while not is_right(said := await ask()):
                await asyncio.sleep(0.05)
        return said

    def check_rpc_error(self, said: dict, code: int) -> None:
        self.assertIn("error", said)
        self.assertEqual(said["error"]["code"], code, said)

    def check_socket_error(self, said: dict, code: str) -> dict:
        self.assertEqual(said["type"], "error", said)
        self.assertEqual(said["data"]["code"], code, said)
        self.assertIs(type(said["data"]["message"]), str)
        return said["data"]

    def check_problems(self, problems: object) -> None:
        """Validation errors, in the form that pydantic gives them."""
        self.assertIs(type(problems), list)
        self.assertTrue(problems)
        for problem in problems:
            self.assertLessEqual({"type", "loc", "msg"}, problem.keys())

    def check_observation(self, body: dict) -> dict:
        """The envelope of a reset or a step; returns what was observed."""
        observed = body["observation"]
        self.assertIs(type(observed), dict)
        self.assertIs(type(body["done"]), bool)
        self.assertIn(type(body["reward"]), (int, float, type(None)))
        self.assertFalse({"done", "reward"} & observed.keys(), "they stand beside the observation")
        return observed

    def check_sent_observation(self, said: dict) -> dict:
        """The same on a socket, where clients take metadata for an object if it is there at all."""
        self.assertEqual(said["type"], "observation", said)
        for place in (said["data"], said["data"]["observation"]):
            self.assertIs(type(place.get("metadata", {})), dict)
        return self.check_observation(said["data"])

    def check_call(self, observed: dict) -> None:
        self.assertEqual(observed["tool_name"], self.sample.tool)
        self.assertIsNone(observed["error"])
        self.check_result(observed["result"])

    def check_result(self, result: dict) -> None:
        """What a tool answered, in the two places where clients look for it."""
        self.assertEqual(result["data"], self.sample.answer)
        self.assertEqual(result["content"][0]["type"], "text")
        self.assertEqual(result["content"][0]["text"], self.sample.answer)

    def check_listed(self, tools: list[dict]) -> None:
        self.assertIn(self.sample.tool, [tool["name"] for tool in tools])
