#!/usr/bin/env python3
"""Session trains, evaluates, saves and resumes with the bits of the program."""

import gc
import math
import os
import socket
import subprocess
import sys
import threading

import support
from support import ALICE, SMALL, FolderTest, train

support.need("numpy", "ml_dtypes")

import numpy as np  # noqa: E402

import tessera  # noqa: E402


def steps_of(lines):
    return [line for line in lines if line["kind"] == "step"]


class SessionTest(FolderTest):
    def test_has_the_programs_bits(self):
        for more in ({}, {"strategy": "zero2", "precision": "bf16", "dropout": 0.1},
                     {"ranks": 2, "pipeline": 2, "accumulate": 2}):
            settings = {**SMALL, **more, "data": ALICE}
            lines = train(settings, self.folder, f"{len(more)}{more.get('strategy', '')}.jsonl")
            with tessera.Session(**settings) as session:
                records = list(session)
            self.assertEqual([(r.step, r.loss, r.gradient_norm) for r in records],
                             [(s["step"], s["loss"], s["grad_norm"]) for s in steps_of(lines)])

    def test_evaluates_saves_and_logs_as_the_program(self):
        settings = {**SMALL, "data": ALICE, "eval_data": ALICE, "eval_tokens": 640, "eval_every": 2, "save_every": 3}
        lines = train({**settings, "save": self.folder / "program"}, self.folder)
        log = self.folder / "session.jsonl"
        with tessera.Session(**settings, save=self.folder / "session", log=log) as session:
            evaluations = [session.evaluation.loss for record in session if session.evaluation]
        own = support.lines_of(log)
        # Threads write checkpoints: the line of one comes when it is durable.
        for kinds in ({"run", "step", "evaluation", "summary"}, {"checkpoint"}):
            self.assertEqual([line["kind"] for line in own if line["kind"] in kinds],
                             [line["kind"] for line in lines if line["kind"] in kinds])
        for key in ("loss", "perplexity"):
            self.assertEqual([line[key] for line in own if line["kind"] == "evaluation"],
                             [line[key] for line in lines if line["kind"] == "evaluation"])
        self.assertEqual(evaluations, [line["loss"] for line in own if line["kind"] == "evaluation"])
        self.assertEqual(sorted(p.name for p in (self.folder / "session").iterdir()),
                         sorted(p.name for p in (self.folder / "program").iterdir()))
        self.assertEqual(own[-1]["parameters_sha256"], lines[-1]["parameters_sha256"])

    def test_goes_on_from_a_checkpoint(self):
        settings = {**SMALL, "data": ALICE}
        with tessera.Session(**settings) as whole:
            losses = [record.loss for record in whole]
        with tessera.Session(**settings) as first:
            for record in first:
                if record.step == 3:
                    path = first.save(self.folder / "run")
                    break
        with tessera.Session(**{**settings, "ranks": 1, "accumulate": 2}, resume=path) as second:
            self.assertEqual(second.steps, 3)
            self.assertEqual([record.loss for record in second], losses[3:])
            self.assertIsNone(second.step())

    def test_evaluate_and_finish_after_a_break(self):
        with tessera.Session(**SMALL, data=ALICE, eval_data=ALICE, eval_tokens=320,
                             log=self.folder / "log.jsonl") as session:
            for record in session:
                evaluation = session.evaluate()
                self.assertEqual(evaluation.step, record.step)
                self.assertAlmostEqual(math.exp(evaluation.loss), evaluation.perplexity)
                break
            session.finish()
            self.assertIsNone(session.step())
        self.assertEqual(support.lines_of(self.folder / "log.jsonl")[-1]["kind"], "summary")

    def test_errors(self):
        with self.assertRaises(tessera.NotFoundError) as caught:
            tessera.Session(**SMALL, data=self.folder / "nothing")
        self.assertIsInstance(caught.exception, FileNotFoundError)
        with self.assertRaisesRegex(tessera.ConfigError, "^nothing to train on: give data"):
            tessera.Session(**SMALL)
        with self.assertRaisesRegex(tessera.ConfigError, "'prompt' is for what the program"):
            tessera.Session(**SMALL, data=ALICE, prompt="x")
        with tessera.Session(**SMALL, data=ALICE) as session:
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "no data to evaluate"):
                session.evaluate()
        with self.assertRaisesRegex(tessera.InvalidArgumentError, "closed"):
            session.step()
        with self.assertRaisesRegex(tessera.OutOfMemoryError, "(?s)memory_limit|fit"):
            tessera.Session(**SMALL, data=ALICE, memory_limit="1MiB")

    def test_two_sessions_at_once(self):
        with tessera.Session(**SMALL, data=ALICE) as a, tessera.Session(**SMALL, data=ALICE) as b:
            for one, other in zip(a, b):
                self.assertEqual(one.loss, other.loss)


RANK = """
import sys
import numpy as np
import tessera
settings = {settings!r}
data = {data!r}
if sys.argv[1] == "arrays":
    text = np.frombuffer(open(data, "rb").read(), np.uint8)
    data = [text[i * 32 : i * 32 + 33] for i in range(100)]
with tessera.Session(data, **settings) as session:
    print(*(record.loss.hex() for record in session))
    print(*sorted(session.states()))
"""


class ProcessesTest(FolderTest):
    def run_two(self, kind, settings):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        script = RANK.format(settings=settings, data=str(ALICE))
        children = [
            subprocess.Popen([sys.executable, "-c", script, kind], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                                  "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
            for rank in range(2)]
        outputs = [child.communicate()[0].split("\n") for child in children]
        self.assertEqual([child.returncode for child in children], [0, 0])
        self.assertEqual([output[1] for output in outputs], ["0", "1"])
        self.assertEqual(outputs[0][0], outputs[1][0])
        return outputs[0][0].split()

    def test_two_have_the_bits_of_one(self):
        settings = {**SMALL, "shuffle": False, "steps": 3}
        with tessera.Session(**settings, data=ALICE) as session:
            losses = [record.loss.hex() for record in session]
        self.assertEqual(self.run_two("file", settings), losses)
        self.assertEqual(self.run_two("arrays", settings), losses)


class StateTest(FolderTest):
    def test_views_of_every_strategy_make_the_parameters(self):
        for strategy in ("no_shard", "zero1", "zero2", "full_shard"):
            for precision in ("fp32", "bf16"):
                with tessera.Session(**{**SMALL, "strategy": strategy, "precision": precision}, data=ALICE) as session:
                    session.step()
                    parameters = session.parameters()
                    role = "parameter" if precision == "fp32" else "master"
                    seen = {name: np.full(values.size, np.nan, np.float32) for name, values in parameters.items()}
                    for tensors in session.states().values():
                        for tensor in tensors.values():
                            self.assertFalse(tensor.is_copy)
                            self.assertFalse(tensor.array.flags.writeable)
                            self.assertFalse(tensor.array.flags.owndata)
                            if tensor.role != role:
                                continue
                            for piece in tensor.pieces:
                                part = tensor.array[piece.offset : piece.offset + piece.end - piece.begin]
                                seen[piece.parameter][piece.begin : piece.end] = part
                    for name, values in parameters.items():
                        np.testing.assert_array_equal(seen[name], values.reshape(-1), f"{name} of {strategy}")

    def test_a_view_shows_the_next_step_and_outlives_the_session(self):
        session = tessera.Session(**{**SMALL, "precision": "bf16", "strategy": "zero1"}, data=ALICE)
        state = session.state()
        self.assertEqual({t.array.dtype.name for t in state.values() if t.role == "parameter"}, {"bfloat16"})
        self.assertEqual({t.sharded for t in state.values() if t.role == "master"}, {"shard"})
        self.assertEqual({t.tensor for t in state.values() if t.role == "optimizer"}, {"first-moment", "second-moment"})
        view = next(t.array for t in state.values() if t.tensor == "first-moment")
        self.assertTrue((view == 0).all())
        session.step()
        self.assertTrue((view != 0).any())
        copy = view.copy()
        session.close()
        del session, state
        gc.collect()
        np.testing.assert_array_equal(view, copy)

    def test_on_disk_is_copied(self):
        settings = {**SMALL, "offload_optimizer": "disk", "offload_path": self.folder}
        with tessera.Session(**SMALL, data=ALICE) as session:
            session.step()
            expected = {t.name: t.array.copy() for t in session.state().values()}
        with tessera.Session(**settings, data=ALICE) as session:
            session.step()
            tiers = {t.tier: t.is_copy for t in session.state().values()}
            self.assertEqual(tiers, {"device": False, "disk": True})
            for tensor in session.state().values():
                if tensor.name in expected:
                    np.testing.assert_array_equal(tensor.array, expected[tensor.name])

    def test_parameters_are_set(self):
        with tessera.Session(**SMALL, data=ALICE, eval_data=ALICE, eval_tokens=320) as session:
            session.step()
            kept = session.parameters()
            loss = session.evaluate().loss
            for values in kept.values():
                self.assertEqual(values.dtype, np.float32)
            session.step()
            self.assertNotEqual(session.evaluate().loss, loss)
            session.set_parameters(kept)
            self.assertEqual(session.evaluate().loss, loss)
            for name, values in session.parameters().items():
                np.testing.assert_array_equal(values, kept[name])
            name, values = next(iter(kept.items()))
            with self.assertRaisesRegex(tessera.InvalidArgumentError, "is missing"):
                session.set_parameters({name: values})


class LockTest(FolderTest):
    def test_another_thread_runs_while_steps_do(self):
        turns = 0
        over = threading.Event()

        def count():
            nonlocal turns
            while not over.is_set():
                turns += 1

        with tessera.Session(**{**SMALL, "steps": 1000, "micro_batch": 8}, data=ALICE) as session:
            thread = threading.Thread(target=count)
            thread.start()
            most = 0
            while most < 1000 and session.steps < 1000:
                before = turns
                session.step()
                most = max(most, turns - before)
            over.set()
            thread.join()
        # Between two steps the thread gets the lock for 5 ms at most; a step's thread gives it up.
        self.assertGreaterEqual(most, 1000)


if __name__ == "__main__":
    support.main()
