#include "tessera/core/utc_text.h"

#include <array>

namespace tessera {

std::string utc_text(std::time_t time, const char* format) {
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &utc)};
}

std::string utc_now() { return utc_text(std::time(nullptr), "%Y-%m-%dT%H:%M:%SZ"); }

}  // namespace tessera
