#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace tessera::cli {

/// Adds a flag with a whole number from `least` to `most`.
void add_number(CLI::App& command, const char* flags, int& value, int least, const char* help,
                int most = 1 << 30);

/// Each adds a command to `bench` and gives what it does, which returns the exit code.
std::function<int()> add_bench_collectives(CLI::App& command);
std::function<int()> add_bench_kernels(CLI::App& command);
std::function<int()> add_bench_compare(CLI::App& command);

}  // namespace tessera::cli
