"""Tool calls per second of a running `rollcage serve` next to OpenEnv's own server, one after the other, same load.

    python calls.py http://127.0.0.1:8000 [SECONDS]

Needs `pip install openenv==0.10.0`. Each side answers a short text: `get_state` of nobody's rollout here, an echo there.
"""

import asyncio
import json
import subprocess
import sys
import time
from urllib.parse import urlsplit

STOCK = """
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State
import uvicorn
class Echo(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def __init__(self):
        server = FastMCP("echo")
        @server.tool
        def echo(message: str) -> str:
            "Echo."
            return message
        super().__init__(server)
    def reset(self, **_): return Observation()
    def _step_impl(self, action, **_): return Observation()
    @property
    def state(self): return State()
app = create_app(Echo, CallToolAction, CallToolObservation, env_name="echo", max_concurrent_envs=8)
uvicorn.run(app, host="127.0.0.1", port=@PORT@, log_level="error")
"""
CONNECTIONS = 8


async def ask(reader, writer, host: str, body: dict) -> dict:
    data = json.dumps(body).encode()
    writer.write(f"POST /mcp HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    head = await reader.readuntil(b"\r\n\r\n")
    line = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return json.loads(await reader.readexactly(int(line.split(b":")[1])))


async def rate(url: str, tool: str, arguments: dict, seconds: float) -> float:
    place = urlsplit(url)
    wires = [await asyncio.open_connection(place.hostname, place.port) for _ in range(CONNECTIONS)]
    create = {"jsonrpc": "2.0", "method": "openenv/session/create", "params": {}, "id": 1}
    session = (await ask(*wires[0], place.netloc, create))["result"]["session_id"]
    params = {"name": tool, "arguments": arguments, "session_id": session}
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": params, "id": 2}
    since, counts = time.perf_counter(), [0] * CONNECTIONS

    async def loop(at: int) -> None:
        while time.perf_counter() - since < seconds:
            answer = await ask(*wires[at], place.netloc, call)
            assert "result" in answer, answer
            counts[at] += 1

    await asyncio.gather(*(loop(at) for at in range(CONNECTIONS)))
    return sum(counts) / (time.perf_counter() - since)


async def main() -> None:
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 5
    port = 18_431
    stock = subprocess.Popen([sys.executable, "-c", STOCK.replace("@PORT@", str(port))])
    try:
        for _ in range(150):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.2)
        theirs = await rate(f"http://127.0.0.1:{port}", "echo", {"message": "hi"}, seconds)
    finally:
        stock.kill()
        stock.wait()
    ours = await rate(sys.argv[1], "get_state", {"rollout_id": "nobody"}, seconds)
    print(f"tool calls/s over {CONNECTIONS} connections: {ours:.0f} here, {theirs:.0f} there: {ours / theirs:.0f} x")


asyncio.run(main())
