#include "nvme_swap/tile_update.hpp"

#include <gtest/gtest.h>
#include <cstring>

namespace penstock::bench {
namespace {

constexpr ElementCount elements{20'000};  // a block and a part of one

/// Two tiles of a file as a load holds them, padded for direct I/O.
class TileUpdateTest : public testing::Test {
 protected:
  swap::DiskBenchmark::Piece piece(std::size_t tile) {
    const ByteCount size =
        round_up(cpu_adam::tile_bytes(cpu_adam::StateFormat::fp32, elements).value(), Alignment(4096));
    bytes_[tile].resize(size.value());
    return {.path = 0,
            .offset = FileOffset(size.value() * tile),
            .bytes = HostSpan(std::span<std::byte>(bytes_[tile]))};
  }
  std::unique_ptr<TileUpdate> update(bool integrity) {
    return TileUpdate::create({.elements = elements, .integrity = integrity, .workers = &workers_}).value();
  }

  parallel::Workers workers_ = parallel::Workers::create({.threads = 1}).value();
  std::vector<std::byte> bytes_[2];
};

TEST_F(TileUpdateTest, UpdatesEachTileByOneStep) {
  const auto tiles = update(true);
  tiles->initialize(piece(0)).value();
  tiles->initialize(piece(1)).value();
  const std::vector<std::byte> first = bytes_[0], second = bytes_[1];

  tiles->update(piece(0)).value();

  EXPECT_NE(bytes_[0], first);
  EXPECT_EQ(bytes_[1], second);
  tiles->update(piece(0)).value();
  tiles->update(piece(1)).value();
}

TEST_F(TileUpdateTest, RefusesChangedBytesUnlessIntegrityIsOff) {
  for (const bool integrity : {true, false}) {
    const auto tiles = update(integrity);
    tiles->initialize(piece(0)).value();

    bytes_[0][200'000] ^= std::byte{1};
    const auto outcome = tiles->update(piece(0));

    EXPECT_EQ(outcome.has_value(), !integrity);
    EXPECT_TRUE(outcome || outcome.error().code() == ErrorCode::corrupted);
  }
}

TEST_F(TileUpdateTest, RefusesTheBytesOfAnotherTile) {
  const auto tiles = update(true);
  tiles->initialize(piece(0)).value();
  tiles->initialize(piece(1)).value();

  std::swap(bytes_[0], bytes_[1]);

  EXPECT_FALSE(tiles->update(piece(0)));
}

}  // namespace
}  // namespace penstock::bench
