#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/autograd/parameter.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/core/storage.h"

namespace tessera {

/// Writes a checkpoint of step 0 that has the values of parameters and nothing else, one parameter
/// after the other: what another program has trained. It is of no run, so a run with any data and
/// any optimizer may go on from it, whose states begin at zero.
class ParameterCheckpoint {
 public:
  /// Makes `folder`, which must not be there, for the checkpoint step_0. `model`: as Manifest has
  /// it. `companions`: names and bytes of files that the checkpoint has besides. Without finish(),
  /// the folder is removed again. Throws Error{kConfig, kIo}.
  ParameterCheckpoint(std::string folder, std::vector<NamedText> model,
                      const std::vector<ParameterSpec>& parameters, Storage& storage = disk(),
                      const std::vector<NamedText>& companions = {});
  ~ParameterCheckpoint();
  ParameterCheckpoint(const ParameterCheckpoint&) = delete;
  ParameterCheckpoint& operator=(const ParameterCheckpoint&) = delete;

  /// The values of the next parameter, row-major. Throws Error{kInvalidArgument} on a wrong number
  /// of them.
  void write(std::span<const float> values);
  /// Makes it durable; returns the checkpoint's path. Throws Error{kInvalidArgument} if a parameter
  /// is missing.
  std::string finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
