#pragma once

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace tessera {

/// A regular expression over module paths, in Perl's syntax, which covers what Python's patterns of
/// such paths use. Matches whole paths.
class PathPattern {
 public:
  /// Throws Error{kConfig} that names the pattern and what is wrong.
  explicit PathPattern(const std::string& pattern);
  bool matches(std::string_view path) const;

 private:
  std::unique_ptr<pcre2_real_code_8, void (*)(pcre2_real_code_8*)> code_;
};

}  // namespace tessera
