#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda/cudnn_library_cuda.h"
#include "nccl/nccl_library_cuda.h"
#include "tessera/core/error.h"

// A cuDNN or an NCCL that is missing, too old or not whole: an error that says what to install.
namespace {
bool hide_libraries = false;
}

/// The loader, as the sources under test find it: it can be told that neither library is here.
extern "C" void* dlopen(const char* file, int mode) noexcept {
  const auto load = reinterpret_cast<void* (*)(const char*, int)>(dlsym(RTLD_NEXT, "dlopen"));
  const bool one_of_them = file != nullptr && (std::strcmp(file, "libcudnn.so.9") == 0 ||
                                               std::strcmp(file, "libnccl.so.2") == 0);
  return load(hide_libraries && one_of_them ? "libthat.is.not.here" : file, mode);
}

namespace tessera::cuda {
namespace {

void expect_unavailable(const std::vector<std::string>& words, const std::function<void()>& use) {
  try {
    use();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << "'" << word << "' is not in: " << error.what();
    }
  }
}

void use_cudnn() { const CudnnLibrary library; }
void use_nccl() { nccl(); }

/// Loads a stub under the library's name: the loader gives it to whoever asks for that next.
void load_stub(const char* file, const char* version) {
  setenv("STUB_VERSION", version, 1);
  ASSERT_NE(dlopen(file, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
}

TEST(LibraryVersions, ThatAreMissingAreNamed) {
  hide_libraries = true;
  expect_unavailable({"cuDNN is not here (libthat.is.not.here", "install cuDNN 9.15.1"}, use_cudnn);
  expect_unavailable({"NCCL cannot be loaded (libthat.is.not.here", "install NCCL 2.18"}, use_nccl);
}

TEST(LibraryVersions, CudnnThatIsTooOldIsRefused) {
  load_stub(TESSERA_STUB_CUDNN, "91500");
  expect_unavailable({"version 91500", "older than 91501", "install cuDNN 9.15.1"}, use_cudnn);
}

TEST(LibraryVersions, CudnnWithoutAFunctionIsRefused) {
  load_stub(TESSERA_STUB_CUDNN, "91501");
  expect_unavailable({"libcudnn.so.9 has no cudnnGetErrorString"}, use_cudnn);
}

TEST(LibraryVersions, NcclThatIsTooOldIsRefused) {
  load_stub(TESSERA_STUB_NCCL, "21703");
  expect_unavailable({"21703", "older than 21801", "install a newer one"}, use_nccl);
}

TEST(LibraryVersions, NcclWithoutAFunctionIsRefused) {
  load_stub(TESSERA_STUB_NCCL, "21801");
  expect_unavailable({"libnccl.so.2 has no ncclGetUniqueId"}, use_nccl);
}

}  // namespace
}  // namespace tessera::cuda
