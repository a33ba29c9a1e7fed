#include "embedding/token_source.h"

#include <algorithm>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

bool is_left_out(std::int32_t target) { return target == -1 || target == -100; }

}  // namespace

void TokenSource::give(std::int64_t first, GivenTokens tokens) {
  require(tokens.inputs.size() == tokens.targets.size() &&
              tokens.inputs.size() % static_cast<std::size_t>(sequence_length_) == 0,
          ErrorCode::kConfig, "the data have ", tokens.inputs.size(), " inputs and ",
          tokens.targets.size(), " targets; a sample has ", sequence_length_, " of each");
  const auto check = [&](const std::vector<std::int32_t>& values, const char* what,
                         bool is_target) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int32_t value = values[i];
      if ((value >= 0 && value < vocab_size_) || (is_target && is_left_out(value))) continue;
      fail(ErrorCode::kConfig, "sample ", first + static_cast<std::int64_t>(i) / sequence_length_,
           " of the data has the ", what, " ", value, " at position ",
           static_cast<std::int64_t>(i) % sequence_length_, ", and the model's vocabulary has ",
           vocab_size_, " tokens",
           is_target ? "; -100 stands for a target that does not count" : "");
    }
  };
  check(tokens.inputs, "input", false);
  check(tokens.targets, "target", true);
  first_ = first;
  tokens_ = std::move(tokens);
}

std::int64_t TokenSource::samples() const {
  return static_cast<std::int64_t>(tokens_.inputs.size()) / sequence_length_;
}

std::int64_t TokenSource::fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                               TensorView targets) const {
  require(first >= first_ && first + micro_batch <= first_ + samples(), ErrorCode::kInvalidArgument,
          "samples [", first, ", ", first + micro_batch, ") are asked for, and [", first_, ", ",
          first_ + samples(), ") were given");
  const std::int64_t begin = (first - first_) * sequence_length_;
  const std::int64_t numel = micro_batch * sequence_length_;
  std::copy_n(tokens_.inputs.begin() + begin, numel, inputs.as<std::int32_t>());
  const std::int32_t* const given = tokens_.targets.data() + begin;
  std::copy_n(given, numel, targets.as<std::int32_t>());
  return numel - std::count_if(given, given + numel, is_left_out);
}

}  // namespace tessera::cli
