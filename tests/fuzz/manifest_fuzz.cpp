// Bytes that are no manifest, with a checksum that matches: what is decoded must be exactly the bytes of its encoding.
#include "choices.hpp"

#include <penstock/base/check.hpp>
#include "zero/commit/manifest.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <vector>

namespace {

std::vector<std::byte> example() {
  using namespace penstock;
  zero::Manifest manifest{.run = {1, 2}, .generation = 3};
  manifest.model.units = {{.name = "u", .parameters = {{"p", ElementCount(300), 0, {20, 15}}}}};
  manifest.groups = {{}};
  manifest.client = {std::byte{1}};
  manifest.files = {"/a/swap0"};
  manifest.tensors = {{.key = {.role = tiers::Purpose::optimizer_tile, .count = 384},
                       .size = 4_KiB,
                       .block = 2_KiB,
                       .length = 4_KiB,
                       .checksums = {7, 8}}};
  return manifest.encode();
}

/// Sets the size and the checksum of the header, so that the body is looked at.
void sign(std::vector<std::byte>& bytes) {
  const std::uint64_t size = bytes.size() - 32, zero = 0;
  std::memcpy(bytes.data() + 16, &size, sizeof size);
  std::memcpy(bytes.data() + 24, &zero, sizeof zero);
  const std::uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  std::memcpy(bytes.data() + 24, &checksum, sizeof checksum);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  penstock::test::Choices choices(data, size);
  std::vector<std::byte> bytes = example();
  const bool signs = choices.byte() % 8 != 0;
  while (!choices.exhausted()) {
    const std::size_t at = choices.below(bytes.size());
    switch (choices.byte() % 4) {
      case 0: bytes[at] = std::byte(choices.byte()); break;
      case 1: bytes[at] ^= std::byte(1u << choices.below(8)); break;
      case 2: bytes.resize(std::max<std::size_t>(at, 33)); break;
      default: bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), std::byte(choices.byte()));
    }
  }
  if (signs) sign(bytes);
  const auto decoded = penstock::zero::Manifest::decode("fuzz", bytes);
  if (!decoded) return 0;
  std::vector<std::byte> again = decoded->encode();
  // The version and the reserved number are the reader's own.
  std::memcpy(again.data() + 8, bytes.data() + 8, 8);
  if (signs) sign(again);
  PENSTOCK_CHECK(again == bytes);
  return 0;
}
