#include "tessera/cli/embedded_run.h"

#include <cstdlib>
#include <utility>

#include "commands.h"
#include "embedding/given_config.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/sharding/sample_division.h"
#include "tessera/trainer/training_loop.h"
#include "train/prepared_run.h"
#include "train/run_outputs.h"

namespace tessera::cli {
namespace {

Config session_config(const GivenSettings& given) {
  const Launcher launcher = find_launcher(std::getenv);
  Config config = config_of(SettingsOf::kSession, given, facts_of(launcher), train_settings());
  config.read_environment([](const char* name) -> const char* { return std::getenv(name); },
                          environment_names());
  config.set_effective("quiet", true);
  adopt_launcher(launcher, config);
  return config;
}

std::unique_ptr<TokenSource> source_for(const GptChoice& choice) {
  require(!choice.has_starts, ErrorCode::kConfig,
          "`packing` and encoders are for examples in files; samples that a program gives are as "
          "they are: train with `tessera train`, or give a decoder and leave out `packing`");
  return std::make_unique<TokenSource>(choice.sequence_length, choice.config.vocab_size);
}

}  // namespace

class EmbeddedRun::Impl {
 public:
  Impl(const GivenSettings& settings, const Data& data, std::function<bool()> interrupted)
      : run_(session_config(settings), host_of(data, std::move(interrupted))),
        outputs_(run_.config, run_.model),
        session_(run_.plan()),
        loop_(session_, listeners(), LoopSteps::kSeparate),
        sizes_{.sequence_length = run_.choice.sequence_length,
               .vocab_size = run_.choice.config.vocab_size,
               .samples_per_step = sample_division(run_.plan().options).samples_per_step()} {
    for (const std::string& note : run_.plan().notes) outputs_.note(note);
    loop_.tell_notes(run_.plan().notes.size());
    if (run_.plan().resume != nullptr) {
      const Manifest& manifest = run_.plan().resume->manifest;
      offset_ = manifest.samples - manifest.step * sizes_.samples_per_step;
    }
  }

  Session& session() { return session_; }
  const RunSizes& sizes() const { return sizes_; }
  nlohmann::ordered_json settings() const { return run_.config.values(); }
  const std::optional<EvaluationRecord>& evaluation() const { return evaluation_; }
  std::int64_t samples() const { return offset_ + session_.steps() * sizes_.samples_per_step; }

  void give(GivenTokens tokens) {
    require(given_ != nullptr, ErrorCode::kInvalidArgument, "the samples of this run are in files");
    given_->give(samples(), std::move(tokens));
  }

  std::optional<StepRecord> step() {
    evaluation_.reset();
    return loop_.next();
  }

  EvaluationRecord evaluate() {
    const EvaluationRecord record = session_.evaluate();
    outputs_.evaluation(record);
    return record;
  }

  std::string save(const std::string& folder) {
    if (const auto before = session_.finish_save()) outputs_.checkpoint(*before);
    session_.begin_save(folder);
    const std::optional<SaveRecord> record = session_.finish_save();
    outputs_.checkpoint(*record);
    return record->path;
  }

  void finish() {
    if (summary_) return;
    summary_ = loop_.finish();
    outputs_.end(run_.plan(), *summary_, {});
  }

 private:
  RunHost host_of(const Data& data, std::function<bool()> interrupted) {
    RunHost host{.host_work = std::make_shared<HostWork>(std::move(interrupted)),
                 .is_train_command = false};
    if (data.is_given) {
      host.make_data = [this](const GptChoice& choice) {
        std::unique_ptr<TokenSource> source = source_for(choice);
        given_ = source.get();
        return HostData{.source = std::move(source)};
      };
    }
    if (data.evaluation) {
      host.make_evaluation = [&data](const GptChoice& choice) {
        std::unique_ptr<TokenSource> source = source_for(choice);
        source->give(0, data.evaluation(choice.sequence_length));
        const std::int64_t samples = source->samples();
        return HostData{.source = std::move(source), .samples = samples};
      };
    }
    return host;
  }

  LoopListeners listeners() {
    return {.on_step =
                [this](const StepRecord& record) {
                  outputs_.step(record, 0.0);
                  return true;
                },
            .on_note = [this](const std::string& note) { outputs_.note(note); },
            .on_evaluation =
                [this](const EvaluationRecord& record) {
                  outputs_.evaluation(record);
                  evaluation_ = record;
                },
            .on_save = [this](const SaveRecord& record) { outputs_.checkpoint(record); }};
  }

  TokenSource* given_ = nullptr;  ///< of the run; null: its samples are in files
  PreparedRun run_;
  RunOutputs outputs_;
  Session session_;
  TrainingLoop loop_;
  const RunSizes sizes_;
  std::int64_t offset_ = 0;  ///< of the samples, where the step was of another size before
  std::optional<EvaluationRecord> evaluation_{};
  std::optional<TrainingSummary> summary_{};
};

EmbeddedRun::EmbeddedRun(const GivenSettings& given, const Data& data,
                         std::function<bool()> interrupted)
    : impl_(std::make_unique<Impl>(given, data, std::move(interrupted))) {}

EmbeddedRun::~EmbeddedRun() = default;

Session& EmbeddedRun::session() { return impl_->session(); }
const RunSizes& EmbeddedRun::sizes() const { return impl_->sizes(); }
nlohmann::ordered_json EmbeddedRun::settings() const { return impl_->settings(); }
std::int64_t EmbeddedRun::samples() const { return impl_->samples(); }
void EmbeddedRun::give(GivenTokens tokens) { impl_->give(std::move(tokens)); }
std::optional<StepRecord> EmbeddedRun::step() { return impl_->step(); }
std::optional<EvaluationRecord> EmbeddedRun::evaluation() const { return impl_->evaluation(); }
EvaluationRecord EmbeddedRun::evaluate() { return impl_->evaluate(); }
std::string EmbeddedRun::save(const std::string& folder) { return impl_->save(folder); }
void EmbeddedRun::finish() { impl_->finish(); }

}  // namespace tessera::cli
