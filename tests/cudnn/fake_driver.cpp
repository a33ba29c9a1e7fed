// Just enough of libcuda.so.1 for cuDNN to make plans for a device that is described to it:
// "loading" a kernel succeeds, everything that would need a GPU says cudaErrorStubLibrary.

namespace {
constexpr int kSuccess = 0;
constexpr int kStub = 34;
}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  *library = library;  // any address that is not null
  return kSuccess;
}
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = kernel;
  return kSuccess;
}
int cuLibraryUnload(void*) { return kSuccess; }
int cuGetErrorString(int, const char** text) {
  *text = "the driver is a fake";
  return kSuccess;
}

#define TESSERA_FAKE(name) \
  int name() { return kStub; }
TESSERA_FAKE(cuCtxGetCurrent)
TESSERA_FAKE(cuCtxGetLimit)
TESSERA_FAKE(cuCtxPopCurrent)
TESSERA_FAKE(cuCtxPopCurrent_v2)
TESSERA_FAKE(cuCtxPushCurrent)
TESSERA_FAKE(cuCtxPushCurrent_v2)
TESSERA_FAKE(cuDeviceGet)
TESSERA_FAKE(cuDeviceGetCount)
TESSERA_FAKE(cuGetErrorName)
TESSERA_FAKE(cuGetExportTable)
TESSERA_FAKE(cuGetProcAddress)
TESSERA_FAKE(cuGetProcAddress_v2)
TESSERA_FAKE(cuKernelGetAttribute)
TESSERA_FAKE(cuKernelSetAttribute)
TESSERA_FAKE(cuLaunchCooperativeKernel)
TESSERA_FAKE(cuLaunchKernel)
TESSERA_FAKE(cuLaunchKernelEx)
TESSERA_FAKE(cuLibraryLoadFromFile)
TESSERA_FAKE(cuLinkAddData)
TESSERA_FAKE(cuLinkAddData_v2)
TESSERA_FAKE(cuLinkComplete)
TESSERA_FAKE(cuLinkCreate)
TESSERA_FAKE(cuLinkCreate_v2)
TESSERA_FAKE(cuLinkDestroy)
TESSERA_FAKE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
TESSERA_FAKE(cuOccupancyMaxActiveClusters)
TESSERA_FAKE(cuOccupancyMaxPotentialClusterSize)
TESSERA_FAKE(cuStreamGetCtx)
TESSERA_FAKE(cuTensorMapEncodeIm2col)
TESSERA_FAKE(cuTensorMapEncodeTiled)
TESSERA_FAKE(cuTensorMapReplaceAddress)
#undef TESSERA_FAKE

}  // extern "C"
