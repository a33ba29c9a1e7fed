#pragma once

#include <functional>
#include <string>

namespace tessera::cli {

/// Checks that are told as they are made, a line each: "ok  name: result".
class CheckList {
 public:
  /// `silent`: another process tells of the same checks.
  explicit CheckList(bool silent = false) : silent_(silent) {}

  /// `test` returns what went well, or throws what did not, which is kept. True if it went well.
  bool check(const std::string& name, const std::function<std::string()>& test);
  /// Tells of one that is not made.
  void skip(const std::string& name, const std::string& reason) const;

  int failures() const { return failures_; }
  /// "name: message" of the first that failed.
  const std::string& first_failure() const { return first_failure_; }

 private:
  bool silent_;
  int failures_ = 0;
  std::string first_failure_;
};

}  // namespace tessera::cli
