#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace tessera::cli {

/// Each adds a command to `bench` and gives what it does, which returns the exit code.
std::function<int()> add_bench_collectives(CLI::App& command);
std::function<int()> add_bench_kernels(CLI::App& command);
std::function<int()> add_bench_compare(CLI::App& command);

}  // namespace tessera::cli
