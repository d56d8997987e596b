"""`openenv validate`: the checks of a URL, and the graders of a whole episode, over the wire instead of in a container."""

import asyncio
import pathlib

from openenv.cli._validation import validate_running_environment
from openenv.validation.graders import Subject
from openenv.validation.graders.runtime import ObservationSchemaGrader, RewardWellFormedGrader, StateContractGrader
from openenv.validation.manifest import NormalizedManifest
from openenv.validation.runtime.collector import collect_runtime_evidence
from openenv.validation.runtime.contracts import RuntimePlan

from server import DEADLINE_S, WireTest

# What openenv.yaml says of rewards, and enough of the rest to be a manifest.
MANIFEST = {
    "manifest_schema_version": "1",
    "name": "rollcage",
    "signature": "openenv.yaml",
    "reward": {"range": [0.0, 1.0], "floor_margin": 0.1},
    "resources": {"cpu": 1, "memory_mb": 1, "disk_mb": 1, "episode_timeout_s": 60},
    "capabilities": {"verifier": {"kind": "reward_channel"}},
    "types": {"tags": ["swe"]},
}


class Validate(WireTest):
    async def test_the_url_is_that_of_an_environment(self):
        report = await asyncio.to_thread(validate_running_environment, self.server.url, DEADLINE_S)
        self.assertTrue(report["passed"], report)
        self.assertEqual(report["mode"], "production" if self.server.is_production else "simulation")
        self.assertEqual(report["standard_profile"], "openenv-http/1.x")

    async def test_an_episode_pleases_every_grader(self):
        call = self.sample.call()
        plan = RuntimePlan.model_validate(
            {"plan_schema_version": "1", "reset": {"episode_id": "graded", "seed": 7}, "actions": [call, call]}
        )
        evidence = await asyncio.to_thread(
            collect_runtime_evidence, self.server.url, plan, episode_timeout_s=DEADLINE_S
        )
        self.assertIsNone(evidence.failure_reason)
        self.assertEqual(
            [exchange.operation for exchange in evidence.exchanges],
            ["reset", "state", "step", "state", "step", "state"],
        )
        here = pathlib.Path(".")
        subject = Subject(
            root=here,
            manifest=NormalizedManifest.model_validate(MANIFEST),
            image_ref=None,
            running=None,
            outputs_dir=here,
            runtime_evidence=evidence,
        )
        for grader in (StateContractGrader, ObservationSchemaGrader, RewardWellFormedGrader):
            with self.subTest(grader=grader.__name__):
                graded = await asyncio.to_thread(grader().run, subject)
                self.assertEqual(graded.status.value, "pass", graded)
