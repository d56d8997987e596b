# A server in the place of an agent's own, which breaks its client in the way that its argument says.
import http.server, json, sys, time

mode, port = sys.argv[1], int(sys.argv[2])
SESSION = {"path": "../../global", "long": "x" * 1000000}.get(mode, "ses_1")


def event(kind, **properties):
    properties.setdefault("sessionID", SESSION)
    return b"data: " + json.dumps({"type": kind, "properties": properties}).encode() + b"\n\n"


def flood():
    user = {"id": "u1", "messageID": "u", "type": "text", "text": "attack"}
    part = {"id": "p", "messageID": "a", "type": "text", "text": ""}
    yield event("message.updated", info={"id": "u", "role": "user"})
    yield event("message.part.updated", part=user)
    yield event("message.updated", info={"id": "a", "role": "assistant", "parentID": "u"})
    yield event("message.part.updated", part=part)
    number = 0
    while True:
        number += 1
        yield b"".join(
            event("message.part.delta", messageID="a", partID="p", field="text", delta="x" * 40000)
            + event("permission.asked", id=f"per_{number}_{index}", permission="bash", patterns=["p" * 5000])
            + event("session.created", info={"id": f"ses_{number}_{index}", "parentID": SESSION})
            for index in range(10)
        )


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def begin(self, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def say(self, value):
        self.begin()
        self.wfile.write(json.dumps(value).encode())

    def pour(self, pieces, pause=0):
        self.begin()
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()
            time.sleep(pause)

    def endless(self, piece):
        while True:
            yield piece

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/global/health":
            return self.say({"healthy": True, "version": "v" * 100000})
        if path == "/global/event":
            return self.pour(self.endless(event("server.heartbeat")), 1)
        if path == "/event":
            self.begin()
            self.wfile.write(event("server.connected"))
            self.wfile.flush()
            if mode == "line":
                self.wfile.write(b"data: ")
                for piece in self.endless(b"x" * 65536):
                    self.wfile.write(piece)
            for piece in flood() if mode == "flood" else self.endless(b": nothing\n\n"):
                self.wfile.write(piece)
                time.sleep(0 if mode == "flood" else 1)
        if path.endswith("/message") and mode == "transcript":
            return self.pour(self.endless(b"[" + b"x" * 65536))
        if path.endswith("/message"):
            return self.say([])
        self.say({"id": SESSION, "directory": "/home/user/workdir"} if path.startswith("/session/") else [])

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path.endswith("/message"):
            if mode == "redirect":
                return self.begin(307, location="http://127.0.0.1:7000/v1/models")
            if mode == "values":
                return self.pour([b"[" + b'{"":0},' * 5000000 + b"0]"])
            if mode == "body":
                return self.pour(self.endless(b"x" * 65536))
            return self.pour(self.endless(b" "), 1)
        if self.path.split("?")[0] == "/session":
            return self.say({"id": SESSION})
        self.say(True)


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
