// AdamW (Loshchilov and Hutter 2019), as torch.optim.AdamW computes it:
//   g = gradient_scale * gradient;  p -= lr * weight_decay * p
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// 28 bytes of traffic per element with fp32 gradients: four reads, three writes.
//
// See update_rules.h, which includes this.
struct AdamW {
  static constexpr Hyperparameter kHyperparameters[] = {
      {.name = "beta1", .value = 0.9, .below = 1.0, .meaning = "decay of the first moment"},
      {.name = "beta2", .value = 0.95, .below = 1.0, .meaning = "decay of the second moment"},
      {.name = "epsilon", .value = 1e-8, .meaning = "added to the root of the second moment"}};
  static constexpr OptimizerState kStates[] = {{"first-moment"}, {"second-moment"}};
  static constexpr int kStateCount = 2;
  static constexpr bool kIsCoded = false;

  enum Scalar : int {
    kLearningRate,
    kStepSize,            ///< lr / (1 - beta1^t)
    kInverseCorrection2,  ///< 1 / sqrt(1 - beta2^t)
    kBeta1,
    kBeta2,
    kEpsilon
  };

  static std::int64_t count_states(std::span<const double>) { return kStateCount; }
  static void check(std::span<const double>) {}
  static OptimizerScalars make_scalars(std::span<const double> values, float learning_rate,
                                       std::int64_t step) {
    const auto beta1 = static_cast<float>(values[0]), beta2 = static_cast<float>(values[1]);
    const auto t = static_cast<double>(step);
    const double correction1 = 1.0 - std::pow(static_cast<double>(beta1), t);
    const double correction2 = 1.0 - std::pow(static_cast<double>(beta2), t);
    OptimizerScalars scalars{};
    scalars[kLearningRate] = learning_rate;
    scalars[kStepSize] = static_cast<float>(static_cast<double>(learning_rate) / correction1);
    scalars[kInverseCorrection2] = static_cast<float>(1.0 / std::sqrt(correction2));
    scalars[kBeta1] = beta1;
    scalars[kBeta2] = beta2;
    scalars[kEpsilon] = static_cast<float>(values[2]);
    return scalars;
  }

  static constexpr Optimizer kRow{.name = "adamw",
                                  .title = "AdamW (Loshchilov and Hutter 2019)",
                                  .hyperparameters = kHyperparameters,
                                  .weight_decay = 0.1,
                                  .states = kStates,
                                  .count_states = count_states,
                                  .check = check,
                                  .make_scalars = make_scalars};

  struct Factors {
    float gradient_scale;
    float decay;  ///< 1 - lr * weight_decay
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float inverse_correction2;
    float epsilon;
    float step_size;
  };
  static TESSERA_UPDATE_RULE Factors factors(const float* scalars, float gradient_scale,
                                             const SegmentRates& rates) {
    const float learning_rate = rates.learning_rate_scale * scalars[kLearningRate];
    // The product of two fp32 is exact in fp64.
    const double decay =
        1.0 - static_cast<double>(learning_rate) * static_cast<double>(rates.weight_decay);
    return {gradient_scale,
            static_cast<float>(decay),
            scalars[kBeta1],
            1.0F - scalars[kBeta1],
            scalars[kBeta2],
            1.0F - scalars[kBeta2],
            scalars[kInverseCorrection2],
            scalars[kEpsilon],
            rates.learning_rate_scale * scalars[kStepSize]};
  }

  template <typename Math, typename V = typename Math::Value>
  static TESSERA_UPDATE_RULE void update(const Factors& f, V gradient, V& master,
                                         V (&states)[kStateCount]) {
    V &m = states[0], &v = states[1];
    const V g = Math::mul(f.gradient_scale, gradient);
    const V decayed = Math::mul(f.decay, master);
    m = Math::mul_add(f.beta1, m, Math::mul(f.one_minus_beta1, g));
    v = Math::mul_add(f.beta2, v, Math::mul(Math::mul(f.one_minus_beta2, g), g));
    const V denominator = Math::mul_add(f.inverse_correction2, Math::sqrt(v), f.epsilon);
    master = Math::mul_add(-f.step_size, Math::div(m, denominator), decayed);
  }
};
