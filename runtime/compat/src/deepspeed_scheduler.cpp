#include "deepspeed.h"

namespace tessera::compat {
namespace {

class Scheduler {
 public:
  Scheduler(TypedSection& scheduler, const PeakRate& peak, const KnownSettings& known)
      : type_(scheduler.type),
        scheduler_(scheduler.section),
        params_(scheduler.params),
        peak_(peak),
        known_(known) {}

  void translate() {
    if (type_ == "WarmupLR") {
      warmup_lr();
    } else if (type_ == "WarmupDecayLR") {
      warmup_decay_lr();
    } else {
      warmup_cosine_lr();
    }
  }

 private:
  void warmup_lr() {
    reject({"total_num_steps", "warmup_min_ratio", "cos_min_ratio"});
    scheduler_.honour("type", "learning_rate_schedule", "constant");
    maximum();
    attempt([this] { warmup(known_.integer("steps")); });
    attempt([this] { start("warmup_min_lr"); });
  }

  void warmup_decay_lr() {
    reject({"warmup_min_ratio", "cos_min_ratio"});
    scheduler_.honour("type", "learning_rate_schedule", "linear");
    scheduler_.honour("type", "minimum_learning_rate", 0.0);
    maximum();
    attempt([this] { warmup(total()); });
    attempt([this] { start("warmup_min_lr"); });
  }

  void warmup_cosine_lr() {
    reject({"warmup_min_lr", "warmup_max_lr"});
    scheduler_.honour("type", "learning_rate_schedule", "cosine");
    scheduler_.differ("type", "DeepSpeed is one step ahead on its cosine", Told::kByExplain);
    attempt([this] { minimum(); });
    attempt([this] { warmup(total()); });
    attempt([this] { start("warmup_min_ratio"); });
  }

  /// Where the cosine ends.
  void minimum() {
    const char* ratio = "cos_min_ratio";
    const double floor = params_.number(ratio).value_or(1e-4);
    if (floor < 0 || floor > 1) params_.refuse(ratio, "is ", floor, "; it must be from 0 to 1");
    const std::string note = concat(floor, " x the learning rate");
    params_.set(ratio, "minimum_learning_rate", floor * peak_.value, note,
                "DeepSpeed's default: " + note);
  }

  void reject(const std::vector<const char*>& keys) const {
    for (const char* key : keys) {
      attempt([&] {
        if (params_.has(key)) params_.refuse(key, type_, " has no such parameter; remove it");
      });
    }
  }

  void maximum() {
    const char* key = "warmup_max_lr";
    if (!peak_.by_scheduler && params_.has(key)) {
      params_.agree(key, "\"auto\": is the optimizer's lr");
    } else if (!peak_.by_scheduler) {
      params_.absent(key, "DeepSpeed's default is the optimizer's lr");
    } else {
      params_.set(key, "learning_rate", peak_.in_file, "",
                  concat("DeepSpeed's default is ", peak_.in_file));
    }
  }

  /// Where the warm-up begins: ours begins one step above 0.
  void start(const char* key) {
    if (!params_.has(key)) return;
    const double from = params_.number(key).value_or(0.0);
    if (from == 0.0) {
      params_.agree(key, "the warm-up begins near 0");
    } else {
      params_.no_effect(key, concat("the warm-up begins near 0 here, at ", from, " there"),
                        Told::kByRun);
    }
  }

  /// Steps of the whole schedule.
  std::int64_t total() {
    const char* key = "total_num_steps";
    if (!params_.has(key)) {
      params_.refuse_for({params_.with(key, "auto")}, key,
                         "is missing, which DeepSpeed refuses; set it, or \"auto\" for --steps");
    }
    if (params_.is_auto(key)) {
      params_.agree(key, "\"auto\": is --steps");
      return known_.integer("steps");
    }
    const std::int64_t steps = *params_.integer(key);
    const std::int64_t given = known_.override_integer("steps").value_or(steps);
    params_.honour(key, "steps", steps);
    if (given != steps) {
      params_.differ(key, concat("DeepSpeed's rate ends after ", steps,
                                 " steps; here with the run, "
                                 "after ",
                                 given));
    }
    return given;
  }

  void warmup(std::int64_t steps) {
    const char* key = "warmup_num_steps";
    if (params_.is_auto(key)) {
      params_.agree(key, "\"auto\": is --warmup-steps");
    } else {
      const std::int64_t count = params_.integer(key).value_or(1000);
      const bool fits = known_.override_integer("warmup_steps") || count <= steps;
      if (!fits && are_steps_given()) {
        params_.refuse(key, count, " warm-up steps",
                       params_.has(key) ? "" : ", DeepSpeed's default,", " do not fit into ", steps,
                       " steps; change it, or give --steps");
      }
      params_.set(key, "warmup_steps", count, "", "DeepSpeed's default is 1000");
      if (!fits) lengthen(key, steps, count);
    }
    shape();
  }

  bool are_steps_given() const {
    return known_.override_integer("steps") || params_.integer("total_num_steps");
  }

  /// Nobody has said how long the run is, so it is not the file that is wrong.
  void lengthen(const char* key, std::int64_t usual, std::int64_t steps) {
    const std::string note =
        concat("the usual ", usual, " steps are fewer than these ", steps, " of warm-up, so that ",
               "there are ", steps, "; give --steps for the whole run");
    if (params_.has(key)) {
      params_.translate(key, "steps", steps, note);
    } else {
      params_.derive(key, "steps", steps, note, Told::kByRun);
    }
  }

  void shape() {
    const char* key = "warmup_type";
    constexpr const char* kLine =
        "the warm-up is a straight line here; DeepSpeed's rises with the logarithm of the step";
    if (params_.text(key) == "linear") {
      params_.agree(key, "the warm-up is a straight line");
      params_.differ(key, "DeepSpeed's first step has rate 0; here each step is one further",
                     Told::kByExplain);
    } else if (params_.has(key)) {
      params_.no_effect(key, kLine, Told::kByRun);
    } else {
      params_.absent(key, kLine, Told::kByRun);
    }
  }

  const std::string& type_;
  Section& scheduler_;
  Section& params_;
  const PeakRate& peak_;
  const KnownSettings& known_;
};

}  // namespace

void translate_scheduler(TypedSection& scheduler, const PeakRate& peak,
                         const KnownSettings& known) {
  Scheduler(scheduler, peak, known).translate();
}

}  // namespace tessera::compat
