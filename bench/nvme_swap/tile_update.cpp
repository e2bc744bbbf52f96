#include "tile_update.hpp"

#include "zero/engine/block_seal.hpp"

#include <algorithm>
#include <string>

namespace penstock::bench {

namespace {

/// Larger than a cache, because a trainer's gradients and parameters come from memory.
constexpr ByteCount stream_bytes = 64_MiB;

/// This many neighbouring tiles have different initial parameters, so that swapped tiles are detected.
constexpr std::uint64_t distinct_tiles = 1024;

/// The tile's number, counted from the start of its file.
std::uint64_t index_of(const swap::DiskBenchmark::Piece& piece) {
  return piece.offset.value() / piece.bytes.size().value();
}

}  // namespace

Result<std::unique_ptr<TileUpdate>> TileUpdate::create(const Options& options) {
  PENSTOCK_TRY_ASSIGN(const auto tile, cpu_adam::tile_bytes(options.format, options.elements));
  PENSTOCK_TRY_ASSIGN(
      const auto block,
      cpu_adam::block_bytes(options.format, std::min(options.elements, cpu_adam::block_elements)));
  const ByteCount stream = size_of(DType::bf16) * options.elements.value();
  PENSTOCK_TRY_ASSIGN(auto arena, tiers::HostArena::create({.size = std::max(stream_bytes, stream) * 2}));
  // Of magnitude 2^-7 to 2^-6, in bf16.
  std::uint32_t bits = 1;
  for (std::uint16_t& gradient : arena.bytes().as<std::uint16_t>()) {
    bits = bits * 1664525 + 1013904223;
    gradient = static_cast<std::uint16_t>((bits >> 16 & 0x8000) | 0x3c00 | (bits >> 16 & 0x7f));
  }
  return std::unique_ptr<TileUpdate>(new TileUpdate(options, tile, block, std::move(arena)));
}

TileUpdate::TileUpdate(const Options& options, ByteCount tile, ByteCount block, tiers::HostArena arena)
    : options_(options), tile_(tile), block_(block), arena_(std::move(arena)) {
  for (std::uint64_t i = 0; i < options_.elements.value() + distinct_tiles; ++i) {
    initial_.push_back(1.0f + static_cast<float>(i % distinct_tiles) / distinct_tiles);
  }
}

/// All pieces of the load have one size. Each begins with its tile, followed by padding for direct I/O.
TileUpdate::Tile& TileUpdate::tile_of(const swap::DiskBenchmark::Piece& piece) {
  if (tiles_.size() <= piece.path) tiles_.resize(piece.path + 1);
  std::vector<Tile>& tiles = tiles_[piece.path];
  const std::uint64_t index = index_of(piece);
  while (tiles.size() <= index) {
    const std::uint64_t owner = piece.path << 32 | tiles.size();
    tiles.push_back({.blocks = tiers::BlockTable(owner, tile_, block_)});
  }
  return tiles[index];
}

/// Tiles that are far apart share gradients and parameters. In the split formats the parameters are the upper halves
/// of the masters; any values will do there.
cpu_adam::AdamTile TileUpdate::view(const swap::DiskBenchmark::Piece& piece) const {
  const ByteCount stream = size_of(DType::bf16) * options_.elements.value(), half = arena_.bytes().size() / 2;
  const ByteCount begin = stream * (index_of(piece) % (half / stream));
  return {.state = piece.bytes.subspan(ByteCount(), tile_),
          .gradient = arena_.bytes().subspan(begin, stream),
          .parameter = arena_.bytes().subspan(half + begin, stream),
          .elements = options_.elements,
          .format = options_.format,
          .first_element = index_of(piece) * options_.elements.value()};
}

Result<void> TileUpdate::initialize(const swap::DiskBenchmark::Piece& piece) {
  Tile& tile = tile_of(piece);
  const cpu_adam::AdamTile adam = view(piece);
  const auto initial =
      std::span<const float>(initial_).subspan(index_of(piece) % distinct_tiles, options_.elements.value());
  PENSTOCK_TRY(cpu_adam::initialize_tile(ConstHostSpan(initial), DType::fp32, adam, options_.workers));
  if (options_.integrity) tile.blocks.seal_all(adam.state, 0);
  return ok();
}

Result<void> TileUpdate::update(const swap::DiskBenchmark::Piece& piece) {
  Tile& tile = tile_of(piece);
  const TimePoint began = Clock::steady().now();
  zero::BlockSeal seal(tile.blocks, tile.step + 1);
  PENSTOCK_TRY_ASSIGN(
      const auto outcome,
      cpu_adam::adam_step({.weight_decay = 0.01f}, tile.step + 1, 1.0f, view(piece),
                          {.workers = options_.workers, .observer = options_.integrity ? &seal : nullptr}));
  if (outcome.first_rejected_block) {
    return Error(ErrorCode::corrupted, "nvme_swap")
        .reason("a block that was read back differs from the bytes written")
        .object("path " + std::to_string(piece.path) + ", block " +
                std::to_string(*outcome.first_rejected_block) + " of the tile")
        .at(piece.offset)
        .advice("check the drive and the kernel log");
  }
  ++tile.step;
  ++total_.tiles;
  total_.seconds += std::chrono::duration<double>(Clock::steady().now() - began).count();
  return ok();
}

}  // namespace penstock::bench
