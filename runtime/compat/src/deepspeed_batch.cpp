#include <algorithm>

#include "deepspeed.h"

namespace tessera::compat {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulate = "gradient_accumulation_steps";

class Batch {
 public:
  Batch(Section& top, std::optional<std::int64_t> ranks, std::optional<std::int64_t> accumulate,
        const KnownSettings& known)
      : top_(top),
        known_(known),
        stages_(std::max<std::int64_t>(1, known.override_integer("pipeline").value_or(1))),
        ranks_(ranks) {
    train_ = top_.integer(kTrain);
    micro_ = known.override_integer("micro_batch");
    if (!micro_) micro_ = top_.integer(kMicro);
    accumulate_ = known.override_integer("accumulate");
    if (!accumulate_ && top_.is_auto(kAccumulate)) {
      accumulate_ = accumulate;
      exported_ = accumulate.has_value();
    }
    if (!accumulate_) accumulate_ = top_.integer(kAccumulate);
  }

  std::int64_t resolve() {
    top_.need_all_of({kTrain, kMicro, kAccumulate});
    if (!train_ && !micro_ && !top_.has(kTrain) && !top_.has(kMicro)) {
      top_.refuse_for({top_.with(kMicro, known_.integer("micro_batch"))}, kTrain,
                      "Either train_batch_size or train_micro_batch_size_per_gpu needs to be ",
                      "provided; set one of them, or give --micro-batch");
    }
    find_ranks();
    find_sizes();
    check();
    report();
    return data_ranks();
  }

 private:
  void find_ranks() {
    if (ranks_) return;
    if (train_ && micro_ && accumulate_ && *train_ % product({*micro_, *accumulate_}) == 0) {
      ranks_ = product({*train_ / product({*micro_, *accumulate_}), stages_});
      top_.derive(kTrain, "ranks", *ranks_,
                  concat(*train_, " samples per step / ", *micro_, " per micro-step / ",
                         *accumulate_, " micro-steps; DeepSpeed takes the ranks from its launcher"),
                  Told::kByRun);
    } else {
      ranks_ = known_.integer("ranks");
    }
  }

  /// Ranks that have samples of their own: those of one stage.
  std::int64_t data_ranks() const { return std::max<std::int64_t>(1, *ranks_ / stages_); }

  /// "8 ranks", "4 ranks of a stage".
  std::string ranks_in_words() const {
    return concat(data_ranks(), " ranks", stages_ > 1 ? " of a stage" : "");
  }

  /// `whole` divided by two factors, which must leave no rest.
  std::int64_t divided(std::int64_t whole, std::int64_t factor, const char* name) const {
    const std::int64_t divisor = product({factor, data_ranks()});
    if (whole % divisor != 0) {
      top_.refuse(kTrain, whole, " samples cannot be divided by ", name, " ", factor, " x ",
                  ranks_in_words(), "; change one of them, or give --ranks");
    }
    return whole / divisor;
  }

  void find_sizes() {
    if (micro_ && !accumulate_) {
      accumulate_ = train_ ? divided(*train_, *micro_, kMicro) : known_.integer("accumulate");
    } else if (!micro_) {
      const std::int64_t steps = accumulate_.value_or(known_.integer("accumulate"));
      accumulate_ = steps;
      micro_ = train_ ? divided(*train_, steps, kAccumulate) : known_.integer("micro_batch");
    }
  }

  void check() const {
    const std::int64_t whole = product({*micro_, *accumulate_, data_ranks()});
    if (!train_ || *train_ == whole) return;
    top_.refuse_for({top_.with(kTrain, whole)}, kTrain,
                    "Check batch related parameters. train_batch_size is not equal to ",
                    "micro_batch_per_gpu * gradient_acc_step * world_size ", *train_,
                    " != ", *micro_, " * ", *accumulate_, " * ", data_ranks(), "; set it to ",
                    whole, ", or change --micro-batch, --accumulate or --ranks");
  }

  void report() {
    report_size(kMicro, "micro_batch", *micro_);
    report_size(kAccumulate, "accumulate", *accumulate_);
    if (top_.has(kTrain)) {
      top_.agree(kTrain, concat(product({*micro_, *accumulate_, data_ranks()}), " = ", *micro_,
                                " samples x ", *accumulate_, " micro-steps x ", ranks_in_words()));
    }
  }

  void report_size(const char* key, const char* setting, std::int64_t value) {
    if (exported_ && std::string_view(key) == kAccumulate) {
      top_.honour(key, setting, value, "\"auto\": is ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
    } else if (top_.is_auto(key)) {
      top_.honour(key, setting, value,
                  train_ ? "\"auto\": follows from train_batch_size"
                         : concat("\"auto\": is ", flag_name(setting)));
    } else {
      top_.set(key, setting, top_.integer(key).value_or(value), "",
               train_ ? "follows from train_batch_size" : "the default");
    }
  }

  Section& top_;
  const KnownSettings& known_;
  std::int64_t stages_;
  std::optional<std::int64_t> ranks_;
  std::optional<std::int64_t> train_;
  std::optional<std::int64_t> micro_;
  std::optional<std::int64_t> accumulate_;
  bool exported_ = false;  // a variable fills in "auto"
};

}  // namespace

std::int64_t translate_batch(Section& top, std::optional<std::int64_t> ranks,
                             std::optional<std::int64_t> accumulate, const KnownSettings& known) {
  return Batch(top, ranks, accumulate, known).resolve();
}

}  // namespace tessera::compat
