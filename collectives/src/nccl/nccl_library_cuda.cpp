#include "nccl/nccl_library_cuda.h"

#include <dlfcn.h>

#include "tessera/core/error.h"

namespace tessera::cuda {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 18, 1);  // the first with ncclCommSplit

void* open_library() {
  if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) return RTLD_DEFAULT;
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  const char* why = handle == nullptr ? dlerror() : nullptr;
  require(handle != nullptr, ErrorCode::kUnavailable, "NCCL cannot be loaded (",
          why != nullptr ? why : "no reason given",
          "); install NCCL 2.18 or newer (libnccl2), or name its folder in LD_LIBRARY_PATH");
  return handle;
}

template <typename Function>
void find_optional(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
}

template <typename Function>
void find(void* handle, const char* name, Function& function) {
  find_optional(handle, name, function);
  require(function != nullptr, ErrorCode::kUnavailable, "libnccl.so.2 has no ", name,
          ": it is older than 2.18; install a newer NCCL");
}

NcclLibrary load() {
  void* const handle = open_library();
  NcclLibrary library;
  find(handle, "ncclGetVersion", library.get_version);
  int version = 0;
  require(library.get_version(&version) == ncclSuccess && version >= kOldest,
          ErrorCode::kUnavailable, "NCCL has version code ", version, ", older than ", kOldest,
          " (2.18.1); install a newer one");
  find(handle, "ncclGetUniqueId", library.get_unique_id);
  find(handle, "ncclCommInitRankConfig", library.comm_init_rank_config);
  find(handle, "ncclCommSplit", library.comm_split);
  find(handle, "ncclCommFinalize", library.comm_finalize);
  find(handle, "ncclCommDestroy", library.comm_destroy);
  find(handle, "ncclCommAbort", library.comm_abort);
  find(handle, "ncclCommGetAsyncError", library.comm_get_async_error);
  find(handle, "ncclCommCount", library.comm_count);
  find(handle, "ncclCommUserRank", library.comm_user_rank);
  find(handle, "ncclGetErrorString", library.get_error_string);
  find(handle, "ncclGetLastError", library.get_last_error);
  find(handle, "ncclAllGather", library.all_gather);
  find(handle, "ncclReduceScatter", library.reduce_scatter);
  find(handle, "ncclAllReduce", library.all_reduce);
  find(handle, "ncclBroadcast", library.broadcast);
  find(handle, "ncclSend", library.send);
  find(handle, "ncclRecv", library.recv);
  find(handle, "ncclGroupStart", library.group_start);
  find(handle, "ncclGroupEnd", library.group_end);
  find_optional(handle, "ncclCommRegister", library.comm_register);
  find_optional(handle, "ncclCommDeregister", library.comm_deregister);
  find_optional(handle, "ncclMemAlloc", library.mem_alloc);
  find_optional(handle, "ncclMemFree", library.mem_free);
  return library;
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace tessera::cuda
