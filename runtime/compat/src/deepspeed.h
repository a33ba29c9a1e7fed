#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "document.h"
#include "key_table.h"
#include "known_settings.h"
#include "tessera/compat/config_sources.h"

namespace tessera::compat {

/// The values that Accelerate puts in place of "auto": its launcher's variables say them, if they
/// are there.
struct AutoValues {
  std::optional<std::int64_t> stage;
  std::optional<std::int64_t> accumulate;
  std::optional<double> clip_norm;
  std::string precision{};  ///< "no", "bf16", "fp16" or "fp8"
  std::string offload_optimizer{};
  std::string offload_path{};  ///< where that is nvme
  std::string offload_parameters{};
  std::string parameters_path{};      ///< where that is nvme
  std::optional<bool> whole_model{};  ///< whether to gather it to save it
};

/// Accelerate's additions to a file of DeepSpeed's that it names.
struct ThroughAccelerate {
  std::int64_t ranks;  ///< DeepSpeed's own files do not say
  const AutoValues& autos;
};

/// Adds what DeepSpeed's keys in `document` mean here. `accelerate`: nothing if the file stands
/// alone.
void translate_deepspeed(const Document& document, std::optional<ThroughAccelerate> accelerate,
                         const KnownSettings& known, ConfigTranslation& translation);

/// Our strategy for a ZeRO stage from 0 to 3.
const char* strategy_of_stage(std::int64_t stage);

/// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x the ranks of a
/// stage: fills in what is absent or "auto". Returns the number of ranks of a stage. `ranks`: of
/// all stages; if that is nothing, the one that follows from three explicit sizes. `accumulate`:
/// what "auto" stands for, if it is known.
std::int64_t translate_batch(Section& top, std::optional<std::int64_t> ranks,
                             std::optional<std::int64_t> accumulate, const KnownSettings& known);

/// A section {"type": ..., "params": {...}}, opened.
struct TypedSection {
  Section section;
  std::string type;  ///< as we spell it
  Section params;
};
/// Opens "optimizer" or "scheduler", if `top` has keys in it and its type is not refused.
std::optional<TypedSection> open_optimizer(Section& top);
std::optional<TypedSection> open_scheduler(Section& top);

/// The peak of the learning rate. Both sections may say it, so it is decided once, before either of
/// them reports it.
struct PeakRate {
  bool by_scheduler = false;  ///< warmup_max_lr or its default decides, else the optimizer's lr
  double in_file = 0;         ///< what the file says; --learning-rate where it leaves it to that
  double value = 0;           ///< of the run, in which flags win
};
PeakRate decide_peak(TypedSection* optimizer, TypedSection* scheduler, const KnownSettings& known);

/// `clips`: gradient_clipping is there, and decides.
void translate_optimizer(TypedSection& optimizer, const PeakRate& peak, bool clips);
/// Whether the optimizer's params have the norm by which gradients are clipped.
bool has_norm_in_optimizer(const Section& top);
void translate_scheduler(TypedSection& scheduler, const PeakRate& peak, const KnownSettings& known);

/// Translates the sections "tensorboard" and "csv_monitor".
void translate_monitors(Section& top, const KnownSettings& known);

/// DeepSpeed's value for a learning rate that is absent.
inline constexpr double kDefaultLearningRate = 1e-3;

}  // namespace tessera::compat
