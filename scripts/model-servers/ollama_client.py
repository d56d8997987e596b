"""Drives the test double of Ollama with Ollama's own client: each answer has to have the shape that the client reads."""

import sys
import time

import ollama

client = ollama.Client(host=sys.argv[1])
for _ in range(300):
    try:
        assert client.list().models == []
        break
    except ConnectionError:
        time.sleep(0.1)

steps = list(client.pull("tiny", stream=True))
assert [step.status for step in steps][-1] == "success"
assert any(step.total == 2000 and step.completed == 1000 for step in steps)
[model] = client.list().models
assert model.model == "tiny:latest" and model.size and model.details.family, model
shown = client.show("tiny")
assert shown.modelinfo["qwen3.context_length"] == 40960 and shown.parameters is None
made = client.create("rollcage/tiny:latest-ctx8", from_="tiny", parameters={"num_ctx": 8}, stream=True)
assert [step.status for step in made][-1] == "success"
assert "num_ctx" in client.show("rollcage/tiny:latest-ctx8").parameters
assert client.generate("tiny", keep_alive="30m").done_reason == "load"
try:
    list(client.pull("none", stream=True))
    raise SystemExit("an error inside of a stream was missed")
except ollama.ResponseError as error:
    assert "file does not exist" in str(error)
print("every answer has its shape")
