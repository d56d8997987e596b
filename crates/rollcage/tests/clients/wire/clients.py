"""OpenEnv's own Python clients, and a standard client of MCP, as their users call them."""

import asyncio

from fastmcp import Client
from fastmcp.exceptions import ToolError
from mcp import McpError
from openenv.core import GenericEnvClient
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
)
from openenv.core.mcp_client import MCPToolClient

from json_rpc import INVALID_PARAMS
from server import DEADLINE_S, NOBODY, WireTest


class Generic(WireTest):
    async def test_an_episode(self):
        async with GenericEnvClient(base_url=self.server.url) as env:
            begun = await env.reset(seed=1, episode_id="generic")
            self.assertIsInstance(begun.observation, dict)
            self.assertIs(begun.done, False)
            self.check_call((await env.step(self.sample.call())).observation)
            with self.assertRaisesRegex(RuntimeError, "VALIDATION_ERROR"):
                await env.step({"no": "action"})
            self.assertEqual((await env.state())["episode_id"], "generic")

    async def test_an_episode_from_a_thread(self):
        def play() -> None:
            with GenericEnvClient(base_url=self.server.url).sync() as env:
                env.reset(episode_id="thread")
                self.check_call(env.step(self.sample.call()).observation)
                self.assertEqual(env.state()["episode_id"], "thread")

        await asyncio.to_thread(play)

    async def test_two_episodes_of_one_client_at_once(self):
        async with GenericEnvClient(base_url=self.server.url) as env:
            other = await env.new_session()
            await asyncio.gather(env.reset(episode_id="one"), other.reset(episode_id="other"))
            states = await asyncio.gather(env.state(), other.state())
            self.assertEqual([state["episode_id"] for state in states], ["one", "other"])
            await other.close()


class Tools(WireTest):
    async def test_tools_are_found_and_called(self):
        async with MCPToolClient(base_url=self.server.url) as env:
            self.assertIs((await env.reset(episode_id="tools")).done, False)
            self.assertIn(self.sample.tool, [tool.name for tool in await env.list_tools()])
            self.assertTrue(await env.has_tool(self.sample.tool))
            self.assertFalse(await env.has_tool(NOBODY))
            self.assertEqual(await env.call_tool(self.sample.tool, **self.sample.arguments), self.sample.answer)
            for name, more in ((NOBODY, {}), (self.sample.tool, {NOBODY: 1})):
                with self.assertRaisesRegex(RuntimeError, f"Tool '{name}' failed"):
                    await env.call_tool(name, **self.sample.arguments, **more)
            state = await env.state()
            self.assertEqual(state.episode_id, "tools")
            self.assertGreaterEqual(state.step_count, 0)

    async def test_steps_are_read_into_openenvs_models(self):
        async with MCPToolClient(base_url=self.server.url) as env:
            action = CallToolAction(tool_name=self.sample.tool, arguments=self.sample.arguments)
            called = (await env.step(action)).observation
            self.assertIs(type(called), CallToolObservation)
            self.assertIsNone(called.error)
            # Here environments that wrap a rollout look for its text.
            self.check_result(called.result)
            self.assertIs(type((await env.step(ListToolsAction())).observation), ListToolsObservation)

    async def test_tools_from_a_thread(self):
        def play() -> None:
            with MCPToolClient(base_url=self.server.url).sync() as env:
                env.reset(episode_id="thread")
                self.assertIsNotNone(env.get_tool(self.sample.tool))
                self.assertEqual(env.call_tool(self.sample.tool, **self.sample.arguments), self.sample.answer)
                self.assertEqual(env.state().episode_id, "thread")

        await asyncio.to_thread(play)

    async def test_tools_by_way_of_steps_as_older_clients_call_them(self):
        env = MCPToolClient(base_url=self.server.url)
        env.use_production_mode = False
        async with env:
            await env.reset()
            self.assertIn(self.sample.tool, [tool.name for tool in await env.list_tools()])
            self.assertEqual(await env.call_tool(self.sample.tool, **self.sample.arguments), self.sample.answer)
            with self.assertRaisesRegex(RuntimeError, "tool_not_found"):
                await env.call_tool(NOBODY)

    async def test_a_client_that_closes_leaves_no_session(self):
        async with MCPToolClient(base_url=self.server.url) as env:
            await env.reset()
            session = env._production_session_id
        self.check_rpc_error(await self.rpc("tools/list", session_id=session), INVALID_PARAMS)


class StandardMcp(WireTest):
    async def test_fastmcp_lists_and_calls_tools(self):
        async with Client(f"{self.server.url}/mcp", timeout=DEADLINE_S) as client:
            self.assertIn(self.sample.tool, [tool.name for tool in await client.list_tools()])
            called = await client.call_tool(self.sample.tool, self.sample.arguments)
            self.assertEqual((called.data, called.is_error), (self.sample.answer, False))
            with self.assertRaises((ToolError, McpError)):
                await client.call_tool(NOBODY, {})
