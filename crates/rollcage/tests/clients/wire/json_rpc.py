"""JSON-RPC at `POST /mcp`: requests in every shape, tools, and sessions."""

import json

from server import NOBODY, WireTest

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602


class Requests(WireTest):
    async def test_what_is_no_request_is_answered_by_its_code(self):
        request = {"jsonrpc": "2.0", "method": "tools/list", "id": 1}
        for body, code in (
            (b"", PARSE_ERROR),
            (b"{torn", PARSE_ERROR),
            (b"[1]", PARSE_ERROR),
            (b"{}", INVALID_REQUEST),
            (json.dumps(request | {"jsonrpc": "1.0"}).encode(), INVALID_REQUEST),
            (json.dumps(request | {"params": [1]}).encode(), INVALID_REQUEST),
            (json.dumps(request | {"more": 1}).encode(), INVALID_REQUEST),
        ):
            with self.subTest(body=body):
                said = await self.post_rpc(body)
                self.check_rpc_error(said, code)
                self.assertIsNone(said["id"])

    async def test_an_unknown_method_is_told_with_the_requests_id(self):
        for request_id in ("a text", 7):
            self.check_rpc_error(await self.rpc(NOBODY, request_id=request_id), NO_METHOD)

    async def test_other_verbs_are_not_allowed(self):
        for verb in ("PUT", "PATCH"):
            self.assertEqual((await self.http.request(verb, "/mcp")).status_code, 405)


class ToolCalls(WireTest):
    async def test_tools_are_listed_as_clients_need_them(self):
        tools = (await self.rpc("tools/list"))["result"]["tools"]
        self.check_listed(tools)
        for tool in tools:
            # With a null here the client's list_tools() is empty, and says nothing.
            self.assertIs(type(tool["description"]), str, tool["name"])
            self.assertIs(type(tool["inputSchema"]), dict, tool["name"])
            self.assertNotIn(tool["name"], ("reset", "step", "state", "close"))

    async def test_a_call_without_a_session_is_answered(self):
        self.check_result((await self.rpc("tools/call", **self.sample.params()))["result"])

    async def test_a_call_that_fails_is_an_error(self):
        self.check_rpc_error(await self.rpc("tools/call"), INVALID_PARAMS)
        self.assertIn("error", await self.rpc("tools/call", name=NOBODY, arguments={}))
        arguments = self.sample.arguments | {NOBODY: 1}
        self.assertIn("error", await self.rpc("tools/call", name=self.sample.tool, arguments=arguments))


class Sessions(WireTest):
    async def test_a_session_lives_until_it_is_closed(self):
        session = await self.create_session()
        self.assertTrue(session)
        called = await self.rpc("tools/call", **self.sample.params(session_id=session))
        self.check_result(called["result"])
        closed = await self.rpc("openenv/session/close", session_id=session)
        self.assertEqual(closed["result"], {"session_id": session, "closed": True})
        self.check_rpc_error(await self.rpc("openenv/session/close", session_id=session), INVALID_PARAMS)
        self.check_rpc_error(await self.rpc("openenv/session/close"), INVALID_PARAMS)

    async def test_an_unknown_session_has_no_tools(self):
        for method, params in (("tools/list", {}), ("tools/call", self.sample.params()), ("openenv/session/close", {})):
            with self.subTest(method=method):
                self.check_rpc_error(await self.rpc(method, session_id=NOBODY, **params), INVALID_PARAMS)
