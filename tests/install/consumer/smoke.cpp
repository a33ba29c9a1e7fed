// The least a program can ask of the installed package: its headers, and a symbol of its library.
#include <cstdio>
#include <string>

#include "tessera/core/dtype.h"

int main() {
  const std::string name(tessera::to_string(tessera::DType::kBFloat16));
  std::printf("%s: %zu bytes\n", name.c_str(), tessera::size_of(tessera::DType::kBFloat16));
  return name == "bf16" ? 0 : 1;
}
