#include "tessera/core/loaded_module.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "temporary_folder.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kVariable = "TESSERA_TEST_MODULE";

constexpr ModuleFile kModule{.name = "test module",
                             .file = "libtessera_test_module.so",
                             .variable = kVariable,
                             .flags = RTLD_NOW | RTLD_LOCAL,
                             .if_missing = "write one",
                             .if_unusable = "write it better"};

class LoadedModuleTest : public ::testing::Test {
 protected:
  ~LoadedModuleTest() override { unsetenv(kVariable); }

  const test::TemporaryFolder folder_;
};

TEST_F(LoadedModuleTest, OneThatIsMissingIsAProblemThatNamesThePlaces) {
  unsetenv(kVariable);
  EXPECT_FALSE(find_module(kModule));
  const LoadedModule module = load_module(kModule);
  EXPECT_EQ(module.handle, nullptr);
  const std::string beside =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libtessera_test_module.so";
  EXPECT_THAT(module.problem,
              AllOf(StartsWith("this build has no test module (libtessera_test_module.so; "),
                    HasSubstr(beside + ", "), HasSubstr("lib/tessera/libtessera_test_module.so"),
                    HasSubstr("); write one")));
}

TEST_F(LoadedModuleTest, TheVariableIsTheOnlyPlace) {
  const std::string nowhere = folder_.path("nowhere.so");
  setenv(kVariable, nowhere.c_str(), 1);
  EXPECT_EQ(load_module(kModule).problem,
            "this build has no test module (libtessera_test_module.so; looked for " + nowhere +
                "); write one");
}

TEST_F(LoadedModuleTest, OneThatCannotBeLoadedIsAProblemThatSaysWhy) {
  const std::string text = folder_.write("text.so", "not a library");
  setenv(kVariable, text.c_str(), 1);
  EXPECT_EQ(find_module(kModule), text);
  const LoadedModule module = load_module(kModule);
  EXPECT_EQ(module.path, text);
  EXPECT_THAT(module.problem,
              AllOf(StartsWith("the test module " + text + " cannot be loaded: " + text),
                    HasSubstr("; write it better")));
}

TEST_F(LoadedModuleTest, OneOfThisBuildIsLoaded) {
  setenv(kVariable, TESSERA_STUB_MODULE, 1);
  const LoadedModule module = load_module(kModule);
  EXPECT_EQ(module.problem, "");
  EXPECT_EQ(module.path, TESSERA_STUB_MODULE);
  EXPECT_NE(dlsym(module.handle, "tessera_build_identity"), nullptr);
}

TEST_F(LoadedModuleTest, OneOfAnotherBuildIsRefusedWithBothIdentities) {
  Dl_info library{};  // the C library, which every machine has, and which has no identity
  ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "gnu_get_libc_version"), &library), 0);
  for (const auto& [path, identity] :
       {std::pair(TESSERA_STALE_MODULE, "0.0.1-stale"), std::pair(library.dli_fname, "unknown")}) {
    setenv(kVariable, path, 1);
    const LoadedModule module = load_module(kModule);
    EXPECT_EQ(module.handle, nullptr);
    EXPECT_EQ(module.problem, std::string("the test module ") + path + " is of build " + identity +
                                  ", and what loads it of build " + tessera_build_identity() +
                                  "; build both together ('./run build'), or name another file in "
                                  "TESSERA_TEST_MODULE");
  }
}

}  // namespace
}  // namespace tessera
