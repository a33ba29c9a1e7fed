#include "output/speed.h"

#include "output/terminal.h"
#include "tessera/core/error.h"

namespace tessera::cli {

std::string describe_speed(const SpeedRates& rates) {
  if (!rates.has_padding()) return with_prefix(rates.tokens) + " tokens/s";
  return concat(with_prefix(rates.positions), " positions/s, ", with_prefix(rates.tokens),
                " targets/s");
}

}  // namespace tessera::cli
