#pragma once

#include <ctime>
#include <string>

namespace tessera {

/// A time in UTC, in a format of strftime with at most 31 characters.
std::string utc_text(std::time_t time, const char* format);
/// The time now: "2026-01-31T12:00:00Z".
std::string utc_now();

}  // namespace tessera
