"""Sessions that HTTP and a WebSocket share, calls that take long, and as many sessions as a server has."""

import asyncio

from openenv.core import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient

from json_rpc import INVALID_PARAMS, INVALID_REQUEST
from server import WireTest, new_episode
from sockets import STATE, mcp, reset, step

SERVER_ERROR = -32000


class Attached(WireTest):
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.session = await self.create_session()
        self.addAsyncCleanup(self.close_session)
        self.path = f"/ws?session_id={self.session}"

    async def close_session(self) -> dict:
        return await self.rpc("openenv/session/close", session_id=self.session)

    async def test_http_and_socket_are_one_session(self):
        socket, episode = await self.socket(self.path), new_episode()
        self.check_sent_observation(await socket.ask(reset(episode_id=episode)))
        called = await self.rpc("tools/call", **self.sample.params(session_id=self.session))
        self.check_result(called["result"])
        created = await socket.ask(mcp("openenv/session/create", 5))
        self.assertEqual(created["data"]["result"]["session_id"], self.session)
        refused = await socket.ask(mcp("openenv/session/close", 6, session_id=self.session))
        self.check_rpc_error(refused["data"], INVALID_REQUEST)

    async def test_a_session_has_one_socket_at_a_time(self):
        first = await self.socket(self.path)
        await first.ask(STATE)
        second = await self.socket(self.path)
        self.check_socket_error(await second.receive(), "SESSION_ERROR")
        self.assertEqual(await second.close_code(), 1000)
        self.assertEqual((await first.ask(STATE))["type"], "state")

    async def test_a_session_outlives_its_socket(self):
        episode = new_episode()
        socket = await self.socket(self.path)
        await socket.ask(reset(episode_id=episode))
        await socket.wire.close()

        async def attach() -> dict:
            socket = await self.socket(self.path)
            said = await socket.ask(STATE)
            await socket.wire.close()
            return said

        said = await self.eventually(attach, lambda said: said["type"] == "state")
        self.assertEqual(said["data"]["episode_id"], episode)

    async def test_a_session_that_is_closed_under_its_socket_ends_with_it(self):
        socket = await self.socket(self.path)
        await socket.ask(STATE)
        closing = await self.close_session()
        self.assertEqual(closing["result"], {"session_id": self.session, "closed": False, "closing": True})
        self.assertEqual((await socket.ask(STATE))["type"], "state")
        await socket.wire.close()
        gone = await self.eventually(lambda: self.rpc("tools/list", session_id=self.session), lambda said: "error" in said)
        self.check_rpc_error(gone, INVALID_PARAMS)


class WhileACallRuns(WireTest):
    """Nothing here looks at a clock: a call of some seconds must still run when the rest has been answered."""

    async def test_the_socket_and_the_server_stay_awake(self):
        socket = await self.socket()
        await socket.send(step(self.sample.slow_call()))
        answer = asyncio.create_task(socket.receive())
        await socket.ping()
        self.assertEqual((await self.http.get("/health")).status_code, 200)
        self.assertFalse(answer.done(), "the pong came after the step")
        self.assertIsNone(self.check_sent_observation(await answer)["error"])

    async def test_calls_of_a_session_do_not_wait_for_each_other(self):
        session = await self.create_session()
        slow = asyncio.create_task(self.rpc("tools/call", **self.sample.slow_params(session_id=session)))
        await asyncio.sleep(0.2)
        self.check_listed((await self.rpc("tools/list", session_id=session))["result"]["tools"])
        self.assertFalse(slow.done(), "the list came after the call")
        self.assertIn("result", await slow)
        await self.rpc("openenv/session/close", session_id=session)

    async def test_a_client_that_gave_up_waiting_can_go_on(self):
        async with GenericEnvClient(base_url=self.server.url, message_timeout_s=1) as env:
            with self.assertRaises(TimeoutError):
                await env.step(self.sample.slow_call())
            self.assertIn("episode_id", await env.state())


class Limits(WireTest):
    async def test_a_full_server_refuses_sessions_and_nothing_else(self):
        most = self.server.sessions_max
        await self.fill_and_empty(most)
        sockets = [await self.socket() for _ in range(most)]
        for socket in sockets:
            self.assertEqual((await socket.ask(STATE))["type"], "state")
        full = {"active_sessions": most, "max_sessions": most}
        refused = await self.socket()
        told = self.check_socket_error(await refused.receive(), "CAPACITY_REACHED")
        self.assertLessEqual(full.items(), told.items())
        self.assertEqual(await refused.close_code(), 1000)
        refused = await self.socket("/mcp")
        told = await refused.receive()
        self.check_rpc_error(told, SERVER_ERROR)
        self.assertEqual(told["error"]["data"], full)
        self.assertEqual(await refused.close_code(), 1000)
        told = await self.rpc("openenv/session/create")
        self.check_rpc_error(told, SERVER_ERROR)
        self.assertEqual(told["error"]["data"], full)
        for client in (GenericEnvClient, MCPToolClient):
            with self.assertRaisesRegex(RuntimeError, "(?i)capacity"):
                async with client(base_url=self.server.url) as env:
                    await env.reset()
        # Calls without a session are none of the limit's business.
        self.check_result((await self.rpc("tools/call", **self.sample.params()))["result"])
        self.assertEqual((await self.http.get("/health")).status_code, 200)
        for socket in sockets:
            await socket.wire.close()
        await self.fill_and_empty(most)

    async def fill_and_empty(self, count: int) -> None:
        """Takes this many sessions at once and lets go of them; those of sockets that went may take a moment."""

        async def fill() -> int:
            created = [await self.rpc("openenv/session/create") for _ in range(count)]
            sessions = [said["result"]["session_id"] for said in created if "result" in said]
            for session in sessions:
                await self.rpc("openenv/session/close", session_id=session)
            return len(sessions)

        await self.eventually(fill, lambda got: got == count)
