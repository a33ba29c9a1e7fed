#pragma once

#include <cstdint>
#include <string>

#include "deepspeed.h"
#include "document.h"
#include "key_table.h"
#include "known_settings.h"
#include "tessera/compat/config_file.h"
#include "tessera/compat/config_sources.h"

namespace tessera::compat {

/// Where the keys are from: a file says how many ranks there are, a launcher's environment does
/// not.
enum class AccelerateSource : std::uint8_t { kFile, kEnvironment };

/// Adds what Accelerate's keys in `document` mean here. Follows `deepspeed_config_file`, where
/// `autos` stands for "auto".
void translate_accelerate(const Document& document, AccelerateSource source,
                          const AutoValues& autos, const TranslationContext& context,
                          ConfigTranslation& translation);

/// Says what becomes of the keys of `top` that are for a launcher: machines, where they meet, and
/// GPUs. Without a launcher they have no effect, and machine_rank above 0 is refused. Returns the
/// number of machines.
std::int64_t translate_machines(Section& top, const std::string& path, std::int64_t ranks,
                                const LaunchFacts& launch);

/// The launcher's keys of an Accelerate file, with the lines.
LauncherKeys read_launcher_keys(const Document& document);

/// Translates the keys of an Accelerate file's deepspeed_config that names no file of DeepSpeed's.
void translate_deepspeed_section(Section& section, const KnownSettings& known);

/// Translates the keys of an Accelerate file's megatron_lm_config for that many ranks.
void translate_megatron_section(Section& section, std::int64_t ranks, const KnownSettings& known);

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
