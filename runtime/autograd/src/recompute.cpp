#include "tessera/autograd/tape.h"
#include "tessera/core/error.h"

namespace tessera {

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "unknown";
}

Recompute parse_recompute(std::string_view name) {
  for (const Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    if (name == to_string(r)) return r;
  }
  fail(ErrorCode::kConfig, "unknown recomputation '", name, "'; choose none, selective or full");
}

}  // namespace tessera
