#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::test {

/// A folder of one test's own, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tessera_XXXXXX").string();
    path_ = mkdtemp(pattern.data()) == nullptr ? "" : pattern;
    EXPECT_FALSE(path_.empty());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(std::string_view name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }

  /// Writes a file, making folders on the way; returns its path.
  std::string write(std::string_view name, std::string_view bytes) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file.string();
  }
  template <typename T>
  std::string write_tokens(std::string_view name, const std::vector<std::int32_t>& header,
                           const std::vector<T>& tokens) const {
    std::string bytes(reinterpret_cast<const char*>(header.data()), header.size() * 4);
    if (!header.empty()) bytes.resize(1024);
    bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
    return write(name, bytes);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::test
