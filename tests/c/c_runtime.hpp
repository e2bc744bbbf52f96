#pragma once

#include "c_handles.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <cstdint>
#include <string>

// A runtime of the C interface, and its tensors.
namespace penstock::test {

using Runtime = Owned<penstock_runtime, penstock_runtime_free>;

/// With room for four tensors of 64 KiB in memory, and for 16 on disk.
inline Runtime make_runtime(const ScratchDirectory& scratch) {
  const std::string directory = scratch.path().string();
  const penstock_path path{.size = sizeof(path), .directory = directory.c_str(), .capacity = 1 << 20};
  const penstock_runtime_options options{
      .size = sizeof(options), .host_budget = 256 << 10, .paths = &path, .path_count = 1};
  return made<Runtime>([&](auto runtime) { return penstock_runtime_create(&options, runtime); });
}
inline penstock_tensor add(const Runtime& runtime, const penstock_tensor_options& options) {
  penstock_tensor tensor = 0;
  succeed(penstock_runtime_add(runtime.get(), &options, &tensor));
  return tensor;
}
inline penstock_tensor add(const Runtime& runtime, const char* name, std::uint64_t bytes = 64 << 10) {
  return add(runtime, {.size = sizeof(penstock_tensor_options), .name = name, .bytes = bytes});
}

}  // namespace penstock::test
