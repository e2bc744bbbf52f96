// Checksums of memory, which penstock.deepspeed compares what it reads with.
#include "bind.hpp"
#include "without_gil.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace penstock::python {

namespace {

const std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<const std::byte*>(address);
}

std::uint64_t checksum(std::uintptr_t address, std::uint64_t nbytes) {
  const WithoutGil released;
  return XXH3_64bits(at(address), nbytes);
}

std::uint64_t sample_checksum(std::uintptr_t address, std::uint64_t nbytes) {
  constexpr std::uint64_t blocks = 16, block = 4096;
  if (nbytes <= blocks * block) return XXH3_64bits(at(address), nbytes);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < blocks; ++i)
    sum = XXH3_64bits_withSeed(at(address) + (nbytes - block) / (blocks - 1) * i, block, sum);
  return sum;
}

}  // namespace

void bind_checksum(nanobind::module_& module) {
  module.def("_checksum", &checksum, nanobind::arg("address"), nanobind::arg("nbytes"),
             "XXH3-64 of bytes in host memory.");
  module.def("_sample_checksum", &sample_checksum, nanobind::arg("address"), nanobind::arg("nbytes"),
             "That of 16 blocks of 4 KiB that are spread over the bytes, or of all of them.");
}

}  // namespace penstock::python
