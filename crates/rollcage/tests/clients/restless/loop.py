"""A shell in a loop until the model stops calling it. Every request tells the model another time."""

import json
import os
import subprocess
import sys
import urllib.request

SHELL = {"type": "function", "function": {"name": "shell", "description": "Run a command.", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}

messages = [{"role": "system"}, {"role": "user", "content": sys.stdin.read()}]
for number in range(10**6):
    messages[0]["content"] = f"It is {number} o'clock. " + "Be careful. " * 100
    body = json.dumps({"model": "m", "messages": messages, "tools": [SHELL]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, HEADERS)
    with urllib.request.urlopen(request, timeout=600) as answer:
        message = json.load(answer)["choices"][0]["message"]
    messages.append({key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)})
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
