#include "strict_json.h"

#include <span>
#include <unordered_set>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/core/input_file.h"

namespace tessera::data {

nlohmann::json parse_strict_json(std::string_view text, const std::string& path,
                                 std::string_view remedy) {
  using nlohmann::json;
  require(!is_git_lfs_pointer(text), ErrorCode::kConfig, "'", path, "' is not JSON: ", kFetchByLfs);
  require(text.find('\0') == std::string_view::npos && !text.starts_with("\xef\xbb\xbf"),
          ErrorCode::kConfig, "'", path,
          "' is not JSON: it has a NUL or begins with a byte order mark; write it anew as UTF-8");
  constexpr int kDeepest = 32;
  std::vector<std::unordered_set<std::string>> keys;
  const auto look = [&](int depth, json::parse_event_t event, json& value) {
    require(depth <= kDeepest, ErrorCode::kConfig, "'", path, "' is nested deeper than ", kDeepest,
            " levels");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      require(keys.back().insert(value.get_ref<const std::string&>()).second, ErrorCode::kConfig,
              "'", path, "' has the key ", value.dump(-1, ' ', true), " twice; remove one");
    }
    return true;
  };
  try {
    return json::parse(text, look);
  } catch (const json::exception& error) {
    const std::string what = error.what();  // "[json.exception.parse_error.101] parse error ..."
    const std::size_t bracket = what.find("] ");
    fail(ErrorCode::kConfig, "'", path, "' is not JSON: ",
         json(bracket == std::string::npos ? what : what.substr(bracket + 2, 200))
             .dump(-1, ' ', true, json::error_handler_t::replace),
         "; ", remedy);
  }
}

nlohmann::json read_strict_json(const std::string& path, std::int64_t most_bytes) {
  const InputFile file(path);
  require(file.size() <= most_bytes, ErrorCode::kConfig, "'", path, "' has ", file.size(),
          " bytes; there may be ", most_bytes);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return parse_strict_json(text, path);
}

}  // namespace tessera::data
