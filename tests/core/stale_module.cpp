#include "tessera/core/loaded_module.h"

// A module that another build has left behind.
const char* tessera_build_identity() { return "0.0.1-stale"; }
