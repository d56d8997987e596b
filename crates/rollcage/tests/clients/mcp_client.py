"""Standard MCP clients (fastmcp, and the SDK below it) against `/mcp`: python mcp_client.py URL

Needs fastmcp, which `pip install openenv==0.10.0` brings. The server is the one of the test `official_clients`.
"""
import asyncio
import sys

from fastmcp import Client
from fastmcp.exceptions import ToolError
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

URL = sys.argv[1].rstrip("/") + "/mcp"


async def with_fastmcp():
    told = []

    async def progress(done, total, message):
        told.append((done, message))

    async with Client(URL) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert "echo" in names, names
        assert (await client.call_tool("echo", {"message": "é☃"})).data == "é☃"
        assert (await client.call_tool("steps", {}, progress_handler=progress)).data == "done"
        assert told == [(1.0, "step 1"), (2.0, "step 2"), (3.0, "step 3")], told
        # Longer than the grace, so the answer is a stream of events.
        assert (await client.call_tool("slow", {"seconds": 6})).data == "slept"
        for name, arguments in (("fail", {}), ("echo", {}), ("nope", {})):
            try:
                await client.call_tool(name, arguments)
            except ToolError:
                continue
            except Exception as error:  # an unknown tool is an error of the protocol
                assert name == "nope", error
                continue
            raise AssertionError(f"{name} must fail")
        many = await asyncio.gather(*(client.call_tool("echo", {"message": str(n)}) for n in range(50)))
        assert [one.data for one in many] == [str(n) for n in range(50)]
        assert await client.ping()


async def with_sdk():
    async with streamablehttp_client(URL) as (read, write, _):
        async with ClientSession(read, write) as session:
            greeting = await session.initialize()
            assert greeting.serverInfo.name == "rollcage", greeting
            failed = await session.call_tool("fail", {})
            assert failed.isError and "kaput" in failed.content[0].text, failed
            answer = await session.call_tool("echo", {"message": "hi"})
            assert answer.structuredContent == {"result": "hi"}, answer


asyncio.run(with_fastmcp())
asyncio.run(with_sdk())
print("2 passed, 0 failed")
