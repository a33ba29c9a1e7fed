#include "output/text_output.h"

#include <ostream>

namespace tessera::cli {

void write_json(std::ostream& out, const nlohmann::ordered_json& value) {
  constexpr int kIndent = 2;
  out << value.dump(kIndent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

}  // namespace tessera::cli
