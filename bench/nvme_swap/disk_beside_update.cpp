#include "disk_beside_update.hpp"

#include "background_work.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace penstock::bench {

namespace {

constexpr std::uint64_t tiles = 16;  // more than a cache holds: those of a swap come from memory too

}  // namespace

Result<std::unique_ptr<DiskBesideUpdate>> DiskBesideUpdate::create(const TileUpdate::Options& options,
                                                                   ByteCount tile) {
  PENSTOCK_TRY_ASSIGN(auto update, TileUpdate::create(options));
  PENSTOCK_TRY_ASSIGN(auto arena, tiers::HostArena::create({.size = tile * tiles}));
  std::unique_ptr<DiskBesideUpdate> beside(new DiskBesideUpdate(std::move(update), std::move(arena), tile));
  for (std::uint64_t i = 0; i < tiles; ++i) PENSTOCK_TRY(beside->update_->initialize(beside->piece(i)));
  return beside;
}

swap::DiskBenchmark::Piece DiskBesideUpdate::piece(std::uint64_t number) const {
  const ByteCount begin = tile_ * number;
  return {.offset = FileOffset(begin.value()), .bytes = arena_.bytes().subspan(begin, tile_)};
}

Result<void> DiskBesideUpdate::update_next(double share) {
  const TimePoint began = Clock::steady().now();
  PENSTOCK_TRY(update_->update(piece(next_++ % tiles)));
  const std::chrono::duration<double> took = Clock::steady().now() - began;
  std::this_thread::sleep_for(took * (1 / share - 1));
  return ok();
}

Result<swap::DiskRates> DiskBesideUpdate::measure(SwapFileBenchmark& file, double share, TimePoint duration) {
  BackgroundWork updates([this, share] { return update_next(share); });
  auto rates = file.measure(duration);
  PENSTOCK_TRY(updates.end());
  return rates;
}

}  // namespace penstock::bench
