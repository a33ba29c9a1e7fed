#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "temporary_folder.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt.h"

// What is left of a checkpoint when the machine stops at any moment, or a call fails.
namespace tessera::durability_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

/// A call of Storage, as far as a crash may undo it.
struct Call {
  enum class Kind { kMakeFolder, kCreate, kWrite, kSync, kSyncFolder, kRename, kRemove };
  Kind kind;
  std::string path;
  std::string to{};
  int file = -1;  ///< of kCreate, kWrite, kSync
  std::int64_t offset = 0;
  std::vector<std::byte> bytes{};
};

std::string parent(const std::string& path) { return fs::path(path).parent_path().string(); }

/// Files and folders, by path; folders have no file.
class Tree {
 public:
  void apply(const Call& call) {
    using Kind = Call::Kind;
    switch (call.kind) {
      case Kind::kMakeFolder:
        if (parent(call.path) == "/" || nodes_.contains(parent(call.path))) {
          nodes_.emplace(call.path, -1);
        }
        break;
      case Kind::kCreate:
        if (nodes_.contains(parent(call.path))) nodes_[call.path] = call.file;
        files_[call.file].resize(static_cast<std::size_t>(call.offset));
        break;
      case Kind::kWrite: {
        auto& bytes = files_[call.file];
        const auto end = static_cast<std::size_t>(call.offset) + call.bytes.size();
        if (bytes.size() < end) bytes.resize(end);
        std::ranges::copy(call.bytes, bytes.begin() + call.offset);
        break;
      }
      case Kind::kRename:
        if (nodes_.contains(call.path)) move(call.path, call.to);
        break;
      case Kind::kRemove:
        std::erase_if(nodes_, [&](const auto& node) { return is_in(node.first, call.path); });
        break;
      case Kind::kSync:
      case Kind::kSyncFolder:
        break;
    }
  }

  /// Makes it all below a real folder.
  void make(const std::string& folder) const {
    fs::remove_all(folder);
    fs::create_directories(folder);
    for (const auto& [path, file] : nodes_) {
      if (file < 0) {
        fs::create_directories(folder + path);
      } else {
        const auto& bytes = files_.at(file);
        std::ofstream(folder + path, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()),
                   static_cast<std::streamsize>(bytes.size()));
      }
    }
  }
  bool contains(const std::string& path) const { return nodes_.contains(path); }

 private:
  static bool is_in(const std::string& path, const std::string& folder) {
    return path == folder || path.starts_with(folder + "/");
  }
  void move(const std::string& from, const std::string& to) {
    std::map<std::string, int> moved;
    for (const auto& [path, file] : nodes_) {
      if (is_in(path, from)) moved[to + path.substr(from.size())] = file;
    }
    std::erase_if(nodes_, [&](const auto& node) { return is_in(node.first, from); });
    std::erase_if(nodes_, [&](const auto& node) { return is_in(node.first, to); });
    nodes_.insert(moved.begin(), moved.end());
  }

  std::map<std::string, int> nodes_;
  std::map<int, std::vector<std::byte>> files_;
};

/// Remembers all calls, and does them below a real folder. One call of them may fail.
class RecordingStorage : public Storage {
 public:
  explicit RecordingStorage(std::string root) : root_(std::move(root)) {}
  std::int64_t fails_at = -1;
  const std::vector<Call>& calls() const { return calls_; }

  void make_folder(const std::string& path) override {
    add({.kind = Call::Kind::kMakeFolder, .path = inside(path)});
    disk().make_folder(path);
  }
  std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) override {
    const int file = files_++;
    add({.kind = Call::Kind::kCreate, .path = inside(path), .file = file, .offset = bytes});
    return std::make_unique<RecordedFile>(*this, disk().create(path, bytes), file);
  }
  void sync_folder(const std::string& path) override {
    add({.kind = Call::Kind::kSyncFolder, .path = inside(path)});
    disk().sync_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    add({.kind = Call::Kind::kRename, .path = inside(from), .to = inside(to)});
    disk().rename(from, to);
  }
  void remove(const std::string& path) override {
    add({.kind = Call::Kind::kRemove, .path = inside(path)});
    disk().remove(path);
  }

 private:
  class RecordedFile : public File {
   public:
    RecordedFile(RecordingStorage& storage, std::unique_ptr<File> real, int file)
        : storage_(storage), real_(std::move(real)), file_(file) {}
    void write(std::int64_t offset, std::span<const std::byte> bytes) override {
      storage_.add({.kind = Call::Kind::kWrite,
                    .path = {},
                    .file = file_,
                    .offset = offset,
                    .bytes = {bytes.begin(), bytes.end()}});
      real_->write(offset, bytes);
    }
    void sync() override {
      storage_.add({.kind = Call::Kind::kSync, .path = {}, .file = file_});
      real_->sync();
    }

   private:
    RecordingStorage& storage_;
    std::unique_ptr<File> real_;
    int file_;
  };

  std::string inside(const std::string& path) const {
    return path == root_ ? "/" : path.substr(root_.size());
  }
  void add(Call call) {
    require(static_cast<std::int64_t>(calls_.size()) != fails_at, ErrorCode::kIo,
            "No space left on device");
    calls_.push_back(std::move(call));
  }

  std::string root_;
  std::vector<Call> calls_;
  int files_ = 0;
};

/// Two ranks' states of a small model, and their checkpoints, a step after the other.
class Checkpoints {
 public:
  Checkpoints() {
    for (int rank = 0; rank < 2; ++rank) {
      states_.push_back(std::make_unique<TrainingState>(layout_, options_, rank, memory_));
    }
  }
  /// `best`: the step of the best evaluation; 0: none are compared.
  void save(Storage& storage, const std::string& folder, std::int64_t step, std::int64_t keep,
            std::int64_t best = 0) {
    const std::string path = begin_checkpoint(storage, folder, step);
    Manifest manifest;
    manifest.step = step;
    manifest.parameters = saved_parameters(layout_, options_, false);
    const auto stream = device_->create_stream({});
    for (const auto& state : states_) {
      state->initialize(static_cast<std::uint64_t>(step), *stream);
      manifest.files.push_back(write_state(
          manifest.parameters, layout_, options_, state->rank(),
          [&](const std::string& name) { return state->at(name).view; }, storage, path));
    }
    if (best > 0) manifest.best = {.loss = 1.0, .step = best};
    publish_checkpoint(storage, folder, manifest, best > 0);
    prune_checkpoints(storage, folder, step, keep);
  }

 private:
  const Model model_ =
      make_gpt({.vocab_size = 11, .context_length = 4, .layers = 1, .heads = 1, .width = 4});
  const ModelLayout layout_ = make_layout(model_, {}, 2);
  const StateOptions options_{
      .mesh = {{Axis::kShard, 2}},
      .placement = {
          .parameter = {Axis::kShard}, .gradient = {Axis::kShard}, .optimizer = {Axis::kShard}}};
  const std::unique_ptr<Device> device_ = make_cpu_device();
  Memory memory_{*device_};
  std::vector<std::unique_ptr<TrainingState>> states_;
};

/// The step of the checkpoint that a reader finds, all of which must be whole; -1: none.
std::int64_t step_found(const std::string& folder) {
  const std::string path = find_checkpoint(folder);
  if (path.empty()) return -1;
  const Manifest manifest = read_manifest(path);
  verify_files(manifest, path);
  return manifest.step;
}

/// What a crash leaves: of the calls before it those that were made durable, and any of the others.
Tree after_crash(const std::vector<Call>& calls, std::size_t durable_before, std::size_t end,
                 std::mt19937& random) {
  using Kind = Call::Kind;
  Tree tree;
  for (std::size_t i = 0; i < end; ++i) {
    const Call& call = calls[i];
    const auto is_synced_by = [&](const Call& later) {
      if (call.kind == Kind::kWrite) return later.kind == Kind::kSync && later.file == call.file;
      return later.kind == Kind::kSyncFolder && later.path == parent(call.path);
    };
    const bool durable =
        i < durable_before ||
        std::any_of(calls.begin() + static_cast<std::ptrdiff_t>(i),
                    calls.begin() + static_cast<std::ptrdiff_t>(end), is_synced_by);
    if (durable || random() % 2 == 0) tree.apply(call);
  }
  return tree;
}

void crash_everywhere(const std::vector<std::int64_t>& steps, std::int64_t keep) {
  const TemporaryFolder real, crashed;
  RecordingStorage storage(real.path());
  Checkpoints checkpoints;
  std::mt19937 random(7);
  std::int64_t before = -1;
  for (const std::int64_t step : steps) {
    const std::size_t begin = storage.calls().size();
    checkpoints.save(storage, real.path("run"), step, keep);
    for (std::size_t end = begin; end <= storage.calls().size(); ++end) {
      for (int subset = 0; subset < 5; ++subset) {
        after_crash(storage.calls(), begin, end, random).make(crashed.path("disk"));
        std::int64_t found = -2;
        ASSERT_NO_THROW(found = step_found(crashed.path("disk/run")))
            << "step " << step << ", after call " << end - begin;
        ASSERT_TRUE(found == before || found == step) << found << " after call " << end - begin;
        ASSERT_TRUE(found == step || end < storage.calls().size());
      }
    }
    before = step;
  }
}

TEST(Durability, ACrashAtAnyMomentLeavesTheOldOrTheNewCheckpoint) {
  crash_everywhere({10, 20, 30}, 1);
}

TEST(Durability, AlsoIfACheckpointIsReplaced) { crash_everywhere({10, 10}, 2); }

/// Of those that were saved with the best at step 20, one is kept beside the newest.
TEST(Durability, ACrashAtAnyMomentLeavesABestCheckpoint) {
  const TemporaryFolder real, crashed;
  RecordingStorage storage(real.path());
  Checkpoints checkpoints;
  std::mt19937 random(7);
  std::string before;
  for (const std::int64_t step : {10, 20, 20, 30, 40}) {
    const std::size_t begin = storage.calls().size();
    checkpoints.save(storage, real.path("run"), step, 1, std::min<std::int64_t>(step, 20));
    const std::string after = concat("step_", std::min<std::int64_t>(step, 20));
    for (std::size_t end = begin; end <= storage.calls().size(); ++end) {
      after_crash(storage.calls(), begin, end, random).make(crashed.path("disk"));
      const std::string best = find_best_checkpoint(crashed.path("disk/run"));
      const std::string name = fs::path(best).stem().string();  // perhaps of step_20.old
      ASSERT_TRUE(name == before || name == after) << name << " after call " << end - begin;
      if (!best.empty()) verify_files(read_manifest(best), best);
    }
    before = after;
    const std::size_t kept = step == 10 || step == 20 ? 1 : 2;
    EXPECT_EQ(list_checkpoints(real.path("run")).size(), kept);
  }
}

TEST(Durability, ACallThatFailsLeavesTheOldCheckpoint) {
  const TemporaryFolder real;
  Checkpoints checkpoints;
  checkpoints.save(disk(), real.path("run"), 10, 2);
  std::size_t calls = 0;
  {
    const TemporaryFolder counted;
    fs::copy(real.path("run"), counted.path("run"), fs::copy_options::recursive);
    RecordingStorage storage(counted.path());
    checkpoints.save(storage, counted.path("run"), 20, 2);
    calls = storage.calls().size();
  }
  ASSERT_GT(calls, 20U);
  std::set<std::int64_t> seen;
  for (std::size_t fails_at = 0; fails_at < calls; ++fails_at) {
    const TemporaryFolder copy;
    fs::copy(real.path("run"), copy.path("run"), fs::copy_options::recursive);
    RecordingStorage storage(copy.path());
    storage.fails_at = static_cast<std::int64_t>(fails_at);
    EXPECT_THROW(checkpoints.save(storage, copy.path("run"), 20, 2), Error) << fails_at;
    seen.insert(step_found(copy.path("run")));
    // And the next one is written as if nothing had been.
    checkpoints.save(disk(), copy.path("run"), 30, 1);
    EXPECT_EQ(step_found(copy.path("run")), 30);
    EXPECT_EQ(list_checkpoints(copy.path("run")).size(), 1U);
  }
  EXPECT_EQ(seen, (std::set<std::int64_t>{10, 20}));
}

TEST(Durability, AFullDiskIsKnownBeforeTheData) {
  const TemporaryFolder folder;
  try {
    disk().create(folder.path("large"), std::int64_t{1} << 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr(folder.path("large")));
  }
  EXPECT_FALSE(fs::exists(folder.path("large")));
}

}  // namespace
}  // namespace tessera::durability_test
