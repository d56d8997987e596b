"""The two WebSockets: `/ws`, where an episode is played, and `/mcp`, where JSON-RPC is spoken."""

from openenv.core.env_server.mcp_types import ToolError

from json_rpc import INVALID_REQUEST, NO_METHOD, PARSE_ERROR
from server import NOBODY, Socket, WireTest, new_episode

STATE = {"type": "state"}


def reset(**data) -> dict:
    return {"type": "reset", "data": data}


def step(action: dict) -> dict:
    return {"type": "step", "data": action}


def rpc(method: str, request_id: object, **params) -> dict:
    return {"jsonrpc": "2.0", "method": method, "params": params, "id": request_id}


def mcp(method: str, request_id: object, **params) -> dict:
    return {"type": "mcp", "data": rpc(method, request_id, **params)}


class Episodes(WireTest):
    async def state(self, socket: Socket) -> dict:
        said = await socket.ask(STATE)
        self.assertEqual(said["type"], "state", said)
        return said["data"]

    async def test_an_episode_from_reset_to_reset(self):
        socket, episode = await self.socket(), new_episode()
        self.check_sent_observation(await socket.ask(reset(seed=7, episode_id=episode, more=1)))
        state = await self.state(socket)
        self.assertEqual((state["episode_id"], state["step_count"]), (episode, 0))
        untyped = self.sample.call()
        del untyped["type"]
        for action in (self.sample.call(), untyped):
            self.check_call(self.check_sent_observation(await socket.ask(step(action))))
        self.assertEqual((await self.state(socket))["step_count"], 2)
        self.check_sent_observation(await socket.ask({"type": "reset"}))
        self.assertNotIn((await self.state(socket))["episode_id"], (episode, None, ""))

    async def test_steps_need_no_reset(self):
        socket = await self.socket()
        self.check_call(self.check_sent_observation(await socket.ask(step(self.sample.call()))))
        self.check_listed((await socket.ask(step({"type": "list_tools"})))["data"]["observation"]["tools"])

    async def test_a_tool_that_fails_is_observed(self):
        socket = await self.socket()
        unknown = {"type": "call_tool", "tool_name": NOBODY, "arguments": {}}
        observed = self.check_sent_observation(await socket.ask(step(unknown)))
        self.assertEqual((observed["tool_name"], observed["result"]), (NOBODY, None))
        self.assertEqual(ToolError(**observed["error"]).error_type.value, "tool_not_found")
        wrong = self.sample.call(arguments=self.sample.arguments | {NOBODY: 1})
        observed = self.check_sent_observation(await socket.ask(step(wrong)))
        self.assertEqual(ToolError(**observed["error"]).error_type.value, "invalid_args")

    async def test_messages_that_make_no_sense_leave_the_episode_alone(self):
        socket, episode = await self.socket(), new_episode()
        await socket.ask(reset(episode_id=episode))
        self.check_socket_error(await socket.ask("no JSON"), "INVALID_JSON")
        for message in ({"type": NOBODY}, {"no": "type"}):
            self.check_socket_error(await socket.ask(message), "UNKNOWN_TYPE")
        for message in (
            {"type": "step"},
            step({}),
            step({"type": NOBODY}),
            step(self.sample.call()) | {"more": 1},
            STATE | {"data": {}},
            {"type": "reset", "data": [1]},
            {"type": "mcp"},
        ):
            with self.subTest(message=message):
                self.check_problems(self.check_socket_error(await socket.ask(message), "VALIDATION_ERROR")["errors"])
        self.assertEqual((await self.state(socket))["episode_id"], episode)

    async def test_answers_come_in_the_order_of_requests(self):
        socket, episode = await self.socket(), new_episode()
        for message in (reset(episode_id=episode), step(self.sample.call()), STATE):
            await socket.send(message)
        self.check_sent_observation(await socket.receive())
        self.check_call(self.check_sent_observation(await socket.receive()))
        self.assertEqual((await socket.receive())["data"]["episode_id"], episode)

    async def test_sockets_do_not_see_each_others_episodes(self):
        one, other = await self.socket(), await self.socket()
        await one.ask(reset(episode_id="one"))
        await other.ask(reset(episode_id="other"))
        await other.ask(step(self.sample.call()))
        counted = [(state["episode_id"], state["step_count"]) for state in [await self.state(one), await self.state(other)]]
        self.assertEqual(counted, [("one", 0), ("other", 1)])

    async def test_every_character_comes_back(self):
        socket, episode = await self.socket(), 'é☃𝄞"\\\n\u0000'
        await socket.ask(reset(episode_id=episode))
        self.assertEqual((await self.state(socket))["episode_id"], episode)

    async def test_json_rpc_inside_the_episode(self):
        socket = await self.socket()
        said = await socket.ask(mcp("tools/call", 7, **self.sample.params()))
        self.assertEqual((said["type"], said["data"]["id"]), ("mcp", 7))
        self.check_result(said["data"]["result"])
        said = await socket.ask({"type": "mcp", "data": {"no": "request"}})
        self.assertEqual((said["type"], said["data"]["id"]), ("mcp", None))
        self.check_rpc_error(said["data"], INVALID_REQUEST)
        self.check_rpc_error((await socket.ask(mcp(NOBODY, 8)))["data"], NO_METHOD)


class Frames(WireTest):
    async def test_pings_are_answered_without_compression_and_with_it_offered(self):
        for options in ({"compression": None}, {"compression": "deflate"}):
            socket = await self.socket(**options)
            self.assertEqual(socket.wire.protocol.extensions, [])
            await socket.ping()
            self.assertEqual((await socket.ask(STATE))["type"], "state")

    async def test_a_goodbye_is_not_answered(self):
        socket = await self.socket()
        await socket.ask(STATE)
        await socket.send({"type": "close"})
        self.assertEqual(await socket.close_code(), 1000)

    async def test_what_is_no_object_ends_the_socket(self):
        for frame in ("[1, 2]", b"bytes"):
            with self.subTest(frame=frame):
                socket = await self.socket()
                await socket.wire.send(frame)
                self.check_socket_error(await socket.receive(), "SESSION_ERROR")
                self.assertEqual(await socket.close_code(), 1000)

    async def test_an_unknown_session_is_refused_after_the_handshake(self):
        socket = await self.socket(f"/ws?session_id={NOBODY}")
        self.check_socket_error(await socket.receive(), "SESSION_ERROR")
        self.assertEqual(await socket.close_code(), 1000)


class McpSocket(WireTest):
    async def test_json_rpc_on_a_socket_of_its_own(self):
        socket = await self.socket("/mcp")
        said = await socket.ask(rpc("tools/list", 1))
        self.assertEqual(said["id"], 1)
        self.check_listed(said["result"]["tools"])
        said = await socket.ask(rpc("tools/call", "x", **self.sample.params()))
        self.assertEqual(said["id"], "x")
        self.check_result(said["result"])
        torn = await socket.ask("no JSON")
        self.check_rpc_error(torn, PARSE_ERROR)
        self.assertIsNone(torn["id"])
        self.check_rpc_error(await socket.ask({}), INVALID_REQUEST)
        self.check_rpc_error(await socket.ask(rpc(NOBODY, 3)), NO_METHOD)
