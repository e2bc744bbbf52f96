#include "swap_file_benchmark.hpp"

#include "tiers/io/bounded_call.hpp"
#include "tiers/io/choose_engine.hpp"
#include "tiers/io/file_errors.hpp"

#include <penstock/base/time.hpp>

#include <fcntl.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace penstock::bench {

namespace {

constexpr const char* operation = "SwapFileBenchmark::create";

struct Opened {
  tiers::File file;
  std::unique_ptr<tiers::IoEngine> engine;
};

/// The same open file once more, with an engine for it.
Result<Opened> open_again(tiers::File::Properties properties, std::uint32_t depth) {
  const int copy = ::fcntl(static_cast<int>(properties.handle), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return tiers::file_error(operation, properties.name, errno);
  properties.handle = tiers::FileHandle{copy};
  tiers::File file(tiers::real_file_system(), properties);
  PENSTOCK_TRY_ASSIGN(auto chosen, tiers::choose_engine(tiers::EngineChoice::automatic, depth, properties));
  return Opened{std::move(file), std::move(chosen.engine)};
}

}  // namespace

Result<std::unique_ptr<SwapFileBenchmark>> SwapFileBenchmark::create(const swap::PathReport& path,
                                                                     TimePoint io_deadline) {
  const ByteCount block(path.file.alignment.bytes());
  const ByteCount transfer = std::min(path.request_max, path.capacity) / block * block;
  const std::uint64_t slots = ceil_divide(path.in_flight_max.value(), transfer.value());
  PENSTOCK_TRY_ASSIGN(auto arena, tiers::HostArena::create({.size = transfer * slots}));
  // A file system may never answer.
  PENSTOCK_TRY_ASSIGN(
      auto opened, tiers::bounded_call<Opened>(operation, path.file.name, io_deadline,
                                               [file = path.file, depth = static_cast<std::uint32_t>(slots)] {
                                                 return open_again(file, depth);
                                               }));
  opened.engine->attach(opened.file.handle(), arena.bytes());
  PENSTOCK_TRY_ASSIGN(auto file, tiers::BlockFile::create(std::move(opened.file), *opened.engine,
                                                          {.size = path.capacity / transfer * transfer,
                                                           .request_max = transfer,
                                                           .in_flight_max = path.in_flight_max,
                                                           .deadline = io_deadline}));
  std::unique_ptr<SwapFileBenchmark> benchmark(
      new SwapFileBenchmark(transfer, std::move(arena), std::move(opened.engine), std::move(file)));
  PENSTOCK_TRY(benchmark->run(Pattern::rewrite, path.capacity * 2, {}));
  return benchmark;
}

SwapFileBenchmark::SwapFileBenchmark(ByteCount transfer, tiers::HostArena arena,
                                     std::unique_ptr<tiers::IoEngine> engine, tiers::BlockFile file)
    : transfer_(transfer),
      arena_(std::move(arena)),
      engine_(std::move(engine)),
      file_(std::move(file)),
      places_(arena_.bytes().size() / transfer) {}

SwapFileBenchmark::~SwapFileBenchmark() {
  if (engine_->close(Clock::steady().now() + std::chrono::seconds(1))) return;
  arena_.leak();
  file_.leave_open();
}

Result<swap::DiskRates> SwapFileBenchmark::measure(TimePoint duration) {
  PENSTOCK_TRY_ASSIGN(const double read, run(Pattern::read, {}, duration));
  PENSTOCK_TRY_ASSIGN(const double mixed, run(Pattern::rewrite, {}, duration));
  return swap::DiskRates{.read = read, .write = mixed, .mixed = mixed};
}

Result<double> SwapFileBenchmark::run(Pattern pattern, ByteCount least, TimePoint duration) {
  const Clock& clock = Clock::steady();
  const TimePoint began = clock.now();
  ByteCount moved;
  for (std::size_t slot = 0; slot < places_.size(); ++slot) PENSTOCK_TRY(read_next(slot));
  while (file_.busy()) {
    file_.poll(file_.next_deadline());
    while (const auto finished = file_.take_finished()) {
      PENSTOCK_TRY(finished->result);
      moved += transfer_;
      const std::size_t slot = finished->tag;
      if (pattern == Pattern::rewrite && finished->operation == tiers::IoOperation::read) {
        PENSTOCK_TRY(file_.start(tiers::IoOperation::write, places_[slot], buffer(slot), slot));
      } else if (moved < least || clock.now() - began < duration) {
        PENSTOCK_TRY(read_next(slot));
      }
    }
  }
  return static_cast<double>(moved.value()) / std::chrono::duration<double>(clock.now() - began).count();
}

/// Goes through the file in ascending order, and again from its start.
Result<void> SwapFileBenchmark::read_next(std::size_t slot) {
  places_[slot] = std::exchange(next_, next_ + transfer_);
  if (next_.value() == file_.size().value()) next_ = FileOffset(0);
  return file_.start(tiers::IoOperation::read, places_[slot], buffer(slot), slot);
}

}  // namespace penstock::bench
