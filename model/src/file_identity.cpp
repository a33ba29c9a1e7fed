#include "file_identity.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "tessera/core/digest.h"
#include "tessera/core/error.h"

namespace tessera::data {
namespace {

constexpr std::size_t kBlock = 64 * 1024;
constexpr std::size_t kBlocks = 128;
constexpr std::size_t kListed = 4;  // files that are named; of more, a hash stands for the rest

using Files = std::vector<const MappedFile*>;

/// The text of each file, with commas between.
std::string listed(const Files& files, const std::function<std::string(const MappedFile&)>& text) {
  std::string list;
  for (std::size_t i = 0; i < std::min(files.size(), kListed); ++i) {
    list += (i == 0 ? "" : ", ") + text(*files[i]);
  }
  if (files.size() <= kListed) return list;
  Digest rest;
  for (const MappedFile* file : files) rest.add(text(*file));
  return concat(list, " and ", files.size() - kListed, " more (hash ", rest.hex(), ")");
}

/// Bytes [begin, begin + block.size()) of all files, one after the other.
void read_across(const Files& files, std::size_t begin, std::span<std::byte> block) {
  std::size_t done = 0;
  for (const MappedFile* file : files) {
    const std::size_t size = file->bytes().size();
    if (done < block.size() && begin < size) {
      const std::size_t count = std::min(size - begin, block.size() - done);
      file->copy(begin, block.subspan(done, count));
      done += count;
      begin = 0;
    } else {
      begin -= std::min(begin, size);
    }
  }
}

/// The hash of all bytes, or of blocks at positions that the size alone decides.
std::string hash_of_content(const Files& files) {
  std::size_t size = 0;
  for (const MappedFile* file : files) size += file->bytes().size();
  Digest digest;
  std::vector<std::byte> block(std::min(size, kBlock));
  const auto add = [&](std::size_t begin, std::size_t count) {
    read_across(files, begin, std::span(block).first(count));
    digest.add({reinterpret_cast<const char*>(block.data()), count});
  };
  if (size <= kBlock * kBlocks) {
    for (std::size_t at = 0; at < size; at += kBlock) add(at, std::min(kBlock, size - at));
  } else {
    const std::size_t last = size - kBlock;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      add(last / (kBlocks - 1) * i + last % (kBlocks - 1) * i / (kBlocks - 1), kBlock);
    }
  }
  return digest.hex();
}

}  // namespace

std::vector<NamedText> identity_of(const std::vector<const MappedFile*>& files) {
  return {{"names of data files",
           listed(files,
                  [](const MappedFile& file) {
                    return std::filesystem::path(file.path()).filename().string();
                  })},
          {"bytes of data files",
           listed(files, [](const MappedFile& file) { return concat(file.bytes().size()); })},
          {"content of data files", "hash " + hash_of_content(files)}};
}

}  // namespace tessera::data
