#include "tiers/io/range_mover.hpp"

#include "base/abandon.hpp"
#include "tiers/io/choose_engine.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace penstock::tiers {

namespace {

constexpr ByteCount copies_max = 16_MiB;

}  // namespace

RangeMover::~RangeMover() {
  close_engine();
}

Result<File> RangeMover::open(IoOperation operation, const std::filesystem::path& name,
                              DirectIo direct) const {
  return operation == IoOperation::read ? options_.files->open_to_read(name, direct)
                                        : options_.files->open(name, direct);
}

Result<void> RangeMover::move(IoOperation operation, const std::filesystem::path& name, FileOffset offset,
                              HostSpan bytes) {
  PENSTOCK_TRY_ASSIGN(File file, open(operation, name, DirectIo::preferred));
  if (!file.properties().direct)
    notes_.insert(name.string() + " is buffered: " + file.properties().direct_note);
  const Alignment alignment =
      file.properties().alignment;  // whole pages; of engines, also without direct I/O
  const ByteCount to_page = round_up(ByteCount(offset.value()), alignment) - ByteCount(offset.value());
  const ByteCount head = std::min(to_page, bytes.size());
  const ByteCount rest = bytes.size() - head;
  const ByteCount pages(rest.value() / alignment.bytes() * alignment.bytes()), tail = rest - pages;
  if (!pages.is_zero())
    PENSTOCK_TRY(move_pages(operation, std::move(file), offset + head, bytes.subspan(head, pages)));
  if (!head.is_zero()) PENSTOCK_TRY(move_end(operation, name, offset, bytes.subspan({}, head)));
  if (tail.is_zero()) return ok();
  return move_end(operation, name, offset + head + pages, bytes.subspan(head + pages, tail));
}

Result<void> RangeMover::move_end(IoOperation operation, const std::filesystem::path& name, FileOffset offset,
                                  HostSpan bytes) const {
  PENSTOCK_TRY_ASSIGN(File file, open(operation, name, DirectIo::off));
  return operation == IoOperation::read ? file.read(offset, bytes) : file.write(offset, bytes);
}

Result<void> RangeMover::move_pages(IoOperation operation, File file, FileOffset offset, HostSpan bytes) {
  PENSTOCK_TRY(make_engine(file));
  const Alignment alignment = file.properties().alignment;
  const std::string name = file.properties().name;
  PENSTOCK_TRY_ASSIGN(BlockFile block_file,
                      BlockFile::create(std::move(file), *engine_,
                                        {.size = ByteCount(offset.value()) + bytes.size(),
                                         .request_max = options_.request_max,
                                         .in_flight_max = options_.request_max * options_.depth,
                                         .deadline = options_.deadline}));
  const bool is_aligned_memory = is_aligned(bytes.data(), alignment);
  if (!is_aligned_memory)
    notes_.insert("memory that begins at no multiple of " + std::to_string(alignment.bytes()) + " is copied");
  const auto moved = is_aligned_memory ? move_at_once(block_file, operation, offset, bytes)
                                       : move_through_copies(block_file, operation, offset, bytes);
  if (block_file.overdue_count() > 0 || !engine_->failure().empty()) {
    block_file.leave_open();
    close_engine();
  }
  return moved;
}

BlockFile::Finished RangeMover::next_finished(BlockFile& file) {
  while (true) {
    if (auto finished = file.take_finished()) return *std::move(finished);
    file.poll(file.next_deadline());
    progress_.fetch_add(1, std::memory_order_relaxed);
  }
}

Result<void> RangeMover::move_at_once(BlockFile& file, IoOperation operation, FileOffset offset,
                                      HostSpan bytes) {
  PENSTOCK_TRY(file.start(operation, offset, bytes, 0));
  return next_finished(file).result;
}

/// Keeps several pieces in flight; a piece's number is the tag of its transfer.
Result<void> RangeMover::move_through_copies(BlockFile& file, IoOperation operation, FileOffset offset,
                                             HostSpan bytes) {
  const ByteCount piece = std::min(options_.request_max, copies_max);
  const std::uint64_t slots = std::clamp<std::uint64_t>(
      copies_max / piece, 1, std::min(options_.depth, 256u));  // as BlockFile accepts
  if (!copies_) {
    PENSTOCK_TRY_ASSIGN(copies_, HostArena::create({.size = piece * slots}));
  }
  const std::uint64_t pieces = ceil_divide(bytes.size().value(), piece.value());
  const auto range = [&](std::uint64_t number) {
    return bytes.subspan(piece * number, std::min(piece, bytes.size() - piece * number));
  };
  const auto copy = [&](std::uint64_t number) {
    return copies_->bytes().subspan(piece * (number % slots), range(number).size());
  };
  Result<void> outcome = ok();
  std::vector<bool> is_free(slots, true);
  std::uint64_t next = 0, in_flight = 0;
  while (in_flight > 0 || (next < pieces && outcome)) {
    if (next < pieces && outcome && is_free[next % slots]) {
      if (operation == IoOperation::write)
        std::memcpy(copy(next).data(), range(next).data(), range(next).size().value());
      outcome = file.start(operation, offset + piece * next, copy(next), next);
      if (!outcome) continue;
      is_free[next++ % slots] = false;
      ++in_flight;
      continue;
    }
    const BlockFile::Finished finished = next_finished(file);
    --in_flight;
    is_free[finished.tag % slots] = true;
    if (!finished.result) {
      if (outcome) outcome = finished.result;
    } else if (operation == IoOperation::read) {
      std::memcpy(range(finished.tag).data(), copy(finished.tag).data(), range(finished.tag).size().value());
    }
  }
  if (file.overdue_count() > 0) {
    copies_->leak();
    copies_.reset();
  }
  return outcome;
}

/// An engine of the first file is of use for the others. Of a file without a whole block there is none to try out.
Result<void> RangeMover::make_engine(const File& file) {
  if (engine_) return ok();
  PENSTOCK_TRY_ASSIGN(ChosenEngine chosen,
                      choose_engine(options_.engine, options_.depth, file.properties(), EngineFiles::many));
  if (!chosen.reason.empty()) notes_.insert("I/O engine: " + chosen.reason);
  engine_ = options_.decorate ? options_.decorate(std::move(chosen.engine)) : std::move(chosen.engine);
  return ok();
}

void RangeMover::close_engine() noexcept {
  // What the kernel may still use stays until the process ends.
  if (engine_ && !engine_->close(Clock::steady().now())) abandon(std::move(engine_));
  engine_.reset();
}

}  // namespace penstock::tiers
