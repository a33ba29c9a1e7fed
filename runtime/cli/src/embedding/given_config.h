#pragma once

#include <cstdint>

#include "settings/gpt_choice.h"
#include "tessera/cli/embedded_run.h"
#include "tessera/cli/given_settings.h"
#include "tessera/compat/config.h"
#include "tessera/compat/config_sources.h"

namespace tessera::cli {

/// The settings of a program, with what was given; `others` are keys of the file that the program
/// has no use for. Throws Error{kConfig} that names the nearest if a name is unknown.
Config config_of(SettingsOf program, const GivenSettings& given, const LaunchFacts& launch,
                 const std::vector<Setting>& others = {});

/// Samples in memory, of language modelling: a run's next ones, or those of an evaluation.
class TokenSource : public TokenShapes {
 public:
  TokenSource(std::int64_t sequence_length, std::int64_t vocab_size)
      : TokenShapes(sequence_length), vocab_size_(vocab_size) {}

  /// Samples [first, ...) of the run. While no rank reads. Throws Error{kConfig} that names the
  /// sample if a token is outside of the vocabulary, or the sizes are not those of whole samples.
  void give(std::int64_t first, GivenTokens tokens);
  std::int64_t samples() const;

  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override;
  /// The processes of a run are trusted to give the same samples: none of them has those to come.
  std::vector<NamedText> identity() const override {
    return {{"the data", "samples of a program"}};
  }

 private:
  std::int64_t vocab_size_;
  std::int64_t first_ = 0;
  GivenTokens tokens_{};
};

}  // namespace tessera::cli
