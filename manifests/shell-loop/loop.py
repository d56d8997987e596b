"""A small agent: one tool, a shell, until the model stops calling it."""

import json
import os
import subprocess
import sys
import urllib.request

SHELL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a shell command and see its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def ask(settings, messages):
    body = {"model": settings["model"], "max_tokens": settings["max_tokens"], "messages": messages, "tools": [SHELL]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]["message"]


def run(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    return f"{done.stdout}{done.stderr}[exit {done.returncode}]"


def main():
    with open(os.path.expanduser("~/.config/shell-loop.json")) as file:
        settings = json.load(file)
    messages = [{"role": "user", "content": sys.stdin.read()}]
    if os.environ.get("SYSTEM_PROMPT"):
        messages.insert(0, {"role": "system", "content": os.environ["SYSTEM_PROMPT"]})
    while True:
        message = ask(settings, messages)
        messages.append({key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)})
        if message.get("content"):
            print(message["content"], flush=True)
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            output = run(json.loads(call["function"]["arguments"])["command"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


main()
