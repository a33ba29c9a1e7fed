#!/usr/bin/env python3
"""A Python iterable as the data gives the bits of the same data from a file."""

import os
import random

import support
from support import ALICE, SMALL, FolderTest

support.need("numpy", "ml_dtypes")

import numpy as np  # noqa: E402

import tessera  # noqa: E402

BYTES = np.frombuffer(ALICE.read_bytes(), np.uint8)
RUNS = 100 if "TESSERA_LONG_TESTS" in os.environ else 20
MODEL = {"device": "cpu", "model": "gpt2-tiny", "layers": 2, "width": 32, "heads": 2, "context_length": 64}


def windows(length, text=BYTES):
    """The samples of a file that is read in order: the next begins with the last one's last target."""
    count = (len(text) - 1) // length
    return np.stack([text[i * length : (i + 1) * length + 1] for i in range(count)])


def losses(data, **settings):
    with tessera.Session(data, **MODEL, **settings) as session:
        return [(record.loss, record.gradient_norm) for record in session]


class DataSourceTest(FolderTest):
    def test_runs_of_any_settings_have_the_bits_of_the_file(self):
        strategies = ["no_shard", "zero1", "zero2", "shard_grad_op", "full_shard"]
        chosen = random.Random(1)
        for run in range(RUNS):
            length = chosen.choice([8, 16, 24])
            samples = windows(length)
            settings = {
                "strategy": chosen.choice(strategies),
                "ranks": chosen.choice([1, 2, 3]),
                "micro_batch": chosen.choice([1, 2, 5]),
                "accumulate": chosen.choice([1, 2]),
                "precision": chosen.choice(["fp32", "bf16"]),
                "steps": 3,
                "seed": run,
                "sequence_length": length,
                "shuffle": False,
            }
            if settings["ranks"] == 2 and chosen.random() < 0.3:
                settings.update(pipeline=2, strategy="no_shard")
            size = chosen.randint(1, 9)
            forms = [
                lambda: (row for row in samples),
                lambda: [samples],
                lambda: [samples[i : i + size] for i in range(0, len(samples), size)],
                lambda: ((row[:-1].astype(np.int64), row[1:].tolist()) for row in samples),
            ]
            data = chosen.choice(forms)()
            own = dict(settings)
            del own["shuffle"]
            self.assertEqual(losses(data, **own), losses(ALICE, **settings), (run, settings))

    def test_begins_anew_or_ends(self):
        samples = windows(16)[:5]
        settings = {"ranks": 1, "micro_batch": 2, "steps": 7, "sequence_length": 16}
        endless = losses(samples, **settings)
        self.assertEqual(len(endless), 7)
        file = self.folder / "five.txt"
        file.write_bytes(BYTES[: 16 * 5 + 1].tobytes())
        self.assertEqual(endless, losses(file, shuffle=False, **settings))
        # A generator's fifth sample is half of a step.
        self.assertEqual(losses(iter(samples), **settings), endless[:2])

    def test_goes_on_where_the_checkpoint_was(self):
        samples = windows(16)
        settings = {"ranks": 2, "micro_batch": 2, "steps": 6, "sequence_length": 16, **MODEL}
        with tessera.Session(iter(samples), **settings) as session:
            whole = [record.loss for record in session]
        with tessera.Session(samples, **settings) as session:
            for record in session:
                if record.step == 2:
                    path = session.save(self.folder / "run")
                    break
        with tessera.Session(iter(samples), resume=path, **settings) as session:
            self.assertEqual([record.loss for record in session], whole[2:])
        with self.assertRaisesRegex(ValueError, "before the place"):
            tessera.Session(iter(samples[:3]), resume=path, **settings)

    def test_targets_that_do_not_count(self):
        samples = windows(16)[:8].astype(np.int32)
        targets = samples[:, 1:].copy()
        targets[:, :10] = -100
        settings = {"ranks": 1, "micro_batch": 4, "steps": 2, "sequence_length": 16, **MODEL}
        with tessera.Session([(samples[:, :-1], targets)], **settings) as session:
            self.assertEqual([record.tokens for record in session], [4 * 6, 4 * 6])

    def test_evaluation_data(self):
        samples = windows(16)[:10]
        settings = {"ranks": 2, "micro_batch": 2, "steps": 2, "sequence_length": 16, **MODEL, "data": ALICE}
        file = self.folder / "ten.txt"
        file.write_bytes(BYTES[: 16 * 10 + 1].tobytes())
        with tessera.Session(**settings, eval_data=file) as a, tessera.Session(**settings, eval_data=samples) as b:
            self.assertEqual(a.evaluate().loss, b.evaluate().loss)
            self.assertEqual(b.evaluate().tokens, 160)

    def test_errors(self):
        settings = {**SMALL, "sequence_length": 16, "layers": 1}

        def run(data):
            with tessera.Session(data, **settings) as session:
                session.step()

        with self.assertRaisesRegex(ValueError, r"\(1, 16\) is no samples: each has sequence_length \+ 1 = 17"):
            run([np.zeros(16, np.int32)])
        with self.assertRaisesRegex(ValueError, "token ids, integers"):
            run([np.zeros(17, np.float32)])
        with self.assertRaisesRegex(ValueError, "no samples"):
            run([])
        with self.assertRaisesRegex(tessera.ConfigError, "sample 1 of the data has the input 256 at position 3, and"):
            tokens = np.zeros((4, 17), np.int32)
            tokens[1, 3] = 256
            run([tokens])
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            run(1 // 0 for _ in range(3))
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            tessera.Session(ALICE, eval_data=(1 // 0 for _ in range(3)), **settings)


if __name__ == "__main__":
    support.main()
