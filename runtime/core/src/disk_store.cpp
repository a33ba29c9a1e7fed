#include "tessera/core/disk_store.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "disk_channels.h"
#include "disk_transfer.h"
#include "tessera/core/error.h"
#include "unlisted_file.h"

namespace tessera {
namespace {

constexpr int kFormatVersion = 2;
constexpr const char* kNothing = "none";  ///< in the header, before the first step is over
constexpr std::int64_t kHeaderBytes = kDiskAlignment;

DiskStoreOptions checked(DiskStoreOptions options) {
  constexpr std::int64_t kMostBlockBytes = std::int64_t{1} << 30;
  constexpr int kMostDepth = 1024;
  require(options.block_bytes >= kDiskAlignment && options.block_bytes <= kMostBlockBytes &&
              options.block_bytes % kDiskAlignment == 0,
          ErrorCode::kInvalidArgument, "blocks of the disk tier have ", options.block_bytes,
          " bytes; take a multiple of ", kDiskAlignment, " up to ", kMostBlockBytes);
  require(options.queue_depth >= 1 && options.queue_depth <= kMostDepth && options.callers >= 1,
          ErrorCode::kInvalidArgument, "the disk tier has ", options.queue_depth,
          " requests in flight for each of ", options.callers, " callers; take 1 to ", kMostDepth,
          " for 1 or more");
  return options;
}

std::vector<PlacedExtent> place_extents(const std::vector<DiskExtent>& extents,
                                        std::int64_t block_bytes) {
  std::vector<PlacedExtent> placed;
  std::int64_t begin = kHeaderBytes;
  for (const DiskExtent& extent : extents) {
    const std::int64_t blocks = (extent.bytes + block_bytes - 1) / block_bytes;
    placed.push_back({.name = extent.name,
                      .bytes = extent.bytes,
                      .begin = begin,
                      .blocks = std::vector<DiskBlock>(static_cast<std::size_t>(blocks))});
    begin += padded_to_sectors(extent.bytes);
  }
  return placed;
}

}  // namespace

std::int64_t disk_store_bytes(const std::vector<DiskExtent>& extents) {
  std::int64_t bytes = kHeaderBytes;
  for (const DiskExtent& extent : extents) {
    require(extent.bytes >= 0, ErrorCode::kInvalidArgument, "the disk tier's extent '", extent.name,
            "' has ", extent.bytes, " bytes");
    bytes += padded_to_sectors(extent.bytes);
  }
  return bytes;
}

std::int64_t disk_buffer_bytes(const DiskStoreOptions& options) {
  return options.callers * options.queue_depth * options.block_bytes;
}

class DiskStore::File {
 public:
  File(DiskStoreOptions given, std::vector<DiskExtent> listed)
      : options(checked(std::move(given))),
        extents(std::move(listed)),
        bytes(disk_store_bytes(extents)),
        calls(options.calls != nullptr ? *options.calls : disk_calls()),
        file(calls, options.folder, options.rank, bytes),
        channels(options, calls),
        placed(place_extents(extents, options.block_bytes)) {
    begin();
    description = concat(channels.description(), file.direct() ? ", O_DIRECT" : ", buffered");
  }

  /// The extent's place, once the bytes are known to be its own.
  PlacedExtent& find(std::size_t index, std::int64_t offset, std::size_t count) {
    require(index < placed.size(), ErrorCode::kInvalidArgument, file.name(), " has ", placed.size(),
            " extents, and none of index ", index);
    PlacedExtent& extent = placed[index];
    require(offset >= 0 && offset <= extent.bytes &&
                count <= static_cast<std::size_t>(extent.bytes - offset),
            ErrorCode::kInvalidArgument, "'", extent.name, "' in ", file.name(), " has ",
            extent.bytes, " bytes; ", count, " from byte ", offset, " on are not all its own");
    return extent;
  }

  /// The first one, of kNothing, is read back.
  void write_header(const std::string& step, const std::string& contents) {
    const std::string text = concat("tessera disk tier, format ", kFormatVersion, "\nrank ",
                                    options.rank, "\nstep ", step, "\nextents ", extents.size(),
                                    "\nbytes ", bytes, "\ncontents ", contents, "\n");
    std::vector<std::byte> header(kHeaderBytes);
    std::memcpy(header.data(), text.data(), text.size());
    PlacedExtent place{
        .name = "header", .bytes = kHeaderBytes, .begin = 0, .blocks = std::vector<DiskBlock>(1)};
    const DiskChannels::Lease channel = channels.take();
    DiskTransfer(file, place, *channel).write(header.data(), 0, kHeaderBytes);
    if (step == kNothing) DiskTransfer(file, place, *channel).read(header.data(), 0, kHeaderBytes);
  }

  const DiskStoreOptions options;
  const std::vector<DiskExtent> extents;
  const std::int64_t bytes;
  DiskCalls& calls;
  UnlistedFile file;
  DiskChannels channels;
  std::vector<PlacedExtent> placed;
  std::string description;
  std::atomic<std::int64_t> read{0}, written{0};

 private:
  /// Writes the header and reads it back, by which O_DIRECT is tried where nobody knows of it.
  void begin() {
    if (options.direct && file.go_direct()) {
      try {
        write_header(kNothing, kNothing);
        return;
      } catch (const Error&) {
        file.go_buffered();  // if the disk is to blame, it says so again
      }
    }
    write_header(kNothing, kNothing);
  }
};

DiskStore::DiskStore(DiskStoreOptions options, std::vector<DiskExtent> extents)
    : file_(std::make_unique<File>(std::move(options), std::move(extents))) {}
DiskStore::~DiskStore() = default;

void DiskStore::write(std::size_t extent, std::span<const std::byte> bytes, std::int64_t offset) {
  PlacedExtent& place = file_->find(extent, offset, bytes.size());
  const auto count = static_cast<std::int64_t>(bytes.size());
  const DiskChannels::Lease channel = file_->channels.take();
  DiskTransfer(file_->file, place, *channel).write(bytes.data(), offset, offset + count);
  file_->file.let_go(place.begin + offset, count);
  file_->written += count;
}

void DiskStore::read(std::size_t extent, std::span<std::byte> out, std::int64_t offset) {
  PlacedExtent& place = file_->find(extent, offset, out.size());
  const auto count = static_cast<std::int64_t>(out.size());
  const DiskChannels::Lease channel = file_->channels.take();
  DiskTransfer(file_->file, place, *channel).read(out.data(), offset, offset + count);
  file_->file.let_go(place.begin + offset, count);
  file_->read += count;
}

void DiskStore::mark(std::int64_t step) {
  file_->write_header(concat(step), concat(hash_of(file_->placed)));
}

const std::vector<DiskExtent>& DiskStore::extents() const { return file_->extents; }
std::int64_t DiskStore::file_bytes() const { return file_->bytes; }
std::int64_t DiskStore::bytes_read() const { return file_->read; }
std::int64_t DiskStore::bytes_written() const { return file_->written; }
DiskBackend DiskStore::backend() const { return file_->channels.backend(); }
bool DiskStore::direct() const { return file_->file.direct(); }
const std::string& DiskStore::description() const { return file_->description; }

}  // namespace tessera
