#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/model/tokenizer.h"

namespace tessera {

struct TokenizeOptions {
  /// Each as DatasetOptions::path of text: a file, a folder or a pattern. In this order.
  std::vector<std::string> paths;
  std::string output;  ///< replaced when all is written
  /// Between any two files: the tokenizer's end-of-text token if it has one; else, and if false, a
  /// newline.
  bool end_of_text = true;
  /// Sees after every megabyte of text how many bytes of how many are done; false stops.
  std::function<bool(std::int64_t done, std::int64_t bytes)> on_progress{};
};

struct TokenizeResult {
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;  ///< of text
  std::int64_t files = 0;
  int token_bytes = 2;             ///< in the output
  bool stopped = false;            ///< by on_progress: nothing is written
  std::vector<std::string> notes;  ///< what was left out of folders, and why
};

/// Writes a file of token ids with llm.c's header, as `train --data` reads it: uint16 if the
/// vocabulary fits, else uint32. Holds a few megabytes of text at a time, or the longest stretch
/// without a place where it may be cut (see TokenEncoder::last_cut). The file is made beside the
/// output
/// (.tmp), synced to disk and renamed: the output is the old or the new one, whole.
/// Throws Error{kNotFound, kIo, kConfig} naming file and remedy, as for text that is not UTF-8.
TokenizeResult tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace tessera
