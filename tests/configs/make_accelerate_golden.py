#!/usr/bin/env python3
"""Records what Accelerate itself makes of the valid Accelerate files in corpus/.

    python3 -m venv venv && venv/bin/pip install accelerate torch
    venv/bin/python tests/configs/make_accelerate_golden.py

Each file goes the way that `accelerate launch --config_file FILE` goes: its parser, its merging of
file and flags, its environment for the workers, and the FSDP plugin that a worker builds from that.
The result is accelerate_golden.json; golden_test.cpp holds our reader to it. No GPU is needed.
"""

import json
import os
import pathlib

import accelerate
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


def is_valid_accelerate(path: pathlib.Path) -> bool:
    expected = path.with_name(path.name + ".expected.json")
    if not path.name.startswith("accelerate_") or not expected.exists():
        return False
    return json.loads(expected.read_text()).get("dialect") == "Accelerate"


def exported(args) -> dict:
    """What the launcher would put into the environment of a worker."""
    if args.use_deepspeed:
        _, environment = prepare_deepspeed_cmd_env(args)
    else:
        environment = prepare_multi_gpu_env(args)
    return {k: v for k, v in sorted(environment.items()) if k.startswith(PREFIXES)}


def plugin_of(environment: dict) -> dict:
    """The choices of the FSDP plugin that a worker would build from that environment."""
    before = dict(os.environ)
    os.environ.update(environment)
    # These two ask for a GPU at once; they say nothing that is recorded here.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = os.environ["FSDP_SYNC_MODULE_STATES"] = "false"
    try:
        plugin = FullyShardedDataParallelPlugin()
        strategy = getattr(plugin.sharding_strategy, "name", None)
        prefetch = getattr(plugin.backward_prefetch, "name", None)
        return {
            "version": plugin.fsdp_version,
            "sharding_strategy": strategy,
            "reshard_after_forward": getattr(
                plugin.reshard_after_forward, "name", plugin.reshard_after_forward
            ),
            "backward_prefetch": prefetch,
            "activation_checkpointing": plugin.activation_checkpointing,
            "auto_wrap_policy": getattr(plugin.auto_wrap_policy, "__name__", None),
            "min_num_params": plugin.min_num_params,
        }
    finally:
        os.environ.clear()
        os.environ.update(before)


def read(path: pathlib.Path) -> dict:
    arguments = json.loads(path.with_name(path.name + ".expected.json").read_text()).get("arguments", {})
    words = ["--config_file", path.name]
    if "ranks" in arguments:
        words += ["--num_processes", arguments["ranks"]]
    parser = launch_command_parser()
    args = parser.parse_args(words + ["script.py"])
    args, defaults, precision_from_file = _validate_launch_command(args)
    if args.use_deepspeed:  # as launch_command does
        fields = list(defaults.deepspeed_config) + ["mixed_precision"] * precision_from_file
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    environment = exported(args)
    result = {"num_processes": args.num_processes, "environment": environment}
    if args.use_fsdp:
        result["fsdp"] = plugin_of(environment)
    return result


def main() -> None:
    for name in list(os.environ):
        if name.startswith(PREFIXES):
            del os.environ[name]
    os.environ["HF_HOME"] = str(HERE / "nowhere")
    os.chdir(CORPUS)
    golden = {"accelerate": accelerate.__version__, "files": {}}
    for path in sorted(CORPUS.iterdir()):
        if not is_valid_accelerate(path):
            continue
        try:
            golden["files"][path.name] = read(path)
        except (Exception, SystemExit) as error:  # what it refuses is recorded, too
            golden["files"][path.name] = {"refused": f"{type(error).__name__}: {error}"}
    target = HERE / "accelerate_golden.json"
    target.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    print(f"{target}: {len(golden['files'])} files")


if __name__ == "__main__":
    main()
