#!/usr/bin/env python3
"""Records how Megatron-LM itself divides a model into pipeline stages.

    python3 -m venv venv && venv/bin/pip install torch && venv/bin/pip install --no-deps megatron-core
    venv/bin/python tests/configs/make_megatron_golden.py

The result is megatron_golden.json; megatron_test.cpp holds our reader to it. No GPU is needed.
"stages" has the blocks of each stage of a model of "layers" blocks, null where Megatron-LM refuses
the numbers. "layouts" has the layers of each stage of a --pipeline-model-parallel-layout, null
where it refuses the text.
"""

import json
import pathlib
import random
import warnings

import megatron.core.parallel_state as parallel_state
import torch
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

HERE = pathlib.Path(__file__).resolve().parent
LAYOUTS = [
    "Ett|ttL", "E|t*3|(t|)*5L", "Et*3|(tt|)*2,t*3|L", "E|(t|)*4L", "Ettt,|ttt|tt|ttL", "E|tt|L",
    "Et|(t*2|)*2,tL", "E(t|)*3tL", "(Ett|)*1ttL", "E|t*4|t*0L", "E|t*10|t*2L",
    "Ett|m|L", "Ett||ttL", "tt|ttL", "Ett|tt", "Ett|EttL", "EttL|tt", "Ett|xL", "E(tt|ttL", "",
]  # fmt: skip


def blocks_of_stages(layers, ranks, virtual, first, last):
    interleaved = virtual if virtual > 1 else None
    parallel_state.set_pipeline_model_parallel_world_size(ranks)
    parallel_state.set_virtual_pipeline_model_parallel_world_size(interleaved)
    try:
        config = TransformerConfig(
            num_layers=layers,
            hidden_size=8,
            num_attention_heads=1,
            pipeline_dtype=torch.float32,
            pipeline_model_parallel_size=ranks,
            virtual_pipeline_model_parallel_size=interleaved,
            num_layers_in_first_pipeline_stage=first,
            num_layers_in_last_pipeline_stage=last,
        )
        stages = [
            get_num_layers_to_build(config, vp_stage=stage if interleaved else None, pp_rank=rank)
            for stage in range(virtual)
            for rank in range(ranks)
        ]
    except (AssertionError, ValueError):
        return None
    # With two ranks it does not compare what is given with the layers of the model.
    return stages if sum(stages) == layers and min(stages) >= 0 else None


def layers_of_stages(layout):
    try:
        stages = PipelineParallelLayerLayout.parse_str_to_list(layout)
        blocks = sum(layer.name == "decoder" for stage in stages for layer in stage)
        PipelineParallelLayerLayout(layout, len(stages)).validate_layer_layout(blocks, None)
    except (AssertionError, IndexError):
        return None
    return [len(stage) for stage in stages]


def main() -> None:
    warnings.simplefilter("ignore")
    cases = [
        (layers, ranks, virtual, first, last)
        for layers in (4, 8, 12, 13)
        for ranks in (2, 3, 4)
        for virtual in (1, 2, 3)
        for first in (None, 0, 1, 2, 3, 4)
        for last in (None, 0, 1, 2, 3, 4)
    ]
    known = [(case, blocks_of_stages(*case)) for case in cases]
    even = [one for one in known if one[0][3] is None and one[0][4] is None]
    given = [one for one in known if one not in even]
    draw = random.Random(1)
    kept = even
    kept += draw.sample([one for one in given if one[1] is not None], 60)
    kept += draw.sample([one for one in given if one[1] is None], 30)
    names = ("layers", "ranks", "virtual", "first", "last")
    lines = [json.dumps({**dict(zip(names, case)), "stages": stages}) for case, stages in kept]
    layouts = [json.dumps({"layout": one, "stages": layers_of_stages(one)}) for one in LAYOUTS]
    (HERE / "megatron_golden.json").write_text(
        '{"stages": [\n' + ",\n".join(lines) + '\n], "layouts": [\n' + ",\n".join(layouts) + "\n]}\n"
    )


if __name__ == "__main__":
    main()
