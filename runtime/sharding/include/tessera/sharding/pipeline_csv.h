#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/sharding/pipeline.h"
#include "tessera/sharding/schedule.h"

// Pipeline schedules as files of comma-separated values: PyTorch's form "compute_only", of
// torch.distributed.pipelining. A row for each pipeline rank, a pass in each cell, like 2F0 or 3B1
// (see to_string(const StagePass&)); an empty cell is a moment in which the rank waits.
namespace tessera {

/// The passes of all pipeline ranks. Two passes that PyTorch overlaps, "(0F1;3B0)OVERLAP_F_B", are
/// one after the other. Throws Error{kConfig} that names `file`, row and column.
std::vector<std::vector<StagePass>> parse_pipeline_csv(std::string_view text,
                                                       std::string_view file);

/// Inverse of it. Empty cells are where a rank would wait if every pass took equally long and
/// messages no time. Throws Error{kConfig} if the passes cannot go on.
std::string pipeline_csv(const std::vector<std::vector<StagePass>>& passes,
                         const PipelineShape& shape);
/// A table of the step that a schedule is a part of: of all pipeline ranks.
std::string pipeline_csv(const Schedule& schedule);

}  // namespace tessera
