#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "foreign/key_table.h"
#include "foreign/known_settings.h"

namespace tessera::foreign {

/// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks: fills
/// in what is absent or "auto". Returns the number of ranks: `ranks`, or if that is nothing, the
/// one that follows from three explicit sizes.
std::int64_t translate_batch(Section& top, std::optional<std::int64_t> ranks,
                             const KnownSettings& known);

/// Translates the sections "optimizer" and "scheduler" of `top`.
void translate_optimizer(Section& top, const std::string& file, const KnownSettings& known,
                         ConfigTranslation& translation);
/// The second of them; `rate` is the optimizer's learning rate, `optimizer` its params or null.
void translate_scheduler(Section& top, Section* optimizer, double rate, const std::string& file,
                         const KnownSettings& known, ConfigTranslation& translation);

/// Translates the sections "tensorboard" and "csv_monitor".
void translate_monitors(Section& top, const std::string& file, const KnownSettings& known,
                        ConfigTranslation& translation);

/// The value of "type", which must be one of `ours`; `others` are DeepSpeed's, for a good message.
std::string read_type(const Section& section, const std::vector<std::string>& ours,
                      const std::vector<std::string>& others);

/// The keys of "params", perhaps none.
const Node& params_of(const Section& section);

/// What DeepSpeed takes for a learning rate that is absent.
inline constexpr double kDefaultLearningRate = 1e-3;

}  // namespace tessera::foreign
