#include "zero/comm/mpi/mpi_library.hpp"

#include <dlfcn.h>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace penstock::zero {

namespace {

constexpr const char* operation = "load_mpi_module";

Error cannot_load(const std::string& file) {
  const char* const text = ::dlerror();
  return Error::unsupported(operation)
      .reason("MPI cannot be used")
      .object(file)
      .got(text ? text : "no message of the dynamic linker")
      .advice("set PENSTOCK_MPI to the path of " + std::string(MpiModule::file) +
              ", which is installed with this library, install MPI (Debian: openmpi-bin), or use another "
              "transport");
}

/// A path, or a name for which the dynamic linker searches.
std::string module_file(const Environment& environment) {
  if (auto chosen = environment("PENSTOCK_MPI"); chosen && !chosen->empty()) return *std::move(chosen);
  Dl_info self{};
  const bool found = ::dladdr(reinterpret_cast<const void*>(&module_file), &self) != 0;
  std::error_code error;
  // The first is the program's name as it was called, if this code is in the program.
  for (const std::filesystem::path& neighbour : {std::filesystem::path(found ? self.dli_fname : ""),
                                                 std::filesystem::read_symlink("/proc/self/exe", error)}) {
    if (!neighbour.has_parent_path()) continue;
    for (const char* const folder : {"", "../" PENSTOCK_LIBRARY_FOLDER}) {
      std::filesystem::path file = neighbour.parent_path() / folder / MpiModule::file;
      if (std::filesystem::exists(file, error)) return file;
    }
  }
  return MpiModule::file;
}

}  // namespace

Result<const MpiModule*> load_mpi_module(const Environment& environment) {
  if (!PENSTOCK_HAS_MPI) {
    return Error::unsupported(operation)
        .reason("this build has no MPI")
        .advice(
            "install libopenmpi-dev and build with PENSTOCK_MPI=ON (a CMake option), or use another "
            "transport");
  }
  const std::string file = module_file(environment);
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) return cannot_load(file);
  void* const entry = ::dlsym(library, MpiModule::entry);
  if (!entry) return cannot_load(file);
  const MpiModule* const module = reinterpret_cast<MpiModule::Entry*>(entry)();
  if (std::string_view(module->build) != MpiModule::this_build) {
    return Error::unsupported(operation)
        .reason("the library for MPI belongs to another build")
        .object(file)
        .wanted(MpiModule::this_build)
        .got(module->build)
        .advice("install both from one build, or set PENSTOCK_MPI to the right file");
  }
  return module;
}

}  // namespace penstock::zero
