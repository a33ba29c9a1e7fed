#!/usr/bin/env python3
"""Records what `accelerate config` asks, in its order and words, on the paths below.

    python3 -m venv venv && venv/bin/pip install accelerate torch
    venv/bin/python tests/cli/make_questionnaire_golden.py

Its own questionnaire runs; only the two functions that put a question to a person are replaced, by
ones that write the question down and answer it. The result is questionnaire_golden.json;
questionnaire_test.cpp holds our questions to it. Amazon's machines, TPUs and Megatron-LM have no
path: one refusal ends what could be compared.
"""

import json
import pathlib
import re

import accelerate
from accelerate.commands.config import cluster, config

HERE = pathlib.Path(__file__).resolve().parent

MACHINE = "Which type of machine"
GPUS = {MACHINE: "multi-GPU", "How many GPU(s)": "4"}
SEVERAL = {
    "How many different machines": "2",
    "What is the rank": "1",
    "What is the IP address": "10.0.0.1",
    "What is the port": "29501",
}
DEEPSPEED = {"Do you want to use DeepSpeed?": "yes"}
FSDP = {**GPUS, "Do you want to use FullyShardedDataParallel?": "yes"}
FSDP_1 = {**FSDP, "What should be your FSDP version?": "1"}
NAMED_LAYERS = {"Specify the comma-separated list of transformer layer": "GPT2Block"}
STAGE = "What should be your DeepSpeed's ZeRO"

# The answers by the beginning of the question. To all others it is Enter.
PATHS = {
    "one_process": {},
    "one_process_on_cpu": {"Do you want to run your training on CPU only": "yes"},
    "one_process_bf16": {"What GPU(s) (by id)": "0", "Do you wish to use mixed": "bf16"},
    "one_process_deepspeed": DEEPSPEED,
    "one_process_deepspeed_on_cpu": {**DEEPSPEED, "Do you want to run your training on CPU": "yes"},
    "cpus": {MACHINE: "multi-CPU", "How many processes": "3"},
    "cpus_of_machines": {
        MACHINE: "multi-CPU",
        **SEVERAL,
        "How many processes": "4",
        "Do you want accelerate to launch mpirun?": "yes",
    },
    "gpus": GPUS,
    "gpus_bf16": {
        **GPUS,
        "Should distributed operations be checked": "yes",
        "Do you wish to optimize": "yes",
        "Do you want to customize": "yes",
        "What GPU(s) (by id)": "0,1,2,3",
        "Do you wish to use mixed": "bf16",
    },
    "gpus_of_machines": {**GPUS, **SEVERAL},
    "gpus_of_distant_machines": {
        **GPUS,
        **SEVERAL,
        "Are all the machines on the same": "no",
        "What rendezvous backend": "c10d",
    },
    "fsdp_1": {**FSDP_1, **NAMED_LAYERS},
    "fsdp_1_hybrid": {
        **FSDP_1,
        "What should be your sharding strategy?": "HYBRID_SHARD",
        "What should be your auto wrap policy?": "SIZE_BASED_WRAP",
        "What should be your FSDP's backward prefetch": "BACKWARD_POST",
        "What should be your FSDP's state dict": "SHARDED_STATE_DICT",
        "Do you want to enable CPU RAM efficient": "no",
    },
    "fsdp_1_no_wrap": {**FSDP_1, "What should be your auto wrap policy?": "NO_WRAP"},
    "fsdp_2": {**FSDP, **NAMED_LAYERS},
    "fsdp_2_own_layers": {**FSDP, "Do you want to use the model's `_no_split_modules`": "yes"},
    "fsdp_2_mesh": {
        **FSDP,
        "Do you want to enable resharding": "no",
        "What should be your auto wrap policy?": "SIZE_BASED_WRAP",
        "Do you want to use the parallelism config?": "yes",
        "What is the data parallelism replicate": "2",
        "What is the FSDP shard": "2",
    },
    "fsdp_2_of_machines": {**FSDP, **SEVERAL, **NAMED_LAYERS},
    "deepspeed": {**GPUS, **DEEPSPEED},
    "deepspeed_0": {**GPUS, **DEEPSPEED, STAGE: "0", "Do you want to use gradient clip": "yes"},
    "deepspeed_3": {
        **GPUS,
        **DEEPSPEED,
        STAGE: "3",
        "Where to offload": "nvme",
        "Do you want to enable Mixture-of-Experts": "yes",
    },
    "deepspeed_file": {
        **GPUS,
        **DEEPSPEED,
        "Do you want to specify a json file": "yes",
        "Please enter the path to the json DeepSpeed": "CMakePresets.json",
    },
    "deepspeed_of_machines": {
        **GPUS,
        **SEVERAL,
        **DEEPSPEED,
        "Do you want to specify exclusion": "yes",
        "Do you want to specify inclusion": "yes",
    },
}


class Person:
    """Answers as a path says, and remembers what was asked."""

    def __init__(self, answers: dict):
        self.answers = answers
        self.asked = []

    def answer(self, question: str) -> str:
        for beginning, answer in self.answers.items():
            if question.startswith(beginning):
                return answer
        return ""

    def remember(self, text: str, **rest) -> None:
        """Apart from its default, a question is the same with or without a colon at the end."""
        text, default = re.fullmatch(r"(.*?)\s*(?:\[([^]]*)\])?[\s:]*", text).groups()
        self.asked.append({"text": text, "default": default or "", **rest})

    def field(self, text, convert_value=None, default=None, error_message=None):
        answer = self.answer(text)
        self.remember(text, answer=answer)
        if answer == "" and default is not None:
            return default
        return convert_value(answer) if convert_value else answer

    def options(self, text, options=[], convert_value=None, default=0):
        names = [str(option) for option in options]
        answer = self.answer(text)
        chosen = names.index(answer) if answer else default
        self.remember(text, answer=answer, choices=names)
        self.asked[-1]["default"] = names[default]
        return convert_value(chosen) if convert_value else chosen


def record(answers: dict) -> list:
    person = Person(answers)
    for module in (config, cluster):
        module._ask_field = person.field
        module._ask_options = person.options
    config.get_user_input()
    unused = [a for a in answers if not any(q["text"].startswith(a) for q in person.asked)]
    assert not unused, f"nobody asked {unused}"
    return person.asked


def main() -> None:
    # As on a machine that has all that a path asks for.
    cluster.is_deepspeed_available = lambda: True
    cluster.is_transformers_available = lambda: True
    paths = {name: record(answers) for name, answers in PATHS.items()}
    # A line for each question, so that a new version of Accelerate makes a readable diff.
    lines = [f'{{"accelerate": "{accelerate.__version__}", "paths": {{']
    for name, asked in paths.items():
        rows = ",\n".join("  " + json.dumps(question, ensure_ascii=False) for question in asked)
        lines.append(f'"{name}": [\n{rows}]' + ("," if name != list(paths)[-1] else "}}"))
    (HERE / "questionnaire_golden.json").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
