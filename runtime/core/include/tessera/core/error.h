#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace tessera {

/// The kind of failure that an Error reports; the program maps it to an exit code.
enum class ErrorCode {
  kInvalidArgument,  ///< a caller broke a documented precondition
  kConfig,           ///< a user's setting is unknown, out of range or contradictory
  kNotFound,         ///< a file or a name does not exist
  kIo,               ///< reading or writing failed
  kOutOfMemory,      ///< an allocation does not fit the limit or the machine
  kTimeout,          ///< a peer did not arrive in time
  kAborted,          ///< another rank failed and took its process groups down
  kUnavailable,      ///< a backend is not built in or has no device here
  kInternal,         ///< a bug in Tessera
};

/// "config", "timeout", ...: for messages and logs.
const char* to_string(ErrorCode code);

/// The one exception type of the library. The text names the values involved and the remedy.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Streams every argument into one string: concat("rank ", 3, " of ", 4).
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// Throws Error{code, concat(args...)}.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, const Args&... args) {
  throw Error(code, concat(args...));
}

/// Throws unless `condition` holds. For preconditions: the message says what was expected.
template <typename... Args>
void require(bool condition, ErrorCode code, const Args&... args) {
  if (!condition) fail(code, args...);
}

}  // namespace tessera
