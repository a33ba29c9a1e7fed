#include "optimizer_names.h"

#include <algorithm>
#include <string_view>

#include "document.h"
#include "tessera/core/error.h"
#include "tessera/core/text.h"

namespace tessera::compat {
namespace {

constexpr std::string_view kPaged =
    "its state is not paged: it stays on the device, or with --offload-optimizer host on the host";
constexpr std::string_view kEightBitAo =
    "moments have bitsandbytes' codes of 8 bits, not those of torchao";
constexpr std::string_view kLionState =
    "the momentum has 32 bits, 4 bytes of a parameter where bitsandbytes has about 1";

/// A name of Transformers' Trainer. Without `ours` it is refused.
struct TrainerOptimizer {
  std::string_view theirs;
  std::string_view ours{};
  std::string_view note{};     ///< of what is taken: how it is different
  std::string_view nearest{};  ///< of what is refused
};

constexpr TrainerOptimizer kTrainerOptimizers[] = {
    {"adamw_torch", "adamw"},
    {"adamw_torch_fused", "adamw"},
    {"adamw_torch_xla", "adamw"},
    {"adamw_torch_npu_fused", "adamw"},
    {"adamw_apex_fused", "adamw"},
    {"adamw_hf", "adamw"},
    {"paged_adamw", "adamw", kPaged},
    {"paged_adamw_32bit", "adamw", kPaged},
    {"adamw_8bit", "adamw8bit"},
    {"adamw_bnb_8bit", "adamw8bit"},
    {"paged_adamw_8bit", "adamw8bit", kPaged},
    {"adamw_torch_8bit", "adamw8bit", kEightBitAo},
    {"lion_32bit", "lion"},
    {"paged_lion", "lion", kPaged},
    {"paged_lion_32bit", "lion", kPaged},
    {"lion_8bit", "lion", kLionState},
    {"paged_lion_8bit", "lion", kLionState},
    {"adafactor", "adafactor"},
    {.theirs = "adamw_torch_4bit", .nearest = "adamw8bit"},
    {.theirs = "adamw_anyprecision", .nearest = "adamw, or adamw8bit for less memory"},
    {.theirs = "adagrad", .nearest = "adamw or sgd"},
    {.theirs = "ademamix", .nearest = "adamw"},
    {.theirs = "ademamix_8bit", .nearest = "adamw8bit"},
    {.theirs = "paged_ademamix_32bit", .nearest = "adamw"},
    {.theirs = "paged_ademamix_8bit", .nearest = "adamw8bit"},
    {.theirs = "rmsprop", .nearest = "adamw with --beta1 0"},
    {.theirs = "rmsprop_bnb", .nearest = "adamw with --beta1 0"},
    {.theirs = "rmsprop_bnb_8bit", .nearest = "adamw8bit with --beta1 0"},
    {.theirs = "rmsprop_bnb_32bit", .nearest = "adamw with --beta1 0"},
    {.theirs = "galore_adamw", .nearest = "adamw8bit, or --lora"},
    {.theirs = "galore_adamw_8bit", .nearest = "adamw8bit, or --lora"},
    {.theirs = "galore_adafactor", .nearest = "adafactor, or --lora"},
    {.theirs = "galore_adamw_layerwise", .nearest = "adamw8bit, or --lora"},
    {.theirs = "galore_adamw_8bit_layerwise", .nearest = "adamw8bit, or --lora"},
    {.theirs = "galore_adafactor_layerwise", .nearest = "adafactor, or --lora"},
    {.theirs = "lomo", .nearest = "sgd with --momentum 0"},
    {.theirs = "adalomo", .nearest = "adamw8bit"},
    {.theirs = "grokadamw", .nearest = "adamw"},
    {.theirs = "schedule_free_radam", .nearest = "adamw"},
    {.theirs = "schedule_free_adamw", .nearest = "adamw"},
    {.theirs = "schedule_free_sgd", .nearest = "sgd"},
    {.theirs = "apollo_adamw", .nearest = "adamw8bit, or --lora"},
    {.theirs = "apollo_adamw_layerwise", .nearest = "adamw8bit, or --lora"},
    {.theirs = "stable_adamw", .nearest = "adamw with --clip-norm"},
};

const TrainerOptimizer* trainer_optimizer(const std::string& theirs) {
  const auto* const row =
      std::ranges::find(kTrainerOptimizers, lowercase(theirs), &TrainerOptimizer::theirs);
  return row == std::end(kTrainerOptimizers) ? nullptr : row;
}

}  // namespace

std::string optimizer_name(const std::string& theirs) {
  const TrainerOptimizer* const row = trainer_optimizer(theirs);
  if (row == nullptr) return theirs;
  require(!row->ours.empty(), ErrorCode::kConfig, "there is no optimizer '", row->theirs,
          "'; the nearest is ", row->nearest);
  return std::string(row->ours);
}

std::string optimizer_note(const std::string& theirs) {
  const TrainerOptimizer* const row = trainer_optimizer(theirs);
  if (row == nullptr || row->note.empty()) return "";
  return concat("'", row->theirs, "' is --optimizer ", row->ours, ": ", row->note);
}

}  // namespace tessera::compat
