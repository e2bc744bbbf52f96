#include "zero/comm/nccl/nccl_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

namespace penstock::zero {

namespace {

constexpr const char* operation = "NcclLibrary::load";

struct Close {
  void operator()(void* library) const { dlclose(library); }
};

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Error unusable(const std::string& file, std::string reason) {
  return Error::unsupported(operation)
      .object(file)
      .reason(std::move(reason))
      .advice("install NCCL " + version_text(NcclLibrary::oldest) +
              " or newer (libnccl2), or set PENSTOCK_NCCL to the path of its libnccl.so.2");
}

std::string error_of_the_linker() {
  const char* const text = dlerror();
  return text == nullptr ? "no reason given" : text;
}

/// Null, if there is none.
template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}
template <class Function>
Result<void> find(void* library, const std::string& file, const char* name, Function& function) {
  if (find(library, name, function)) return ok();
  return unusable(file, "NCCL lacks a function: " + error_of_the_linker());
}

}  // namespace

Result<NcclLibrary> NcclLibrary::load(const std::string& file) {
  std::unique_ptr<void, Close> library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return unusable(file, "NCCL cannot be loaded: " + error_of_the_linker());
  NcclLibrary nccl;
  // First: an old library may lack the others.
  PENSTOCK_TRY(find(library.get(), file, "ncclGetVersion", nccl.ncclGetVersion));
  int version = 0;
  if (nccl.ncclGetVersion(&version) != ncclSuccess || version < oldest) {
    return unusable(file, "NCCL is too old").wanted(version_text(oldest)).got(version_text(version));
  }
#define PENSTOCK_NCCL_FIND(function) PENSTOCK_TRY(find(library.get(), file, #function, nccl.function))
  PENSTOCK_NCCL_FUNCTIONS(PENSTOCK_NCCL_FIND);
#undef PENSTOCK_NCCL_FIND
#define PENSTOCK_NCCL_FIND(function) (void)find(library.get(), #function, nccl.function)
  PENSTOCK_NCCL_FUNCTIONS_2_27(PENSTOCK_NCCL_FIND);
#undef PENSTOCK_NCCL_FIND
  (void)library.release();  // its threads may run until the process ends
  return nccl;
}

Result<const NcclLibrary*> NcclLibrary::instance() {
  static const Result<NcclLibrary> library = [] {
    const char* const file = std::getenv("PENSTOCK_NCCL");
    return load(file == nullptr || *file == '\0' ? "libnccl.so.2" : file);
  }();
  if (!library) return library.error();
  return &*library;
}

}  // namespace penstock::zero
