#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/dataset.h"

// Tables of Parquet and Arrow, made by tables/make_tables.py, beside the same rows as .jsonl.
namespace tessera::arrow_records_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kTables = TESSERA_SOURCE_DIR "/tests/model/tables/";

DatasetOptions options_of(const std::string& path) {
  return {.path = path,
          .sequence_length = 256,
          .seed = 5,
          .chat_template =
              ChatTemplateOptions{.path = TESSERA_SOURCE_DIR "/tests/model/chat/chatml.jinja"}};
}

/// Why there are no tables here; "" if there are.
std::string why_no_tables() {
  try {
    TokenDataset{options_of(kTables + "file.arrow")};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    return error.what();
  }
  return "";
}

class Tables : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_tables(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(Tables, HaveTheSamplesOfTheirRowsAsLines) {
  const std::vector<std::pair<std::string, std::string>> pairs{
      {"prompts.parquet", "prompts.jsonl"},
      {"file.arrow", "texts.jsonl"},
      {"stream.arrow", "texts.jsonl"},
      {"compressed.feather", "texts.jsonl"},
      {"messages.parquet", "messages.jsonl"}};
  for (const auto& [table, lines] : pairs) {
    for (const std::int64_t held : {0, 1 << 28}) {
      SCOPED_TRACE(concat(table, " held ", held));
      DatasetOptions options = options_of(kTables + table);
      options.held_bytes = held;
      const TokenDataset of_table(options), of_lines(options_of(kTables + lines));
      EXPECT_EQ(of_table.kind(), DataKind::kExamples);
      ASSERT_EQ(of_table.samples_per_epoch(), of_lines.samples_per_epoch());
      EXPECT_EQ(of_table.tokens(), of_lines.tokens());
      const std::int64_t samples = 2 * of_table.samples_per_epoch();
      const Shape shape{samples, 256};
      std::vector<std::int32_t> a(static_cast<std::size_t>(samples) * 256), b = a, c = a, d = a;
      of_table.fill(0, samples, {a.data(), DType::kInt32, shape}, {b.data(), DType::kInt32, shape});
      of_lines.fill(0, samples, {c.data(), DType::kInt32, shape}, {d.data(), DType::kInt32, shape});
      EXPECT_EQ(a, c);
      EXPECT_EQ(b, d);
    }
  }
}

TEST_F(Tables, OfAFolderFollowEachOther) {
  const test::TemporaryFolder folder;
  for (const char* const name : {"file.arrow", "compressed.feather"}) {
    std::filesystem::copy_file(kTables + name, folder.path(name));
  }
  const TokenDataset both(options_of(folder.path()));
  EXPECT_EQ(both.files().size(), 2U);
  EXPECT_EQ(both.samples_per_epoch(), 80);
  EXPECT_NE(both.identity(), TokenDataset(options_of(kTables + "file.arrow")).identity());
}

TEST_F(Tables, ErrorsNameFileRowAndRemedy) {
  const auto open = [](const std::string& path) {
    return [path] { TokenDataset{options_of(path)}; };
  };
  EXPECT_THAT(open(kTables + "columns.parquet"),
              ThrowsMessage<Error>(AllOf(HasSubstr("columns.parquet' has the columns question, "),
                                         HasSubstr("name them \"text\", \"prompt\" and"))));
  EXPECT_THAT(open(kTables + "missing.parquet"),
              ThrowsMessage<Error>(AllOf(HasSubstr("row 2 of '"), HasSubstr("has neither \"pro"))));
  EXPECT_THAT(open(kTables + "binary.parquet"),
              ThrowsMessage<Error>(AllOf(HasSubstr("column 'text' in row 1 of '"),
                                         HasSubstr("type binary, which is not read"))));
  EXPECT_THAT(open(kTables + "none.parquet"), ThrowsMessage<Error>(HasSubstr("none.parquet")));
  const test::TemporaryFolder folder;
  for (const char* const name : {"prompts.parquet", "file.arrow", "stream.arrow"}) {
    std::filesystem::copy_file(kTables + name, folder.path(name));
    std::filesystem::resize_file(folder.path(name), 300);
    EXPECT_THAT(open(folder.path(name)),
                ThrowsMessage<Error>(AllOf(HasSubstr(concat(name, "' cannot be read: ")),
                                           HasSubstr("write it again with pyarrow"))));
  }
}

// In a process of its own, for a module is looked for once.
TEST(TablesDeathTest, WithoutTheModuleSayWhatToInstall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("TESSERA_ARROW_MODULE", "/nonexistent/libtessera_arrow.so", 1);
        try {
          TokenDataset{options_of(kTables + "prompts.parquet")};
        } catch (const Error& error) {
          std::fprintf(stderr, "%s", error.what());
          std::exit(error.code() == ErrorCode::kUnavailable ? 3 : 4);
        }
        std::exit(5);
      },
      ::testing::ExitedWithCode(3),
      AllOf(HasSubstr("prompts.parquet' is a table: this build has no Arrow module"),
            HasSubstr("pyarrow"), HasSubstr(".jsonl")));
}

}  // namespace
}  // namespace tessera::arrow_records_test
