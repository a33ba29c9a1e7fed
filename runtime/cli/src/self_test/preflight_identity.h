#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/device.h"
#include "tessera/trainer/config.h"

namespace tessera::cli {

/// The program that a process runs, and where.
struct Identity {
  std::string version{};
  std::string host{};
  std::uint64_t build = 0;  ///< a hash of the program's file
};

/// Throws Error{kIo} if the program's own file cannot be read.
Identity own_identity();

/// That of every rank. Every rank must call it; it works between different versions.
std::vector<Identity> exchange_identities(ProcessGroup& group, Device& device, const Identity& own);

/// A hash of a setting's value.
struct NamedDigest {
  std::string name{};
  std::uint64_t digest = 0;
};

/// Of the settings that all processes must give alike: neither where data lie nor what is written.
/// The threads of a rank are not among them: see TrainerOptions for how many there are.
std::vector<NamedDigest> setting_digests(const Config& config);

}  // namespace tessera::cli
