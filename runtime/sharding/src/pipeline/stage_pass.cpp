#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/sharding/pipeline.h"

namespace tessera {
namespace {

constexpr std::array kLetters{
    std::pair{PassKind::kForward, 'F'}, std::pair{PassKind::kBackward, 'B'},
    std::pair{PassKind::kBackwardInput, 'I'}, std::pair{PassKind::kBackwardWeight, 'W'}};

char letter_of(PassKind kind) {
  for (const auto& [of, letter] : kLetters) {
    if (of == kind) return letter;
  }
  return '?';
}

/// How far a stage is, in the order of its rank: micro-steps, of backwards those before which all
/// are over.
struct StageProgress {
  std::set<int> forwards{};
  int inputs = 0;     ///< gradients of its input
  int gradients = 0;  ///< gradients of its weights
};

class Check {
 public:
  explicit Check(const PipelineShape& shape)
      : shape_(shape), stages_(static_cast<std::size_t>(shape.stages)) {}

  void add(std::size_t rank, const StagePass& pass) {
    if (pass.stage < 0 || pass.stage >= shape_.stages) {
      refuse(rank, pass, concat("there are ", shape_.stages, " stages"));
    }
    if (shape_.rank_of(pass.stage) != static_cast<int>(rank)) {
      refuse(rank, pass, concat("its stage is on pipeline rank ", shape_.rank_of(pass.stage)));
    }
    if (pass.micro_step < 0 || pass.micro_step >= shape_.micro_steps) {
      refuse(rank, pass, concat("a step has ", shape_.micro_steps, " micro-steps"));
    }
    StageProgress& stage = stages_[static_cast<std::size_t>(pass.stage)];
    if (pass.kind == PassKind::kForward) {
      if (!stage.forwards.insert(pass.micro_step).second) refuse(rank, pass, "it comes twice");
      return;
    }
    if (!shape_.has_backward(pass.stage)) {
      refuse(rank, pass, "its stage has no backward");
    }
    if (pass.kind == PassKind::kBackwardWeight) {
      if (pass.micro_step >= stage.inputs)
        refuse(rank, pass, "its first part, I, is not before it");
    } else {
      if (!stage.forwards.contains(pass.micro_step)) {
        refuse(rank, pass, "its forward is not before it");
      }
      require_next(rank, pass, stage.inputs++);
    }
    if (pass.kind != PassKind::kBackwardInput) require_next(rank, pass, stage.gradients++);
  }

  void finish() const {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const StageProgress& stage = stages_[s];
      const bool has_backward = shape_.has_backward(static_cast<int>(s));
      require(std::ssize(stage.forwards) == shape_.micro_steps, ErrorCode::kConfig, "stage ", s,
              " has forwards of ", stage.forwards.size(), " of ", shape_.micro_steps,
              " micro-steps");
      require(!has_backward || stage.gradients == shape_.micro_steps, ErrorCode::kConfig, "stage ",
              s, " has gradients of ", stage.gradients, " of ", shape_.micro_steps,
              " micro-steps; of a backward in two passes, I and W, both are needed");
    }
  }

 private:
  /// Gradients are added up in the order of micro-steps, so that all orders give the same bits.
  static void require_next(std::size_t rank, const StagePass& pass, int next) {
    if (pass.micro_step == next) return;
    refuse(rank, pass,
           pass.micro_step < next
               ? std::string("it comes twice")
               : concat("backwards of a stage are in the order of micro-steps, and that of ", next,
                        " is to come"));
  }
  [[noreturn]] static void refuse(std::size_t rank, const StagePass& pass, const std::string& why) {
    fail(ErrorCode::kConfig, "pipeline rank ", rank, ": pass ", to_string(pass), ": ", why);
  }

  const PipelineShape& shape_;
  std::vector<StageProgress> stages_;
};

}  // namespace

std::string to_string(const StagePass& pass) {
  return concat(pass.stage, letter_of(pass.kind), pass.micro_step);
}

StagePass parse_stage_pass(std::string_view text) {
  StagePass pass;
  const char* const end = text.data() + text.size();
  const auto stage = std::from_chars(text.data(), end, pass.stage);
  bool known = stage.ec == std::errc() && stage.ptr != end && pass.stage >= 0;
  if (known) {
    known = false;
    for (const auto& [kind, letter] : kLetters) {
      if (*stage.ptr == letter) pass.kind = kind, known = true;
    }
    const auto micro_step = std::from_chars(stage.ptr + 1, end, pass.micro_step);
    known = known && micro_step.ec == std::errc() && micro_step.ptr == end && pass.micro_step >= 0;
  }
  require(known, ErrorCode::kConfig, "'", text,
          "' is no pass; one is a stage, F, B, I or W, and a micro-step, like 2F0");
  return pass;
}

void check_passes(const std::vector<std::vector<StagePass>>& passes, const PipelineShape& shape) {
  require(std::ssize(passes) == shape.ranks, ErrorCode::kConfig, "passes of ", passes.size(),
          " pipeline ranks are given, and there are ", shape.ranks);
  Check check(shape);
  for (std::size_t r = 0; r < passes.size(); ++r) {
    for (const StagePass& pass : passes[r]) check.add(r, pass);
  }
  check.finish();
}

}  // namespace tessera
