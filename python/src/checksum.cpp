// Checksums of memory, which penstock.deepspeed compares what it reads with.
#include "bind.hpp"
#include "without_gil.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>

namespace penstock::python {

namespace {

std::uint64_t checksum(std::uintptr_t address, std::uint64_t nbytes) {
  const WithoutGil released;
  return XXH3_64bits(reinterpret_cast<const void*>(address), nbytes);
}

}  // namespace

void bind_checksum(nanobind::module_& module) {
  module.def("_checksum", &checksum, nanobind::arg("address"), nanobind::arg("nbytes"),
             "XXH3-64 of bytes in host memory.");
}

}  // namespace penstock::python
