#include "env/peer_matrix.h"

#include <algorithm>
#include <string>

namespace tessera::cli {
namespace {

bool reaches(const CudaGpu& gpu, int peer) {
  return std::find(gpu.peers.begin(), gpu.peers.end(), peer) != gpu.peers.end();
}

}  // namespace

TextTable peer_matrix(const std::vector<CudaGpu>& gpus) {
  std::vector<std::string> heading{"reaches"};
  for (const CudaGpu& gpu : gpus) heading.push_back("GPU " + std::to_string(gpu.ordinal));
  TextTable table(heading);
  for (const CudaGpu& from : gpus) {
    std::vector<std::string> row{"GPU " + std::to_string(from.ordinal)};
    for (const CudaGpu& to : gpus) {
      const bool same = from.ordinal == to.ordinal;
      row.emplace_back(same ? "-" : reaches(from, to.ordinal) ? "yes" : "no");
    }
    table.add(row);
  }
  return table;
}

}  // namespace tessera::cli
