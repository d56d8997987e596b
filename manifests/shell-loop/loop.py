"""A small agent: one tool, a shell, until the model stops calling it."""

import http.client
import json
import os
import subprocess
import sys
import urllib.error
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
    for is_last in (False, False, True):
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)["choices"][0]["message"]
        except urllib.error.HTTPError:
            raise  # the proxy has tried again what may pass
        except (OSError, ValueError, http.client.HTTPException):
            if is_last:
                raise


def run(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    return f"{done.stdout}{done.stderr}[exit {done.returncode}]"


def use(call):
    """What a call gives; the model is told what is wrong with one that cannot be made."""
    name = call["function"]["name"]
    if name != "shell":
        return f"There is no tool {name}: use shell."
    try:
        command = json.loads(call["function"]["arguments"])["command"]
    except (ValueError, KeyError, TypeError) as error:
        return f"The arguments are wrong: {error}"
    return run(command)


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
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": use(call)})


main()
