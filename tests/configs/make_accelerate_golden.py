#!/usr/bin/env python3
"""Records what Accelerate itself makes of the valid Accelerate files in corpus/.

    python3 -m venv venv && venv/bin/pip install accelerate torch
    venv/bin/python tests/configs/make_accelerate_golden.py

Each file goes the way that `accelerate launch --config_file FILE` goes: its parser, its merging of
file and flags, its choice of a launcher, the number of processes and the environment that this one
would start them with, the plugin of FSDP or Megatron-LM that a worker builds from that, and its check of the mesh.
The result is accelerate_golden.json; golden_test.cpp holds our reader to it. No GPU is needed.
"""

import json
import os
import pathlib
import types

import accelerate
from accelerate.commands import launch
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DistributedType
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin, MegatronLMPlugin
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
)

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_")
# Files at which Accelerate itself stops with an error of Python, not with a message.
CRASHES = ("accelerate_nulls.yaml", "accelerate_precision_no_without_quotes.yaml")


def is_valid_accelerate(path: pathlib.Path) -> bool:
    path_of_expected = path.with_name(path.name + ".expected.json")
    if not path.name.startswith("accelerate_") or not path_of_expected.exists():
        return False
    expected = json.loads(path_of_expected.read_text())
    # With "launch", somebody else has started the processes, and `accelerate launch` has no part.
    return expected.get("dialect") == "Accelerate" and "launch" not in expected


class Recorder:
    """Stands in for the launchers, so that launch_command itself picks the one that it would use."""

    def __init__(self):
        self.result = {}
        for name in ("deepspeed", "multi_gpu", "simple"):
            setattr(launch, f"{name}_launcher", getattr(self, name))
        for name in ("tpu", "tpu_pod", "sagemaker"):
            setattr(launch, f"{name}_launcher", self.unexpected)

    def record(self, launcher: str, args, processes: int, environment: dict) -> None:
        environment = {k: v for k, v in sorted(environment.items()) if k.startswith(PREFIXES)}
        self.result = {"launcher": launcher, "processes": processes, "environment": environment}
        if args.use_fsdp:
            self.result["fsdp"] = plugin_of(environment)
        if args.use_megatron_lm:
            self.result["megatron"] = megatron_of(environment)
        if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true":
            check_mesh(environment, processes, args.use_fsdp)

    def deepspeed(self, args) -> None:
        _, environment = prepare_deepspeed_cmd_env(args)
        self.record("deepspeed", args, args.num_processes, environment)

    def multi_gpu(self, args) -> None:
        environment = prepare_multi_gpu_env(args)
        processes = int(args.nproc_per_node) * int(args.num_machines)
        self.record("torchrun", args, processes, environment)

    def simple(self, args) -> None:
        """One process that knows of no other, unless mpirun is to start them."""
        command, environment = prepare_simple_launcher_cmd_env(args)
        with_mpirun = args.mpirun_hostfile is not None
        processes = args.num_processes if with_mpirun else 1
        self.record("mpirun" if with_mpirun else "simple", args, processes, environment)

    def unexpected(self, *args) -> None:
        raise AssertionError("no file of the corpus asks for this launcher")


def plugin_of(environment: dict) -> dict:
    """The choices of the FSDP plugin that a worker would build from that environment."""
    before = dict(os.environ)
    os.environ.update(environment)
    precision = environment["ACCELERATE_MIXED_PRECISION"]
    # These two ask for a GPU at once; they say nothing that is recorded here.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = os.environ["FSDP_SYNC_MODULE_STATES"] = "false"
    try:
        plugin = FullyShardedDataParallelPlugin()
        if precision != "no":  # as Accelerator does
            plugin.set_mixed_precision(precision)
        policy = plugin.mixed_precision_policy
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
            "forward_prefetch": plugin.forward_prefetch,
            "reduce_dtype": None if policy is None else str(policy.reduce_dtype),
        }
    finally:
        os.environ.clear()
        os.environ.update(before)


def megatron_of(environment: dict) -> dict:
    """What a worker's plugin would hand to Megatron-LM, as far as a file tells it."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        handed = MegatronLMPlugin().megatron_lm_default_args
        return {
            name: handed[name]
            for name in (
                "pipeline_model_parallel_size",
                "num_micro_batches",
                "clip_grad",
                "use_distributed_optimizer",
                "recompute_granularity",
                "optimizer_cpu_offload",
                "decoder_last_pipeline_num_layers",
            )
        }
    finally:
        os.environ.clear()
        os.environ.update(before)


def check_mesh(environment: dict, processes: int, fsdp: bool) -> None:
    """Raises what a worker's Accelerator raises; it stands in for one, which needs its processes."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        worker = types.SimpleNamespace(
            num_processes=processes,
            multi_device=not fsdp,
            is_fsdp2=fsdp and environment["FSDP_VERSION"] == "2",
            is_main_process=True,
            distributed_type=DistributedType.FSDP if fsdp else DistributedType.MULTI_GPU,
        )
        ParallelismConfig()._validate_accelerator(worker)
    finally:
        os.environ.clear()
        os.environ.update(before)


def read(path: pathlib.Path) -> dict:
    arguments = json.loads(path.with_name(path.name + ".expected.json").read_text()).get("arguments", {})
    words = ["--config_file", path.name]
    if "ranks" in arguments:
        words += ["--num_processes", arguments["ranks"]]
    if "precision" in arguments:
        words += ["--mixed_precision", arguments["precision"]]
    recorder = Recorder()
    launch.launch_command(launch.launch_command_parser().parse_args(words + ["script.py"]))
    return recorder.result


def refusal(path: pathlib.Path, error: BaseException) -> dict:
    """What Accelerate refuses is recorded, but a fault of this script ends it."""
    if type(error) not in (ValueError, SystemExit) and path.name not in CRASHES:
        raise error
    return {"refused": f"{type(error).__name__}: {error}"}


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
        except (Exception, SystemExit) as error:
            golden["files"][path.name] = refusal(path, error)
    target = HERE / "accelerate_golden.json"
    target.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    print(f"{target}: {len(golden['files'])} files")


if __name__ == "__main__":
    main()
