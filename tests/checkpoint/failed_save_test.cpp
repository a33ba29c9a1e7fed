#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/checkpointed_run.h"
#include "checkpoint/watched_storage.h"
#include "support/extent.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/folder_lock.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/error.h"

// Runs whose checkpoints cannot be written, and two runs that would write to one folder.
namespace tessera::failed_save_test {
namespace {

using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// The disk, unless `refuses` says why a call of it fails.
class RefusingStorage : public test::WatchedStorage {
 public:
  using Refuses = std::function<std::string(const std::string& call, const std::string& path)>;
  explicit RefusingStorage(const Refuses& refuses)
      : WatchedStorage([this, refuses](const std::string& call, const std::string& path) {
          const std::lock_guard lock(mutex_);  // ranks write at once
          const std::string reason = refuses(call, path);
          require(reason.empty(), ErrorCode::kIo, "cannot ", call, " '", path, "': ", reason);
        }) {}

 private:
  std::mutex mutex_;
};

constexpr std::int64_t kSteps = 6;

/// A run of two ranks that saves after steps 2, 4 and 6, and what became of it.
struct SavingRun {
  explicit SavingRun(const std::string& folder)
      : options(test::options_of({"zero2", 2, 4}, kSteps)) {
    options.checkpoints.folder = folder;
    options.checkpoints.every = 2;
    options.checkpoints.resume = "auto";
  }
  void train() {
    const Model model = test::checkpointed_gpt();
    const test::RandomTokens data = test::checkpointed_data();
    try {
      const Trainer trainer(model, data, options);
      summary = trainer.train({}, [&](const std::string& note) { notes.push_back(note); });
    } catch (const Error& caught) {
      code = caught.code();
      error = caught.what();
    }
  }
  std::int64_t newest() const {
    const std::string path = find_checkpoint(options.checkpoints.folder);
    if (path.empty()) return -1;
    const Manifest manifest = read_manifest(path);
    verify_files(manifest, path);
    return manifest.step;
  }

  TrainerOptions options;
  TrainingSummary summary;
  std::vector<std::string> notes;
  ErrorCode code{};
  std::string error;
};

/// The number of calls until the checkpoint of step 4 is begun, and of those that it takes.
std::pair<int, int> count_calls() {
  const TemporaryFolder files;
  int before = 0, calls = 0;
  bool begun = false, over = false;
  RefusingStorage storage([&](const std::string&, const std::string& path) {
    begun = begun || path.find("step_4.tmp") != std::string::npos;
    over = over || path.find("step_6.tmp") != std::string::npos;
    if (!begun) ++before;
    if (begun && !over) ++calls;
    return std::string();
  });
  SavingRun run(files.path("run"));
  run.options.checkpoints.storage = &storage;
  run.options.checkpoints.total_limit = 1;
  run.train();
  EXPECT_EQ(run.error, "");
  return {before, calls};
}

TEST(FailedSave, AFullDiskAtAnyCallLeavesTheLastCheckpointAndIsTold) {
  const auto [before, calls] = count_calls();
  ASSERT_GT(calls, 20);
  int saved = 0;
  for (int call = 0; call < calls; call += test::kSanitized ? 3 : 1) {
    SCOPED_TRACE(call);
    const TemporaryFolder files;
    int count = 0;
    RefusingStorage storage([&, first = before](const std::string&, const std::string&) {
      return std::string(count++ == first + call ? "No space left on device" : "");
    });
    SavingRun run(files.path("run"));
    run.options.checkpoints.storage = &storage;
    run.options.checkpoints.total_limit = 1;
    run.options.checkpoints.failures =
        call % 2 == 0 ? SaveFailures::kFail : SaveFailures::kTolerate;
    run.train();
    if (run.error.empty()) {  // tolerated, or the new one was durable
      EXPECT_EQ(run.newest(), kSteps);
      EXPECT_EQ(run.summary.saves + run.summary.failed_saves, 3);
      EXPECT_THAT(run.notes, testing::Contains(HasSubstr("No space left on device")));
      saved += run.summary.failed_saves == 0 ? 1 : 0;
      continue;
    }
    EXPECT_EQ(run.code, ErrorCode::kIo);
    EXPECT_THAT(run.error, AllOf(HasSubstr(" was not written: cannot "),
                                 HasSubstr("No space left on device")));
    EXPECT_THAT(run.newest(), AnyOf(2, 4));
    SavingRun rest(files.path("run"));
    rest.train();
    EXPECT_EQ(rest.error, "");
    EXPECT_EQ(rest.newest(), kSteps);
  }
  EXPECT_GT(saved, 0);
}

TEST(FailedSave, AFolderThatCannotBeWrittenIsToldBeforeTheFirstStep) {
  const TemporaryFolder files;
  RefusingStorage storage([](const std::string& call, const std::string&) {
    return std::string(call == "make-folder" ? "Read-only file system" : "");
  });
  for (const SaveFailures failures : {SaveFailures::kFail, SaveFailures::kTolerate}) {
    SavingRun run(files.path("run"));
    run.options.checkpoints.storage = &storage;
    run.options.checkpoints.failures = failures;
    run.train();
    EXPECT_EQ(run.code, ErrorCode::kIo);
    EXPECT_EQ(run.error,
              concat("cannot make-folder '", files.path("run"), "': Read-only file system"));
    EXPECT_EQ(run.newest(), -1);
  }
  SavingRun run(files.write("file", "") + "/run");
  run.train();
  EXPECT_THAT(run.error, HasSubstr("Not a directory"));
}

TEST(FailedSave, AFolderThatBecomesReadOnlyKeepsItsCheckpoints) {
  const TemporaryFolder files;
  bool read_only = false;
  RefusingStorage storage([&](const std::string&, const std::string& path) {
    read_only = read_only || path.find("step_4.tmp") != std::string::npos;
    return std::string(read_only ? "Read-only file system" : "");
  });
  SavingRun run(files.path("run"));
  run.options.checkpoints.storage = &storage;
  run.options.checkpoints.failures = SaveFailures::kTolerate;
  run.train();
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.summary.failed_saves, 2);
  EXPECT_THAT(run.notes, testing::Contains(AllOf(HasSubstr("the checkpoint of step 6"),
                                                 HasSubstr("Read-only file system"))));
  EXPECT_EQ(run.newest(), 2);
}

TEST(FailedSave, AnOldCheckpointThatCannotBeRemovedIsANote) {
  const TemporaryFolder files;
  RefusingStorage storage([](const std::string& call, const std::string& path) {
    const bool old =
        call == "remove" && path.find("/step_2") != std::string::npos && !path.ends_with(".tmp");
    return std::string(old ? "Permission denied" : "");
  });
  SavingRun run(files.path("run"));
  run.options.checkpoints.storage = &storage;
  run.options.checkpoints.total_limit = 1;
  run.train();
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.summary.saves, 3);
  EXPECT_EQ(run.summary.failed_saves, 0);
  EXPECT_THAT(run.notes,
              testing::Contains(concat(
                  "the checkpoint of step 4 is saved; an old one could not be removed: cannot "
                  "remove '",
                  files.path("run"), "/step_2/manifest.json': Permission denied")));
  EXPECT_EQ(run.newest(), kSteps);
}

TEST(FailedSave, CheckpointsOfOtherFormatsStayAsTheyAre) {
  const TemporaryFolder files;
  SavingRun first(files.path("run"));
  first.options.stop_after = 2;
  first.train();
  const std::string manifest = files.path("run/step_2/manifest.json");
  std::ifstream file(manifest);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string version = "\"version\": 1";
  ASSERT_NE(text.find(version), std::string::npos);
  text.replace(text.find(version), version.size(), "\"version\": 7");
  files.write("run/step_2/manifest.json", text);
  for (const std::string& bytes : {text, std::string("{}"), std::string("not JSON")}) {
    files.write("run/step_2/manifest.json", bytes);
    SavingRun run(files.path("run"));
    run.train();
    EXPECT_THAT(run.error, HasSubstr(manifest)) << bytes.substr(0, 20);
    EXPECT_FALSE(std::filesystem::exists(files.path("run/step_4")));
    std::ifstream after(manifest);
    EXPECT_EQ((std::string{std::istreambuf_iterator<char>(after), {}}), bytes);
  }
}

TEST(FolderLock, IsOneProcessesAndNamesIt) {
  const TemporaryFolder files;
  const std::string folder = files.path("a/run");
  {
    const FolderLock lock(disk(), folder);
    EXPECT_EQ(lock.note(), "");
    try {
      const FolderLock second(disk(), folder);
      FAIL() << "two have it";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(concat("'", folder, "' is in use: process ", getpid(), " on ")),
                        HasSubstr("name another folder")));
    }
  }
  const FolderLock next(disk(), folder);
  EXPECT_EQ(next.note(), "");
}

TEST(FolderLock, OfARunKeepsOthersOut) {
  const TemporaryFolder files;
  const Model model = test::checkpointed_gpt();
  const test::RandomTokens data = test::checkpointed_data();
  SavingRun second(files.path("run"));
  {
    const Trainer first(model, data, SavingRun(files.path("run")).options);
    second.train();
    EXPECT_EQ(second.code, ErrorCode::kUnavailable);
    EXPECT_THAT(second.error, HasSubstr("is in use"));
    first.train();
  }
  EXPECT_EQ(second.newest(), kSteps);
  SavingRun third(files.path("run"));
  third.options.steps = kSteps + 1;
  third.train();
  EXPECT_EQ(third.error, "");
}

}  // namespace
}  // namespace tessera::failed_save_test
