#pragma once

#include <cstdint>

#include "key_table.h"

namespace tessera::compat {

// The keys of parallelism_config, as environments name them: ranks by axis.
inline constexpr const char* kReplicate = "parallelism_config_dp_replicate_size";
inline constexpr const char* kShard = "parallelism_config_dp_shard_size";
inline constexpr const char* kStages = "parallelism_config_pp_size";

/// An environment does not tell, and needs no check: a launcher has read the file.
inline constexpr std::int64_t kUnknownRanks = 0;

/// True if an axis of the mesh is refused: then nobody knows how many ranks it has.
bool is_axis_refused(const Section& parallelism);

/// Translates the number of stages that a key says, if it is there, for that many ranks.
void translate_stages(Section& section, std::string_view key, std::int64_t ranks);

/// Translates fsdp_config, and parallelism_config if there is one, for that many ranks on that many
/// machines.
void translate_fsdp(Section& fsdp, Section* parallelism, std::int64_t ranks, std::int64_t machines,
                    const KnownSettings& known);

}  // namespace tessera::compat
