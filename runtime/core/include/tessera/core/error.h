#pragma once

#include <initializer_list>
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

/// The one exception type of the library. The text names the values involved and the remedy. An
/// option is named by its field in backquotes, `micro_batch` or `policy.recompute`: a program that
/// has flags for them prints those instead.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

namespace message {

/// A reference to an argument of concat() and what writes it: calls then share code that is
/// compiled once.
class Streamed {
 public:
  // NOLINTBEGIN(google-explicit-constructor): any argument is one
  Streamed(const char* text)
      : value_(text), write_([](std::ostream& out, const void* value) {
          out << static_cast<const char*>(value);
        }) {}
  template <typename T>
  Streamed(const T& value)
      : value_(&value),
        write_([](std::ostream& out, const void* of) { out << *static_cast<const T*>(of); }) {}
  // NOLINTEND(google-explicit-constructor)
  void write(std::ostream& out) const { write_(out, value_); }

 private:
  const void* value_;
  void (*write_)(std::ostream&, const void*);
};

// Inline, for modules that do not link the library.
inline std::string concat(std::initializer_list<Streamed> arguments) {
  std::ostringstream out;
  for (const Streamed& argument : arguments) argument.write(out);
  return out.str();
}
[[noreturn]] inline void fail(ErrorCode code, std::initializer_list<Streamed> arguments) {
  throw Error(code, concat(arguments));
}

}  // namespace message

/// Streams every argument into one string: concat("rank ", 3, " of ", 4).
template <typename... Args>
std::string concat(const Args&... args) {
  return message::concat({args...});
}

/// Throws Error{code, concat(args...)}.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, const Args&... args) {
  message::fail(code, {args...});
}

/// Throws unless `condition` holds. For preconditions: the message says what was expected.
template <typename... Args>
void require(bool condition, ErrorCode code, const Args&... args) {
  if (!condition) fail(code, args...);
}

}  // namespace tessera
