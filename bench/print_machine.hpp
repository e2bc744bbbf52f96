#pragma once

#include "measure/machine.hpp"
#include "measure/storage_device.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <fmt/format.h>
#include <filesystem>

namespace penstock::bench {

/// Prints on what the figures were measured: the machine, and the drive of `path`. Errors: those of
/// describe_storage().
inline Result<void> print_machine(const std::filesystem::path& path, TimePoint io_deadline) {
  const measure::Machine machine = measure::describe_machine();
  PENSTOCK_TRY_ASSIGN(const auto storage, measure::describe_storage(path, io_deadline));
  fmt::print("{}, {} cores, load {:.1f}; {}\n", machine.cpu, machine.cores, machine.load,
             measure::to_string(storage));
  if (storage.virtual_because) fmt::print("note: {}\n", *storage.virtual_because);
  if (storage.cached_because)
    fmt::print("note: the figures measure the page cache, not a disk: {}\n", *storage.cached_because);
  return ok();
}

}  // namespace penstock::bench
