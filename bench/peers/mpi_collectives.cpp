// Collectives of the MPI that this was built with, for bench/peers/compare_collectives.py.
//
//   mpirun -np 2 mpi_collectives --iterations 20 --warm-ups 5 --repeats 5 65536 1048576 ...
//
// Prints a line for each collective, size and repeat: "all_reduce 65536 12.34", with the bytes of
// the whole buffer and microseconds of one call, in place, on the slowest rank. fp32.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Options {
  int iterations = 20, warm_ups = 5, repeats = 5;
  std::vector<long> sizes;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (has_value && std::strcmp(argv[i], "--iterations") == 0) {
      options.iterations = std::atoi(argv[++i]);
    } else if (has_value && std::strcmp(argv[i], "--warm-ups") == 0) {
      options.warm_ups = std::atoi(argv[++i]);
    } else if (has_value && std::strcmp(argv[i], "--repeats") == 0) {
      options.repeats = std::atoi(argv[++i]);
    } else {
      options.sizes.push_back(std::atol(argv[i]));
    }
  }
  return options;
}

/// Seconds per call on the slowest rank, of `calls` that follow each other.
double time_calls(int calls, const std::function<void()>& call) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < calls; ++i) call();
  const double mine = (MPI_Wtime() - begin) / calls;
  double longest = 0.0;
  MPI_Allreduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return longest;
}

void measure(const Options& options, long bytes, int rank, int ranks) {
  const int part = static_cast<int>(bytes / 4 / ranks);
  const int count = part * ranks;
  std::vector<float> data(static_cast<std::size_t>(count) + 1, 0.0F);
  const std::vector<int> parts(static_cast<std::size_t>(ranks), part);
  const std::pair<const char*, std::function<void()>> collectives[] = {
      {"all_gather",
       [&] {
         MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, data.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
       }},
      {"reduce_scatter",
       [&] {
         MPI_Reduce_scatter(MPI_IN_PLACE, data.data(), parts.data(), MPI_FLOAT, MPI_SUM,
                            MPI_COMM_WORLD);
       }},
      {"all_reduce",
       [&] {
         MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
       }},
      {"broadcast", [&] { MPI_Bcast(data.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD); }},
  };
  for (const auto& [name, call] : collectives) {
    for (int i = 0; i < options.warm_ups; ++i) call();
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      const double seconds = time_calls(options.iterations, call);
      if (rank == 0) std::printf("%s %d %.3f\n", name, count * 4, seconds * 1e6);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const Options options = parse(argc, argv);
  for (const long bytes : options.sizes) measure(options, bytes, rank, ranks);
  MPI_Finalize();
  return 0;
}
