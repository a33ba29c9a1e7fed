// Lion (Chen et al. 2023, arXiv 2302.06675):
//   g = gradient_scale * gradient;  c = beta1 m + (1 - beta1) g
//   p -= lr * (sign(c) + weight_decay * p)
//   m = beta2 m + (1 - beta2) g
// The defaults are those of bitsandbytes and DeepSpeed. 20 bytes of traffic per element with fp32
// gradients: three reads, two writes.
//
// See update_rules.h, which includes this.
struct Lion {
  static constexpr Hyperparameter kHyperparameters[] = {
      {.name = "beta1", .value = 0.9, .below = 1.0, .meaning = "share of the momentum in a step"},
      {.name = "beta2", .value = 0.99, .below = 1.0, .meaning = "decay of the momentum"}};
  static constexpr OptimizerState kStates[] = {{"momentum"}};
  static constexpr std::string_view kOtherNames[] = {"lion_32bit"};
  static constexpr int kStateCount = 1;
  static constexpr bool kIsCoded = false;

  enum Scalar : int { kLearningRate, kBeta1, kBeta2 };

  static std::int64_t count_states(std::span<const double>) { return kStateCount; }
  static void check(std::span<const double>) {}
  static OptimizerScalars make_scalars(std::span<const double> values, float learning_rate,
                                       std::int64_t) {
    OptimizerScalars scalars{};
    scalars[kLearningRate] = learning_rate;
    scalars[kBeta1] = static_cast<float>(values[0]);
    scalars[kBeta2] = static_cast<float>(values[1]);
    return scalars;
  }

  static constexpr Optimizer kRow{.name = "lion",
                                  .title = "Lion (Chen et al. 2023)",
                                  .other_names = kOtherNames,
                                  .hyperparameters = kHyperparameters,
                                  .weight_decay = 0.0,
                                  .states = kStates,
                                  .count_states = count_states,
                                  .check = check,
                                  .make_scalars = make_scalars};

  struct Factors {
    float gradient_scale;
    float decay;  ///< 1 - lr * weight_decay
    float learning_rate;
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
  };
  static TESSERA_UPDATE_RULE Factors factors(const float* scalars, float gradient_scale,
                                             const SegmentRates& rates) {
    const float learning_rate = rates.learning_rate_scale * scalars[kLearningRate];
    // The product of two fp32 is exact in fp64.
    const double decay =
        1.0 - static_cast<double>(learning_rate) * static_cast<double>(rates.weight_decay);
    return {gradient_scale,        static_cast<float>(decay), learning_rate,
            scalars[kBeta1],       1.0F - scalars[kBeta1],    scalars[kBeta2],
            1.0F - scalars[kBeta2]};
  }

  template <typename Math, typename V = typename Math::Value>
  static TESSERA_UPDATE_RULE void update(const Factors& f, V gradient, V& master,
                                         V (&states)[kStateCount]) {
    V& m = states[0];
    const V g = Math::mul(f.gradient_scale, gradient);
    const V c = Math::mul_add(f.beta1, m, Math::mul(f.one_minus_beta1, g));
    master = Math::mul_add(-f.learning_rate, Math::sign(c), Math::mul(f.decay, master));
    m = Math::mul_add(f.beta2, m, Math::mul(f.one_minus_beta2, g));
  }
};
