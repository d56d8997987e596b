"""An MCP server written out by hand: `stdio`, or `http LOG` on a free port of the loopback, which it prints.

Over HTTP it wants $TOKEN, and every request is a line of JSON in LOG: method, path and headers.
"""

import http.server
import json
import os
import sys
import threading

SEEN = threading.Event()
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


def tools(kind):
    if kind == "stdio":
        name, about = "forecast", "The weather of a city."
    else:
        name, about = "look-up", "Looks a word up."
    schema = {"type": "object", "properties": {"about": {"type": "string"}}, "required": ["about"]}
    return [{"name": name, "description": about, "inputSchema": schema}]


def call(kind, arguments):
    about = arguments["about"]
    if kind == "stdio":
        return f"weather of {about} in {os.environ.get('UNITS')} at {os.getcwd()} said {' '.join(sys.argv[2:])}"
    return f"entry on {about}"


def answer(kind, message):
    """The result of a request; None for a notification."""
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        return None
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        wanted = params.get("protocolVersion")
        reply["result"] = {
            "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "by-hand", "version": "1"},
        }
    elif method == "ping":
        reply["result"] = {}
    elif method == "tools/list":
        reply["result"] = {"tools": tools(kind)}
    elif method == "tools/call":
        text = call(kind, params.get("arguments") or {})
        reply["result"] = {"content": [{"type": "text", "text": text}], "isError": False}
    else:
        reply["error"] = {"code": -32601, "message": f"no method {method}"}
    return reply


def serve_stdio():
    for line in sys.stdin:
        if line.strip():
            reply = answer("stdio", json.loads(line))
            if reply:
                print(json.dumps(reply), flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def note(self):
        with open(sys.argv[2], "a") as log:
            headers = {name.lower(): value for name, value in self.headers.items()}
            log.write(json.dumps([self.command, self.path, headers]) + "\n")

    def reply(self, status, body=b"", kind="application/json", more=()):
        self.send_response(status)
        if body:
            self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.note()
        if self.path == "/moved":
            return self.reply(307, more=[("location", "/mcp")])
        if self.path != "/events":
            return self.reply(405)
        # The second event waits for the one who has seen the first.
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("mcp-session-id", "s1")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b"id: 0\ndata: first\n\n")
        self.wfile.flush()
        word = b"second" if SEEN.wait(20) else b"nobody saw the first"
        self.wfile.write(b"id: 1\ndata: " + word + b"\n\n")
        self.close_connection = True

    def do_DELETE(self):
        self.note()
        SEEN.set()
        self.reply(200)

    def do_POST(self):
        self.note()
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("authorization") != "Bearer " + os.environ["TOKEN"]:
            echo = f"wrong credentials: {self.headers.get('authorization')}"
            return self.reply(401, echo.encode(), "text/plain", [("www-authenticate", "Bearer")])
        if self.path == "/refuse":
            echo = f"not with {self.headers.get('authorization')}"
            return self.reply(403, echo.encode(), "text/plain")
        message = json.loads(body)
        if message.get("method") != "initialize" and self.headers.get("mcp-session-id") != "s1":
            return self.reply(400, b'{"error": "no session"}')
        reply = answer("http", message)
        if reply is None:
            return self.reply(202)
        text = json.dumps(reply)
        session = [("mcp-session-id", "s1")]
        if message["method"] == "tools/call":
            return self.reply(200, f"event: message\ndata: {text}\n\n".encode(), "text/event-stream", session)
        self.reply(200, text.encode(), more=session)

    def log_message(self, *_):
        pass


def serve_http():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if sys.argv[1] == "stdio":
    serve_stdio()
else:
    serve_http()
