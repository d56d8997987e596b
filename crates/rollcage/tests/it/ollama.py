#!/usr/bin/env python3
"""Stands in for `ollama serve`, in the shapes of Ollama's documented API.

Settings come as Ollama's do (OLLAMA_HOST, OLLAMA_CONTEXT_LENGTH); DOUBLE_DIR is where it writes `log` (one JSON object
per line: what it was started with and what it was asked) and where `models.json` lies between two starts. DOUBLE_MODE=dies
makes it fail.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOME = Path(os.environ["DOUBLE_DIR"])
LOCK = threading.Lock()
CONTEXT_LENGTHS = {"small": 2048}


def log(**entry):
    with LOCK, open(HOME / "log", "a") as out:
        out.write(json.dumps(entry) + "\n")


def models():
    path = HOME / "models.json"
    return json.loads(path.read_text()) if path.exists() else {}


def add_model(name, num_ctx=None):
    with LOCK:
        known = models()
        known[tagged(name)] = {"num_ctx": num_ctx}
        (HOME / "models.json").write_text(json.dumps(known))


def tagged(name):
    return name if ":" in name.rsplit("/", 1)[-1] else name + ":latest"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, lines, kind="application/x-ndjson", end="\n"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            if line is None:  # The connection breaks.
                self.close_connection = True
                self.wfile.flush()
                self.connection.close()
                return
            data = (line if isinstance(line, str) else json.dumps(line)).encode() + end.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self):
        if self.path == "/api/version":
            self.answer({"version": "0.12.11"})
        elif self.path == "/api/tags":
            details = {"format": "gguf", "family": "qwen3", "families": ["qwen3"], "parameter_size": "4.0B",
                       "parent_model": "", "quantization_level": "Q4_K_M"}
            self.answer({"models": [
                {"name": name, "model": name, "modified_at": "2026-01-02T03:04:05.678901+00:00", "size": 2620788019,
                 "digest": "0" * 64, "details": details} for name in models()]})
        elif self.path == "/v1/models":
            self.answer({"object": "list", "data": [
                {"id": name, "object": "model", "created": 1, "owned_by": "library"} for name in models()]})
        else:
            self.answer({"error": "no such route"}, 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path.startswith("/api/"):
            log(path=self.path, body=body)
        getattr(self, self.path.strip("/").replace("/", "_"), self.unknown)(body)

    def unknown(self, _body):
        self.answer({"error": "no such route"}, 404)

    def api_show(self, body):
        known = models().get(tagged(body["model"]))
        if known is None:
            return self.answer({"error": f"model '{body['model']}' not found"}, 404)
        length = CONTEXT_LENGTHS.get(body["model"], 40960)
        shown = {"modelfile": "", "template": "{{ .Prompt }}", "details": {"format": "gguf", "family": "qwen3"},
                 "model_info": {"general.architecture": "qwen3", "qwen3.context_length": length},
                 "capabilities": ["completion", "tools"], "modified_at": "2026-01-02T03:04:05.678901+00:00"}
        if known["num_ctx"]:
            shown["parameters"] = f'stop                           "<|im_end|>"\nnum_ctx                        {known["num_ctx"]}'
        self.answer(shown)

    def api_pull(self, body):
        name, layer = body["model"], "sha256:" + "6" * 64
        lines = [{"status": "pulling manifest"}]
        if name.startswith("none"):
            return self.stream(lines + [{"error": "pull model manifest: file does not exist"}])
        lines += [{"status": "pulling 666666666666", "digest": layer, "total": 2000},
                  {"status": "pulling 666666666666", "digest": layer, "total": 2000, "completed": 1000}]
        mark = HOME / "cut"
        if name.startswith("cut") and not mark.exists():
            mark.touch()
            return self.stream(lines + [None])
        add_model(name)
        self.stream(lines + [{"status": "verifying sha256 digest"}, {"status": "writing manifest"}, {"status": "success"}])

    def api_create(self, body):
        if tagged(body["from"]) not in models():
            return self.answer({"error": f"model '{body['from']}' not found"}, 404)
        add_model(body["model"], body["parameters"]["num_ctx"])
        self.stream([{"status": "using existing layer sha256:" + "6" * 64}, {"status": "writing manifest"},
                     {"status": "success"}])

    def api_generate(self, body):
        if body["model"].startswith("huge"):
            return self.answer({"error": "model requires more system memory (90 GiB) than is available (8 GiB)"}, 500)
        self.answer({"model": body["model"], "created_at": "2026-01-02T03:04:05Z", "response": "", "done": True,
                     "done_reason": "load"})

    def v1_chat_completions(self, body):
        model = body["model"]
        if tagged(model) not in models():
            return self.answer({"error": {"message": f"model '{model}' not found", "type": "api_error"}}, 404)
        while model.startswith("hangs"):
            time.sleep(60)
        base = {"id": "chatcmpl-1", "created": 1, "model": model, "system_fingerprint": "fp_ollama"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
            return self.answer({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        base["object"] = "chat.completion.chunk"
        chunks = [{**base, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "ok"}, "finish_reason": None}]},
                  {**base, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]},
                  {**base, "choices": [], "usage": usage}]
        self.stream(["data: " + json.dumps(chunk) for chunk in chunks] + ["data: [DONE]"], "text/event-stream", "\n\n")


def main():
    assert sys.argv[1:] == ["serve"], sys.argv
    names = ["OLLAMA_HOST", "OLLAMA_CONTEXT_LENGTH", "OLLAMA_KEEP_ALIVE", "CUDA_VISIBLE_DEVICES"]
    log(started=os.getpid(), env={name: os.environ.get(name) for name in names})
    if os.environ.get("DOUBLE_MODE") == "dies":
        print("Error: could not find a graphics card that works", file=sys.stderr)
        sys.exit(1)
    host, _, port = os.environ.get("OLLAMA_HOST", "127.0.0.1:11434").rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Handler)
    server.daemon_threads = True
    log(listening=server.server_address[1])
    server.serve_forever()


main()
