#include "forward_outputs.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "tessera/core/error.h"
#include "tessera/trainer/gather.h"

namespace tessera {

void ForwardOutputs::add(std::int64_t first, const Shape& shape, std::span<const float> values) {
  const std::lock_guard lock(mutex_);
  require(shape.numel() % micro_batch_ == 0, ErrorCode::kInvalidArgument,
          "forward: the last layer returned ", shape, " for ", micro_batch_,
          " samples, which is not as much for each");
  if (is_here_.empty()) {
    shape_ = shape;
    values_.resize(static_cast<std::size_t>(samples_ * of_sample()));
    is_here_.resize(static_cast<std::size_t>(samples_));
  }
  const std::int64_t count = std::min(micro_batch_, samples_ - first);
  if (count <= 0) return;
  std::copy_n(values.begin(), count * of_sample(), values_.begin() + first * of_sample());
  std::fill_n(is_here_.begin() + first, count, char{1});
}

void ForwardOutputs::exchange(ProcessGroup& leaders) {
  const std::string own(reinterpret_cast<const char*>(values_.data()),
                        values_.size() * sizeof(float));
  const std::vector<std::string> values = gather(leaders, own);
  const std::vector<std::string> here =
      gather(leaders, std::string(is_here_.begin(), is_here_.end()));
  const std::size_t bytes = static_cast<std::size_t>(of_sample()) * sizeof(float);
  for (std::size_t process = 0; process < values.size(); ++process) {
    for (std::size_t sample = 0; sample < here[process].size(); ++sample) {
      if (here[process][sample] == 0) continue;
      std::memcpy(reinterpret_cast<char*>(values_.data()) + sample * bytes,
                  values[process].data() + sample * bytes, bytes);
    }
  }
}

Shape ForwardOutputs::shape() const {
  if (shape_.rank() == 0 || shape_[0] % micro_batch_ != 0) return {samples_, of_sample()};
  return shape_.with(0, shape_[0] / micro_batch_ * samples_);
}

}  // namespace tessera
