#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace tessera::bench {

/// The values that an option takes, of those that its variable can have.
struct Takes {
  bool positive = false;  ///< a number above 0
  int at_most = 0;        ///< 0: any
  /// A whole number that may have a suffix, as nccl-tests write sizes: 64K, 128M, 1G are powers of
  /// 1024.
  bool size = false;
  std::vector<std::string> words = {};  ///< one of these; empty: any
  std::string type = {};                ///< what --help calls it; empty: by the variable
};
inline Takes positive() { return {.positive = true}; }
inline Takes with_suffix() { return {.size = true}; }
inline Takes one_of(std::vector<std::string> words) { return {.words = std::move(words)}; }

/// A benchmark's command line: add options to it, then run. --help tells their defaults, the values
/// that the variables have when they are added. CLI11 stays out of this header: to compile it takes
/// longer than a benchmark.
class Program {
 public:
  using Variable = std::variant<bool*, int*, std::int64_t*, std::size_t*, double*, std::string*,
                                std::vector<std::int64_t>*>;

  Program(const std::string& name, const std::string& description);
  ~Program();

  /// `flags` with commas: "--filter,--only"; without dashes: an argument. A bool is a flag without
  /// a value; a list's values have commas.
  void option(const std::string& flags, Variable variable, const std::string& help,
              const Takes& takes = {});
  void footer(const std::string& text);

  /// Parses, then calls `work`. The exit code: 0; 1 for an error, said on stderr; 2 for a wrong
  /// command line.
  int run(int argc, char** argv, const std::function<void()>& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::bench
