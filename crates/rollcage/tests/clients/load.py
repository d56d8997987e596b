"""A crowd before a running `rollcage serve`: idle sessions, rollouts at once, and whether /health notices.

    python load.py http://127.0.0.1:8000 PID [SESSIONS [ROLLOUTS]]

Needs `pip install openenv==0.10.0` (for httpx and websockets). Start the server with --max-sessions above SESSIONS and
--jobs ROLLOUTS. PID is the server's, whose memory is read. Prints what it measured; exits with 1 when a rollout was lost.
"""

import asyncio
import json
import sys
import time

import httpx
import websockets

URL = sys.argv[1].rstrip("/")
PID = int(sys.argv[2])
SESSIONS = int(sys.argv[3]) if len(sys.argv) > 3 else 500
ROLLOUTS = int(sys.argv[4]) if len(sys.argv) > 4 else 64
ORDER = {"agent": "nop", "instruction": "wait", "setup": ["sleep 1", "true"], "verify": ["true"], "n": ROLLOUTS}


def resident_kib() -> int:
    with open(f"/proc/{PID}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


async def watch_health(times: list[float], done: asyncio.Event) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        while not done.is_set():
            since = time.perf_counter()
            answer = await client.get(f"{URL}/health")
            times.append(time.perf_counter() - since)
            assert answer.json() == {"status": "healthy"}
            await asyncio.sleep(0.02)


async def main() -> None:
    before = resident_kib()
    sockets = [await websockets.connect(URL.replace("http", "ws", 1) + "/ws", proxy=None) for _ in range(SESSIONS)]
    for socket in sockets:
        await socket.send('{"type": "state"}')
        assert json.loads(await socket.recv())["type"] == "state"
    each = (resident_kib() - before) / SESSIONS
    times: list[float] = []
    done = asyncio.Event()
    watching = asyncio.create_task(watch_health(times, done))
    async with httpx.AsyncClient(timeout=300) as client:
        since = time.perf_counter()
        started = (await client.post(f"{URL}/v1/rollouts", json=ORDER)).json()
        ids = started["rollout_ids"]
        ended: dict[str, int] = {}
        for rollout in ids:
            while True:
                result = (await client.get(f"{URL}/v1/rollouts/{rollout}")).json()
                if result.get("ended"):
                    break
                await asyncio.sleep(0.1)
            ended[result["ended"]] = ended.get(result["ended"], 0) + 1
        wall = time.perf_counter() - since
    done.set()
    await watching
    times.sort()
    for socket in sockets:
        await socket.close()
    print(f"{SESSIONS} idle sessions: {each:.1f} KiB each")
    print(f"{ROLLOUTS} rollouts at once: {ended} in {wall:.1f} s")
    quantile = lambda share: times[min(int(len(times) * share), len(times) - 1)] * 1000
    print(f"/health {len(times)} times: p50 {quantile(0.5):.1f} ms, p99 {quantile(0.99):.1f} ms, most {quantile(1):.1f} ms")
    sys.exit(0 if ended == {"completed": ROLLOUTS} else 1)


asyncio.run(main())
