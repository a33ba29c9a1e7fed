// SGD with momentum (Polyak 1964) or Nesterov's, as torch.optim.SGD computes it without dampening:
//   g = gradient_scale * gradient + weight_decay * p
//   b = momentum b + g
//   p -= lr * (nesterov ? g + momentum b : b)
// Without momentum b is g, and is not kept. 20 bytes of traffic per element with fp32 gradients
// (three reads, two writes), 12 without momentum.
//
// See update_rules.h, which includes this.
struct Sgd {
  static constexpr Hyperparameter kHyperparameters[] = {
      {.name = "momentum", .below = 1.0, .meaning = "decay of the sum of gradients; 0: not kept"},
      {.name = "nesterov", .is_flag = true, .meaning = "look ahead by one more step of momentum"}};
  static constexpr OptimizerState kStates[] = {{"momentum"}};
  static constexpr int kStateCount = 1;
  static constexpr bool kIsCoded = false;

  enum Scalar : int { kLearningRate, kMomentum, kNesterov };

  static std::int64_t count_states(std::span<const double> values) {
    return values[0] == 0.0 ? 0 : kStateCount;
  }
  static void check(std::span<const double> values) {
    require(values[0] > 0.0 || values[1] == 0.0, ErrorCode::kConfig,
            "sgd: nesterov needs a momentum above 0");
  }
  static OptimizerScalars make_scalars(std::span<const double> values, float learning_rate,
                                       std::int64_t) {
    OptimizerScalars scalars{};
    scalars[kLearningRate] = learning_rate;
    scalars[kMomentum] = static_cast<float>(values[0]);
    scalars[kNesterov] = static_cast<float>(values[1]);
    return scalars;
  }

  static constexpr Optimizer kRow{.name = "sgd",
                                  .title = "SGD, with momentum (Polyak 1964) or Nesterov's",
                                  .hyperparameters = kHyperparameters,
                                  .weight_decay = 0.0,
                                  .states = kStates,
                                  .states_optional = true,
                                  .count_states = count_states,
                                  .check = check,
                                  .make_scalars = make_scalars};

  struct Factors {
    float gradient_scale, weight_decay;
    float learning_rate, momentum;
    bool nesterov;
  };
  static TESSERA_UPDATE_RULE Factors factors(const float* scalars, float gradient_scale,
                                             const SegmentRates& rates) {
    return {gradient_scale, rates.weight_decay, rates.learning_rate_scale * scalars[kLearningRate],
            scalars[kMomentum], scalars[kNesterov] != 0.0F};
  }

  template <typename Math, typename V = typename Math::Value>
  static TESSERA_UPDATE_RULE void update(const Factors& f, V gradient, V& master,
                                         V (&states)[kStateCount]) {
    V& b = states[0];
    const V g = Math::mul_add(f.weight_decay, master, Math::mul(f.gradient_scale, gradient));
    b = Math::mul_add(f.momentum, b, g);
    const V direction = f.nesterov ? Math::mul_add(f.momentum, b, g) : b;
    master = Math::mul_add(-f.learning_rate, direction, master);
  }
};
