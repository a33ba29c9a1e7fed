#pragma once

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera {

/// A file of tests/kernels/golden. Programs that were carried to another machine find the sources
/// where the environment's TESSERA_SOURCE_DIR says.
inline nlohmann::json kernel_golden(const std::string& name) {
  const char* const elsewhere = std::getenv("TESSERA_SOURCE_DIR");
  const std::string root = elsewhere != nullptr ? elsewhere : TESSERA_SOURCE_DIR;
  std::ifstream file(root + "/tests/kernels/golden/" + name);
  return nlohmann::json::parse(file);
}

}  // namespace tessera
