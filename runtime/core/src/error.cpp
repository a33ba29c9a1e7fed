#include "tessera/core/error.h"

#include <sstream>

namespace tessera {

std::string concat_all(std::initializer_list<Streamed> arguments) {
  std::ostringstream out;
  for (const Streamed& argument : arguments) argument.write(out);
  return out.str();
}

void fail_with(ErrorCode code, std::initializer_list<Streamed> arguments) {
  throw Error(code, concat_all(arguments));
}

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace tessera
