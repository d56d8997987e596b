"""OpenEnv's HTTP routes: what a server says of itself, its tasks, and control without a session."""

import httpx
from jsonschema import Draft202012Validator, ValidationError
from openenv.core.env_server.mcp_types import Tool
from openenv.core.env_server.types import EnvironmentMetadata

from server import NOBODY, WireTest

CONTROL = ("/reset", "/step", "/state")


class Information(WireTest):
    def check_json(self, answer: httpx.Response) -> dict:
        self.assertEqual(answer.status_code, 200, answer.text)
        self.assertTrue(answer.headers["content-type"].startswith("application/json"))
        self.assertNotIn("content-encoding", answer.headers)
        return answer.json()

    async def test_the_server_is_healthy(self):
        self.assertEqual(self.check_json(await self.http.get("/health"))["status"], "healthy")

    async def test_metadata_is_what_openenv_reads(self):
        metadata = self.check_json(await self.http.get("/metadata"))
        self.assertIs(type(metadata["name"]), str)
        self.assertIs(type(metadata["description"]), str)
        EnvironmentMetadata.model_validate(metadata)

    async def test_schemas_are_plain_and_fit_what_is_sent(self):
        for encoding in ("identity", "gzip"):
            schemas = self.check_json(await self.http.get("/schema", headers={"accept-encoding": encoding}))
        for name in ("action", "observation", "state"):
            self.assertIs(type(schemas[name]), dict)
        for schema in schemas.values():
            Draft202012Validator.check_schema(schema)
        action = Draft202012Validator(schemas["action"])
        action.validate(self.sample.call())
        with self.assertRaises(ValidationError):
            action.validate(self.sample.call(more=1))
        # Without a session, so only where there is control over HTTP.
        if not self.server.is_production:
            stepped = (await self.http.post("/step", json={"action": self.sample.call()})).json()
            observed = stepped["observation"] | {"done": stepped["done"], "reward": stepped["reward"]}
            Draft202012Validator(schemas["observation"]).validate(observed)
            Draft202012Validator(schemas["state"]).validate((await self.http.get("/state")).json())

    async def test_openapi_lists_control_in_simulation_alone(self):
        document = self.check_json(await self.http.get("/openapi.json"))
        self.assertTrue(document["info"]["version"].startswith("1."), document["info"])
        listed = [path for path in CONTROL if path in document["paths"]]
        self.assertEqual(listed, [] if self.server.is_production else list(CONTROL))

    async def test_there_is_a_page_for_people(self):
        page = await self.http.get("/docs")
        self.assertEqual(page.status_code, 200)
        self.assertIn("text/html", page.headers["content-type"])

    async def test_wrong_paths_methods_and_slashes_are_told_apart(self):
        unknown = await self.http.get(f"/{NOBODY}")
        self.assertEqual((unknown.status_code, unknown.json()), (404, {"detail": "Not Found"}))
        refused = await self.http.post("/health", json={})
        self.assertEqual((refused.status_code, refused.json()), (405, {"detail": "Method Not Allowed"}))
        self.assertIn("GET", refused.headers["allow"])
        moved = await self.http.get("/health/")
        self.assertEqual(moved.status_code, 307)
        self.assertEqual(httpx.URL(moved.headers["location"]).path, "/health")


class TaskApi(WireTest):
    async def asyncSetUp(self):
        await super().asyncSetUp()
        names = (await self.http.get("/list_environments")).json()
        self.assertEqual(len(names), 1, names)
        self.name = names[0]

    async def ask(self, what: str, **body) -> httpx.Response:
        return await self.http.post(f"/{self.name}/{what}", json=body)

    async def test_one_environment_is_known_and_no_other(self):
        self.assertIn((await self.http.get(f"/{self.name}/splits")).status_code, (200, 501))
        other = await self.http.get(f"/{NOBODY}/splits")
        self.assertEqual(other.status_code, 404)
        self.assertIn(NOBODY, other.json()["detail"])

    async def test_tasks_are_counted_listed_and_found(self):
        splits = await self.http.get(f"/{self.name}/splits")
        if splits.status_code == 501 or not splits.json():
            self.skipTest("this server has no tasks")
        split = splits.json()[0]["name"]
        tasks = (await self.ask("tasks", split=split)).json()["tasks"]
        self.assertEqual((await self.ask("num_tasks", split=split)).json(), {"num_tasks": len(tasks)})
        self.assertEqual((await self.ask("task", split=split, index=0)).json(), {"task": tasks[0]})
        some = await self.ask("task_range", split=split, start=1, stop=3)
        self.assertEqual(some.json()["tasks"], tasks[1:3])
        self.assertEqual((await self.ask("task", split=split, index=len(tasks))).status_code, 400)
        self.assertEqual((await self.ask("tasks", split=split, more=1)).status_code, 422)


class Control(WireTest):
    """`/reset`, `/step` and `/state`, where every request is alone."""

    async def asyncSetUp(self):
        await super().asyncSetUp()
        if self.server.is_production:
            self.skipTest("only in simulation")

    async def step(self, action: dict, **more) -> httpx.Response:
        return await self.http.post("/step", json={"action": action} | more)

    def check_refused(self, answer: httpx.Response) -> None:
        self.assertEqual(answer.status_code, 422, answer.text)
        self.check_problems(answer.json()["detail"])

    async def test_a_state_names_an_episode_and_counts_steps(self):
        state = (await self.http.get("/state")).json()
        self.assertIn("episode_id", state)
        self.assertIs(type(state["step_count"]), int)

    async def test_a_reset_needs_no_body_and_takes_any(self):
        for body in ({}, {"json": {"seed": 1, "episode_id": "e", "more": {"x": 1}}}):
            answer = await self.http.post("/reset", **body)
            self.assertEqual(answer.status_code, 200, answer.text)
            self.check_observation(answer.json())

    async def test_a_reset_that_makes_no_sense_is_refused(self):
        for body in ({"seed": -1}, {"seed": "x"}, {"episode_id": 1}, [1]):
            with self.subTest(body=body):
                self.check_refused(await self.http.post("/reset", json=body))
        torn = await self.http.post("/reset", content="{torn", headers={"content-type": "application/json"})
        self.check_refused(torn)

    async def test_a_step_calls_a_tool(self):
        for more in ({}, {"timeout_s": 30, "request_id": "r", "more": 1}):
            answer = await self.step(self.sample.call(), **more)
            self.assertEqual(answer.status_code, 200, answer.text)
            self.check_call(self.check_observation(answer.json()))

    async def test_a_step_lists_tools_in_openenvs_form(self):
        tools = (await self.step({"type": "list_tools"})).json()["observation"]["tools"]
        self.check_listed(tools)
        for tool in tools:
            Tool.model_validate(tool)

    async def test_a_step_that_makes_no_sense_is_refused(self):
        wrong = ({}, {"type": NOBODY, "tool_name": "x"}, self.sample.call(more=1), {"type": "call_tool"})
        for action in wrong:
            with self.subTest(action=action):
                self.check_refused(await self.step(action))
        self.check_refused(await self.http.post("/step", json={}))
        self.check_refused(await self.step(self.sample.call(), timeout_s=0))

    async def test_a_step_ends_at_its_deadline(self):
        answer = await self.step(self.sample.slow_call(), timeout_s=0.5)
        self.assertEqual(answer.status_code, 200, answer.text)
        self.assertEqual(answer.json()["observation"]["error"]["error_type"], "timeout", answer.text)


class Production(WireTest):
    async def test_production_has_no_control_over_http(self):
        if not self.server.is_production:
            self.skipTest("only in production")
        self.assertEqual((await self.http.get("/state")).status_code, 404)
        for path in ("/reset", "/step"):
            answer = await self.http.post(path, json={"action": self.sample.call()})
            self.assertEqual(answer.status_code, 404)
