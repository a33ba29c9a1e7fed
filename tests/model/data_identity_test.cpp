#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "temporary_folder.h"
#include "tessera/model/dataset.h"

// What tells a data set from others, for processes that must all train on the same.
namespace tessera {
namespace {

using test::TemporaryFolder;
using ::testing::MatchesRegex;

std::map<std::string, std::string> identity(DatasetOptions options) {
  options.sequence_length = 4;
  std::map<std::string, std::string> values;
  for (const NamedText& value : TokenDataset(std::move(options)).identity()) {
    values[value.name] = value.value;
  }
  return values;
}

TEST(DataIdentity, DoesNotDependOnWhereFilesLie) {
  const TemporaryFolder here, there;
  for (const TemporaryFolder* folder : {&here, &there}) {
    folder->write("texts/a.txt", "alpha beta");
    folder->write("texts/deep/b.txt", "gamma");
  }
  const auto values = identity({.path = here.path("texts")});
  EXPECT_EQ(values, identity({.path = there.path("texts")}));
  EXPECT_EQ(values.at("kind of data"), "text");
  EXPECT_EQ(values.at("names of data files"), "a.txt, b.txt");
  EXPECT_EQ(values.at("bytes of data files"), "10, 5");
  EXPECT_THAT(values.at("content of data files"), MatchesRegex("hash ................"));
  EXPECT_EQ(values.at("order of samples"), "length 4, tokens 0 to 15, seed 0");
}

TEST(DataIdentity, NamesWhatDiffers) {
  const TemporaryFolder folder;
  const std::string text = folder.write("a/data.txt", "some text to learn");
  const auto usual = identity({.path = text});
  const auto differences = [&](const DatasetOptions& options) {
    std::vector<std::string> names;
    for (const auto& [name, value] : identity(options)) {
      if (usual.at(name) != value) names.push_back(name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(differences({.path = folder.write("b/data.txt", "some text to Learn")}),
            Names{"content of data files"});
  EXPECT_EQ(differences({.path = folder.write("c/other.txt", "some text to learn")}),
            Names{"names of data files"});
  EXPECT_EQ(differences({.path = text, .seed = 1}), Names{"order of samples"});
  EXPECT_EQ(differences({.path = text, .shuffle = false}), Names{"order of samples"});
  EXPECT_EQ(differences({.path = text, .validation_fraction = 0.25}), Names{"order of samples"});
}

TEST(DataIdentity, OfManyFilesSomeAreNamedAndAllCount) {
  const TemporaryFolder folder;
  for (int i = 0; i < 7; ++i) folder.write("data/" + std::to_string(i) + ".txt", "text");
  const auto before = identity({.path = folder.path("data")});
  EXPECT_THAT(before.at("names of data files"),
              MatchesRegex("0.txt, 1.txt, 2.txt, 3.txt and 3 more \\(hash ................\\)"));
  std::filesystem::rename(folder.path("data/6.txt"), folder.path("data/7.txt"));
  EXPECT_NE(identity({.path = folder.path("data")}).at("names of data files"),
            before.at("names of data files"));
}

TEST(DataIdentity, OfMuchDataBlocksAreRead) {
  const TemporaryFolder folder;
  std::string bytes(20 << 20, 'a');
  const auto content = [&](std::size_t changed) {
    bytes[changed] = 'b';
    const std::string path = folder.write("data.txt", bytes);
    bytes[changed] = 'a';
    return identity({.path = path, .kind = DataKind::kText}).at("content of data files");
  };
  const std::string usual = content(100'000);  // between the first two blocks
  EXPECT_EQ(content(100'001), usual);
  EXPECT_NE(content(0), usual);
  EXPECT_NE(content(bytes.size() - 1), usual);
  EXPECT_NE(content((bytes.size() - 65536) / 127 * 64 + 300), usual);  // in block 64 of 128
}

}  // namespace
}  // namespace tessera
