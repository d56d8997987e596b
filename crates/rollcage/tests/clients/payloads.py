"""What `rollcage export` writes, read by the code of OpenEnv that trainers read it with.

    python payloads.py ROLLCAGE TASK.toml…

Runs each task, exports its rollout as training-trace, trace-entries and capture, and checks every document by itself and
against the others. One more rollout has a model that gives neither tokens nor logprobs, which is for evaluation only.
Needs `pip install openenv==0.10.0`. Exits with 0 when everything held.
"""

import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import types

from openenv.core.harness.capture.validate import check_sequence
from openenv.core.harness.training import TrainingTrace
from openenv.harbor.models import turns_from_document

RUN_LIMIT_S = 600
# Every key that OpenEnv's capture proxy gives, and every key of one of its trace entries.
CAPTURE_KEYS = {
    "session_id", "metadata", "budget_stop_count", "turns", "stats", "sequences", "validation", "trainable",
    "capture_level", "rollout_type",
}
ENTRY_KEYS = {
    "request", "response", "prompt_token_ids", "completion_token_ids", "completion_tokens", "per_token_logps", "loss_mask",
    "reward", "metadata",
}
EVALUATION = """
id = "evaluation"
instruction = "Say that you are done."
verify = ["true"]
"""


class Program:
    def __init__(self, path: str):
        self.path = path

    def run(self, task: str, *options: str) -> dict:
        command = [self.path, "run", task, "--json", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=RUN_LIMIT_S, check=True)
        return json.loads(done.stdout)

    def export(self, rollout_id: str, form: str) -> subprocess.CompletedProcess:
        command = [self.path, "export", rollout_id, "--format", form]
        return subprocess.run(command, capture_output=True, timeout=RUN_LIMIT_S)

    def exported(self, rollout_id: str, form: str) -> object:
        done = self.export(rollout_id, form)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


def check_result(result: dict) -> None:
    """The result itself: numbers that are numbers, and a reward wherever something was verified."""
    assert result["mode"] in ("transparent_proxy", "black_box"), result["mode"]
    assert result["error"] is None, result["error"]
    assert result["reward"] is None or 0 <= result["reward"] <= 1, result["reward"]
    assert result["reward"] is not None or not result["verify_results"], "verified, but without a reward"


def check_training_trace(document: dict, result: dict) -> TrainingTrace:
    trace = TrainingTrace.model_validate_json(json.dumps(document))
    assert len(trace.turns) == result["usage"]["trainable_turns"], (len(trace.turns), result["usage"])
    assert sum(sum(turn.loss_mask) for turn in trace.turns) > 0, "nothing is trained"
    again = TrainingTrace.from_entries(trace.to_trace_entries())
    for turn, copy in zip(trace.turns, again.turns, strict=True):
        assert turn.model_dump(exclude={"metadata"}) == copy.model_dump(exclude={"metadata"}), turn.node_id
    return trace


def continuations(trace: TrainingTrace) -> int:
    """How many turns go on exactly where the one before them ended, so that a trainer makes one row of both."""
    count = 0
    for before, after in zip(trace.turns, trace.turns[1:]):
        held = before.prompt_token_ids + before.completion_token_ids
        count += after.prompt_token_ids[: len(held)] == held
    return count


def check_trace_entries(document: dict, trace: TrainingTrace) -> None:
    entries = document["entries"]
    for at, entry in enumerate(entries):
        assert entry.keys() <= ENTRY_KEYS, f"entry {at} has more: {entry.keys() - ENTRY_KEYS}"
    for turn, entry in zip(trace.turns, TrainingTrace.from_entries(entries).turns, strict=True):
        assert turn.model_dump(exclude={"metadata"}) == entry.model_dump(exclude={"metadata"}), turn.node_id


def check_capture(document: dict) -> None:
    assert CAPTURE_KEYS <= document.keys(), f"missing: {CAPTURE_KEYS - document.keys()}"
    assert document["rollout_type"] in ("train", "eval"), document["rollout_type"]
    assert document["capture_level"] in ("tokens", "logprobs", "text"), document["capture_level"]
    turns, sequences, stats = document["turns"], document["sequences"], document["stats"]
    assert [turn["index"] for turn in turns] == list(range(len(turns))), "not in the order of the calls"
    assert (stats["n_turns"], stats["n_sequences"]) == (len(turns), len(sequences)), stats
    assert stats["n_trainable_sequences"] == sum(row["trainable"] for row in sequences), stats
    by_name = {turn["node_id"]: turn for turn in turns}
    for row in sequences:
        assert row["role"] in ("agent", "auxiliary", "discarded"), row["role"]
        assert set(row["node_ids"]) <= by_name.keys(), f"row {row['root_id']} has calls that nobody made"
        if document["rollout_type"] == "train":
            check_row(row, by_name)
        else:
            assert not row["trainable"] and not any(row["loss_mask"]), f"row {row['root_id']} trains an evaluation"
    assert not document["trainable"] or any(row["trainable"] for row in sequences), "trainable without a row"
    turns_from_document(document)


def check_row(row: dict, turns: dict) -> None:
    judged = check_sequence(types.SimpleNamespace(**row))
    assert row["trainable"] == (judged.ok and row["role"] == "agent"), judged.text()
    assert row["n_trainable"] == sum(row["loss_mask"]), row["root_id"]
    for name in row["node_ids"]:
        end = turns[name]["n_prompt"] + turns[name]["n_sampled"]
        assert end <= len(row["input_ids"]), f"call {name} ends outside its row"


def check_same_tokens(document: dict, trace: TrainingTrace) -> None:
    """The rows of a capture hold every turn of the trace, token by token."""
    spans = {}
    for row in document["sequences"]:
        for name in row["node_ids"]:
            start = next(turn["n_prompt"] for turn in document["turns"] if turn["node_id"] == name)
            spans[name] = (row["input_ids"][:start], row["input_ids"][start:], row["logprobs"][start:])
    for turn in trace.turns:
        prompt, rest, logprobs = spans[turn.node_id]
        sampled = len(turn.completion_token_ids)
        assert prompt == turn.prompt_token_ids, turn.node_id
        assert rest[:sampled] == turn.completion_token_ids, turn.node_id
        assert logprobs[:sampled] == turn.per_token_logps, turn.node_id


def check_training(program: Program, task: str) -> None:
    result = program.run(task)
    check_result(result)
    assert result["rollout_type"] == "train", result["findings"]
    rollout_id = result["rollout_id"]
    trace = check_training_trace(program.exported(rollout_id, "training-trace"), result)
    check_trace_entries(program.exported(rollout_id, "trace-entries"), trace)
    document = program.exported(rollout_id, "capture")
    check_capture(document)
    assert document["trainable"], document["validation"]
    check_same_tokens(document, trace)
    tokens = sum(sum(turn.loss_mask) for turn in trace.turns)
    print(f"{task}: {len(trace.turns)} turns, {continuations(trace)} of them go on, {tokens} tokens trained", flush=True)


class Talker(http.server.BaseHTTPRequestHandler):
    """A model of which nothing but words is known."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": "Done."}
        answer = {"id": "c", "created": 1, "model": request["model"]}
        choice = {"index": 0, "finish_reason": "stop"}
        if request.get("stream"):
            chunks = [
                answer | {"object": "chat.completion.chunk", "choices": [choice | {"delta": message, "finish_reason": None}]},
                answer | {"object": "chat.completion.chunk", "choices": [choice | {"delta": {}}]},
            ]
            body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            body = json.dumps(answer | {"object": "chat.completion", "choices": [choice | {"message": message}]})
            kind = "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_) -> None:
        pass


def check_evaluation(program: Program, scratch: pathlib.Path) -> None:
    task = scratch / "evaluation.toml"
    task.write_text(EVALUATION)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Talker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        result = program.run(str(task), "--endpoint", url, "--model", "talker")
        server.shutdown()
    check_result(result)
    assert (result["rollout_type"], result["capture_level"]) == ("eval", "text"), result["findings"]
    document = program.exported(result["rollout_id"], "capture")
    check_capture(document)
    assert (document["rollout_type"], document["trainable"]) == ("eval", False)
    assert len(document["turns"]) > 0, "no call was seen"
    for form in ("training-trace", "trace-entries"):
        refused = program.export(result["rollout_id"], form)
        assert refused.returncode != 0, f"an evaluation was exported as {form}"
    print(f"evaluation: {len(document['turns'])} turns, nothing trained", flush=True)


def main() -> None:
    program = Program(sys.argv[1])
    for task in sys.argv[2:]:
        check_training(program, task)
    with tempfile.TemporaryDirectory() as scratch:
        check_evaluation(program, pathlib.Path(scratch))


main()
