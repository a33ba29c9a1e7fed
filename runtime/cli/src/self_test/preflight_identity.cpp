#include "self_test/preflight_identity.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "self_test/preflight_exchange.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"

namespace tessera::cli {
namespace {

/// FNV-1a, 64 bits. Tells files and values apart that differ by accident.
class Digest {
 public:
  void add(const char* bytes, std::size_t count) {
    constexpr std::uint64_t kPrime = 0x100000001b3;
    for (std::size_t i = 0; i < count; ++i) {
      value_ = (value_ ^ static_cast<unsigned char>(bytes[i])) * kPrime;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

std::uint64_t digest_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  Digest digest;
  std::vector<char> block(1 << 20);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    digest.add(block.data(), static_cast<std::size_t>(file.gcount()));
  }
  require(file.eof(), ErrorCode::kIo, "/proc/self/exe, the file of this program, cannot be read");
  return digest.value();
}

/// As text, so that versions can differ in everything but the length.
constexpr std::size_t kIdentityBytes = 256;

}  // namespace

Identity own_identity() {
  return {.version = TESSERA_VERSION, .host = host_name(), .build = digest_of_program()};
}

std::vector<Identity> exchange_identities(ProcessGroup& group, Device& device,
                                          const Identity& own) {
  std::string text = concat(own.version, " ", own.build, " ", own.host);
  text.resize(kIdentityBytes, ' ');
  const std::vector<char> all =
      gathered(group, device, std::vector<char>(text.begin(), text.end()));
  std::vector<Identity> identities;
  for (std::size_t at = 0; at < all.size(); at += kIdentityBytes) {
    std::istringstream one(std::string(all.data() + at, kIdentityBytes));
    Identity identity;
    one >> identity.version >> identity.build >> identity.host;
    identities.push_back(std::move(identity));
  }
  return identities;
}

std::vector<NamedDigest> setting_digests(const Config& config) {
  std::vector<NamedDigest> digests;
  for (const Setting& setting : config.table()) {
    const std::string& group = setting.group;
    if (group == "Output" || group == "Data" || group == "Sample") continue;
    if (setting.name == "threads_per_rank") continue;  // unless given, it follows from the machine
    Digest digest;
    const std::string value = config.values().at(setting.name).dump();
    digest.add(value.data(), value.size());
    digests.push_back({setting.name, digest.value()});
  }
  return digests;
}

}  // namespace tessera::cli
