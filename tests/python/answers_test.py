#!/usr/bin/env python3
"""plan(), simulate(), sweep(), estimate_memory(), explain(), validate(), account() and Schedule say what
the program says."""

import json
import pickle
import re
import tempfile
import unittest

import support

support.need("numpy", "ml_dtypes")

import tessera  # noqa: E402

RUN = {"model": "gpt2-tiny", "layers": 2, "ranks": 4, "strategy": "full_shard"}


class PlanTest(unittest.TestCase):
    def test_is_the_programs(self):
        for more in ({}, {"pipeline": 2, "accumulate": 2}, {"offload_optimizer": "host"}):
            settings = {**RUN, **more}
            plan = tessera.plan(**settings)
            printed = json.loads(support.run_program("plan", settings, "--format", "json"))
            own = dict(plan)
            for key in own:
                if key != "settings":  # of which the program has more
                    self.assertEqual(own[key], printed[key], key)
            self.assertEqual(own.keys(), printed.keys())
            for name, value in own["settings"].items():
                if name in tessera.settings("plan"):
                    self.assertEqual(value, printed["settings"][name], name)
            self.assertEqual(str(plan), support.run_program("plan", settings, "--format", "schedule"))

    def test_a_file_of_settings_counts_less_than_keywords(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(RUN, file)
            file.flush()
            self.assertEqual(tessera.plan(config=file.name).settings["ranks"], 4)
            self.assertEqual(tessera.plan(config=file.name, ranks=2).settings["ranks"], 2)

    def test_errors_have_the_librarys_text_with_keywords(self):
        with self.assertRaisesRegex(tessera.ConfigError, "did you mean 'strategy'") as caught:
            tessera.plan(stratgey="zero1")
        self.assertEqual(caught.exception.code, "config")
        self.assertIsInstance(caught.exception, (tessera.Error, ValueError))
        with self.assertRaisesRegex(tessera.ConfigError, "^micro_batch: 0 is"):
            tessera.plan(micro_batch=0)
        with self.assertRaises(tessera.ConfigError) as caught:
            tessera.plan(model="gpt2-tiny", sequence_length=100000)
        self.assertIn("sequence_length is 100000", str(caught.exception))
        self.assertNotIn("--", str(caught.exception))


class ScheduleTest(unittest.TestCase):
    def setUp(self):
        self.schedule = tessera.plan(**RUN).schedule

    def test_prints_and_parses(self):
        text = str(self.schedule)
        again = tessera.Schedule.parse(text)
        self.assertEqual(again, self.schedule)
        self.assertEqual(str(again), text)
        self.assertEqual(pickle.loads(pickle.dumps(again)), again)
        self.assertNotEqual(tessera.plan(**{**RUN, "strategy": "zero2"}).schedule, self.schedule)
        with self.assertRaisesRegex(tessera.ConfigError, "line 1"):
            tessera.Schedule("nothing")

    def test_actions_and_buffers_are_tuples(self):
        actions = self.schedule.actions
        self.assertEqual([action.number for action in actions], list(range(len(actions))))
        gather = next(action for action in actions if action.operation == "all-gather")
        self.assertEqual((gather.lane, gather.over), ("gather", "shard"))
        names = {buffer.name for buffer in self.schedule.buffers}
        for action in actions:
            for operand in action.reads + action.writes:
                self.assertIn(operand.lstrip("+").split("=")[0].split("/")[0], names)
        kept = [b for b in self.schedule.buffers if b.persistent and b.role == "parameter"]
        self.assertTrue(all(buffer.sharded == ("shard",) for buffer in kept))

    def test_of_a_pipeline(self):
        plan = tessera.plan(**RUN, pipeline=2, accumulate=2)
        self.assertEqual([one.pipeline_rank for one in plan.schedules], [0, 1])
        self.assertEqual(tessera.parse_schedules(str(plan)), plan.schedules)
        self.assertEqual(tessera.validate(plan.schedules), [])
        # The second stage would wait for ever.
        self.assertNotEqual(tessera.validate([plan.schedules[0], plan.schedules[0]]), [])

    def test_a_wait_that_is_missing_is_found(self):
        self.assertEqual(tessera.validate(self.schedule), [])
        waiting = next(action for action in self.schedule.actions if action.after)
        text = str(self.schedule).splitlines()
        line = next(i for i, words in enumerate(text) if re.match(rf" *{waiting.number} +{waiting.lane} ", words))
        self.assertIn(" after ", text[line])
        text[line] = text[line].split(" after ")[0]
        broken = tessera.Schedule("\n".join(text) + "\n")
        self.assertEqual({one.rule for one in tessera.validate(broken)}, {"happens-before"})

    def test_accounts(self):
        plan = tessera.plan(**RUN)
        account = tessera.account(plan.schedule)
        self.assertEqual(account["sent_bytes"], plan.sent_bytes)
        self.assertEqual(account["calls"], plan["collectives"])
        self.assertEqual(account["gradient_sum_bytes"], plan["gradient_sum_bytes"])
        self.assertEqual(account["memory"]["parameters"], plan.peak_bytes["parameters"])


class SimulationTest(unittest.TestCase):
    def test_is_the_programs(self):
        settings = {**RUN, "ranks": 16, "ranks_per_node": 8, "profile": "a100-sxm"}
        simulation = tessera.simulate(**settings)
        printed = json.loads(support.run_program("simulate", settings, "--format", "json"))
        self.assertEqual([dict(simulation)], printed["runs"])
        end = max(span.end for span in simulation.spans)
        self.assertGreater(end, 0.0)
        self.assertTrue(all(0 <= s.action < len(simulation.schedule.actions) for s in simulation.spans))
        for span in simulation.spans:
            self.assertEqual(span.lane, simulation.schedule.actions[span.action].lane)

    def test_sweeps(self):
        sweep = tessera.sweep(model="gpt2-tiny", ranks=[2, 8], strategy=["zero2", "full_shard", "hybrid_shard"],
                              replicas=4, profile="h100-sxm")
        printed = json.loads(support.run_program(
            "simulate", {"model": "gpt2-tiny", "replicas": 4, "profile": "h100-sxm"}, "--format", "json", "--sweep",
            "ranks=2,8 strategy=zero2,full_shard,hybrid_shard"))
        self.assertEqual(list(sweep), printed["runs"])
        self.assertTrue(sweep.left_out)  # two ranks are no four replicas
        memory = [run["memory_bytes"] for run in sweep.pareto]
        self.assertTrue(memory)
        self.assertEqual(memory, sorted(memory))
        with self.assertRaisesRegex(tessera.ConfigError, "nothing to sweep"):
            tessera.sweep(model="gpt2-tiny")

    def test_estimates_memory(self):
        estimate = tessera.estimate_memory("gpt2-tiny", ranks=[2, 4], strategy=["zero1", "zero2"], precision="bf16")
        printed = json.loads(support.run_program(
            "estimate-memory", {}, "gpt2-tiny", "--ranks", "2,4", "--strategies", "zero1,zero2", "--precision", "bf16",
            "--json"))
        self.assertEqual(dict(estimate), printed)

    def test_explains(self):
        corpus = support.SOURCE / "tests" / "configs" / "corpus"
        accepted, refused = 0, 0
        for config in sorted(corpus.rglob("*.yaml"))[::20]:
            try:
                printed = json.loads(support.run_program("explain", {}, str(config), "--json"))
            except AssertionError:
                refused += 1
                with self.assertRaises(tessera.Error):
                    tessera.explain(config)
                continue
            accepted += 1
            explained = tessera.explain(config)
            self.assertEqual(explained["files"], printed["files"])
            strategy = explained["settings"]["strategy"]
            self.assertEqual(strategy, printed["settings"]["strategy"])
        self.assertGreater(accepted, 0)
        self.assertGreater(refused, 0)


class SettingsTest(unittest.TestCase):
    def test_are_the_tables(self):
        settings = tessera.settings()
        self.assertEqual(settings["micro_batch"].type, "integer")
        self.assertIn("zero2", settings["strategy"].help)
        self.assertNotIn("--", settings["save_best"].help)
        self.assertNotIn("profile", settings)
        self.assertIn("profile", tessera.settings("simulate"))
        with self.assertRaises(ValueError):
            tessera.settings("nothing")


if __name__ == "__main__":
    support.main()
