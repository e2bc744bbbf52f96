// BlockTable holds the checksums of a swap file: unchanged payloads must verify, and changed ones must not.
#include "choices.hpp"
#include "kit/seeded_random.hpp"

#include <penstock/base/check.hpp>
#include "tiers/store/block_table.hpp"

#include <algorithm>
#include <optional>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using penstock::ByteCount;
  using penstock::ConstHostSpan;
  using penstock::tiers::BlockTable;
  penstock::test::Choices choices(data, size);
  const auto owner = static_cast<std::uint32_t>(choices.number());
  const ByteCount block(1 + choices.below(600));
  std::vector<std::byte> payload(choices.below(4000));
  const bool uniform = choices.byte() % 4 == 0;  // blocks that are equal
  penstock::test::SeededRandom random(choices.number());
  for (std::byte& byte : payload) byte = uniform ? std::byte{0x77} : std::byte(random.next());
  const ConstHostSpan span{std::span<const std::byte>(payload)};
  BlockTable table(owner, span.size(), block), another(owner + 1, span.size(), block);
  const std::size_t count = table.block_count();
  PENSTOCK_CHECK(count == penstock::ceil_divide(payload.size(), block.value()));
  PENSTOCK_CHECK(table.first_mismatch(span) == (count > 0 ? std::optional<std::size_t>(0) : std::nullopt));

  std::uint64_t step = choices.number();
  table.seal_all(span, step);
  another.seal_all(span, step);
  PENSTOCK_CHECK(!table.first_mismatch(span));
  for (std::size_t i = 0; i < count; ++i) {
    PENSTOCK_CHECK(table.record(i).generation == 1 && table.record(i).step == step);
    PENSTOCK_CHECK(table.record(i).hash != another.record(i).hash);
    for (std::size_t j = 0; j < i; ++j) PENSTOCK_CHECK(table.record(i).hash != table.record(j).hash);
  }

  while (!choices.exhausted() && count > 0) {
    const std::uint64_t bit = choices.below(payload.size() * 8);
    const std::size_t which = bit / 8 / block.value();
    payload[bit / 8] ^= std::byte(1u << bit % 8);
    PENSTOCK_CHECK(table.first_mismatch(span) == which);
    if (choices.byte() % 2 == 0) {
      payload[bit / 8] ^= std::byte(1u << bit % 8);
    } else {
      const std::uint64_t generation = table.record(which).generation;
      table.seal(which, table.block(span, which), ++step);
      PENSTOCK_CHECK(table.record(which).generation == generation + 1 && table.record(which).step == step);
    }
    PENSTOCK_CHECK(!table.first_mismatch(span));
  }
  return 0;
}
