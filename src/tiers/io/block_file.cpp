#include "tiers/io/block_file.hpp"

#include "tiers/io/engine_errors.hpp"
#include "tiers/io/file_errors.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>

namespace penstock::tiers {

namespace {

const char* operation_name(IoOperation operation) {
  constexpr const char* names[] = {"BlockFile::read", "BlockFile::write", "BlockFile::flush"};
  return names[static_cast<std::size_t>(operation)];
}

bool is_transient(std::int64_t result) {
  return result == -EAGAIN || result == -EINTR || result == -EBUSY;
}

}  // namespace

Result<BlockFile> BlockFile::create(File file, IoEngine& engine, const Options& options) {
  const Alignment alignment = file.properties().alignment;
  if (options.request_max.is_zero() || !is_aligned(options.request_max, alignment)) {
    return Error::invalid_argument("BlockFile::create")
        .object("request_max")
        .wanted("a multiple of " + to_string(ByteCount(alignment.bytes())))
        .got(options.request_max);
  }
  return BlockFile(std::move(file), engine, options);
}

BlockFile::BlockFile(File file, IoEngine& engine, const Options& options)
    : file_(std::move(file)),
      engine_(&engine),
      options_(options),
      running_(*options.clock, running_time_step(options.deadline)),
      transfers_(options.transfers_max) {
  options_.request_max = std::min(options_.request_max, engine.limits().request_max);
  for (std::uint32_t i = options.transfers_max; i > 0; --i) free_transfers_.push_back(i - 1);
  engine_->attach(file_.handle(), {});
}

Result<void> BlockFile::check(IoOperation operation, FileOffset offset, HostSpan buffer) const {
  if (operation == IoOperation::flush && !buffer.empty()) {
    return Error::invalid_argument(operation_name(operation))
        .reason("a flush moves no bytes")
        .object(properties().name)
        .wanted("an empty buffer")
        .got(buffer.size());
  }
  if (operation == IoOperation::flush) return ok();
  const Alignment alignment = properties().alignment;
  if (!is_aligned(offset, alignment) || !is_aligned(buffer.data(), alignment) ||
      !is_aligned(buffer.size(), alignment)) {
    return Error::invalid_argument(operation_name(operation))
        .reason("address, length or offset is not aligned")
        .object(properties().name)
        .at(offset)
        .wanted("multiples of " + std::to_string(alignment.bytes()))
        .got("length " + to_exact_string(buffer.size()) + ", address modulo that " +
             std::to_string(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment.bytes()));
  }
  const ByteCount begin(offset.value());
  if (begin > options_.size || buffer.size() > options_.size - begin) {
    return Error::invalid_argument(operation_name(operation))
        .reason("beyond the end of the file")
        .object(properties().name)
        .at(offset)
        .wanted("a range within " + to_string(options_.size))
        .got(buffer.size());
  }
  return ok();
}

Result<void> BlockFile::start(IoOperation operation, FileOffset offset, HostSpan buffer, std::uint64_t tag) {
  PENSTOCK_TRY(check(operation, offset, buffer));
  if (refuses(operation)) return refusal(operation, offset);
  if (free_transfers_.empty()) return Error::would_block(operation_name(operation));

  const std::uint32_t slot = free_transfers_.back();
  free_transfers_.pop_back();
  ++active_count_;
  transfers_[slot] = {.operation = operation,
                      .offset = offset,
                      .buffer = buffer,
                      .tag = tag,
                      .parts = 1,
                      .error = std::nullopt,
                      .number = started_count_++,
                      .earlier = active_count_ - 1};
  // This call counts as one part until it returns, so that an empty transfer ends too.
  const std::uint32_t own = take_part();
  parts_[own] = {.transfer = slot};
  queue_parts(slot);
  end_part(own);
  return ok();
}

/// Splits a transfer into parts of request_max. A flush is one part that waits for earlier transfers.
void BlockFile::queue_parts(std::uint32_t slot) {
  const Transfer& transfer = transfers_[slot];
  if (transfer.operation == IoOperation::flush) {
    ++transfers_[slot].parts;
    queues_->flushes.push_back(slot);
    return release_flushes(transfer.number);
  }
  for (ByteCount at; at < transfer.buffer.size(); at += options_.request_max) {
    ++transfers_[slot].parts;
    queue_part(slot, at, std::min(options_.request_max, transfer.buffer.size() - at));
  }
}

void BlockFile::queue_part(std::uint32_t slot, ByteCount begin, ByteCount length) {
  const std::uint32_t part = take_part();
  parts_[part] = {.transfer = slot, .begin = begin, .length = length, .request_max = options_.request_max};
  queues_->waiting.push_back(part);
  unmoved_ += length;
}

std::uint32_t BlockFile::take_part() {
  if (free_parts_.empty()) {
    parts_.emplace_back();
    return static_cast<std::uint32_t>(parts_.size() - 1);
  }
  const std::uint32_t part = free_parts_.back();
  free_parts_.pop_back();
  return part;
}

void BlockFile::poll(TimePoint deadline) noexcept {
  submit_parts();
  std::array<IoCompletion, 64> completions;
  const TimePoint until = queues_->finished.empty() ? std::min(deadline, next_deadline()) : TimePoint::min();
  std::size_t count = engine_->reap(completions, until);
  const bool some = count > 0;
  // Handles all completions before requests are declared overdue.
  while (count > 0) {
    const TimePoint now = running_.update();
    for (std::size_t i = 0; i < count; ++i) on_completion(completions[i], now);
    count = count < completions.size() ? 0 : engine_->reap(completions, TimePoint::min());
  }
  if (end_overdue_parts() || some) submit_parts();
}

Error BlockFile::refusal(IoOperation operation, FileOffset offset) const {
  Error error = Error(ErrorCode::failed_state, operation_name(operation))
                    .reason(engine_failed_ ? "refused since the I/O engine failed"
                            : hang_        ? "refused since a request passed its deadline"
                                           : "refused since a flush failed")
                    .object(properties().name)
                    .note("cause   " + (hang_ ? *hang_ : *flush_failure_).message());
  if (operation == IoOperation::flush) return error;
  return std::move(error).at(offset);
}

bool BlockFile::is_current(std::uint32_t part, TimePoint submitted) const noexcept {
  return parts_[part].in_flight && !parts_[part].overdue && parts_[part].submitted == submitted;
}

TimePoint BlockFile::next_deadline() const noexcept {
  if (queues_->submissions.empty() || options_.deadline == forever) return forever;
  return running_.next_update(queues_->submissions.front().deadline);
}

/// After a failure of the engine the file refuses everything. True the first time: then the caller refuses the waiting
/// parts.
bool BlockFile::check_engine(const std::string& failure) noexcept {
  if (failure.empty() || engine_failed_) return false;
  engine_failed_ = read_hangs_ = true;
  hang_ = engine_failed(ErrorCode::io, "BlockFile::poll", engine_->name(), failure).object(properties().name);
  return true;
}

/// Fails the transfers of requests past their deadline, and of all requests when the engine has failed, without waiting
/// for those requests. True if there were any: then the caller submits or refuses the waiting parts.
bool BlockFile::end_overdue_parts() noexcept {
  const std::string failure = engine_->failure();
  const bool failed_now = check_engine(failure);
  (void)running_.update();
  const std::uint32_t before = overdue_count_;
  while (!queues_->submissions.empty()) {
    const auto [index, submitted, deadline] = queues_->submissions.front();
    const bool current = is_current(index, submitted);
    if (current && failure.empty() && deadline > running_.elapsed()) break;
    queues_->submissions.pop_front();
    if (!current) continue;
    Part& part = parts_[index];
    Transfer& transfer = transfers_[part.transfer];
    // Replaces any other error of the transfer: the owner of the buffer must know that it may still be in use.
    transfer.error.reset();
    const char* const operation = operation_name(transfer.operation);
    fail(transfer,
         failure.empty() ? request_overdue(operation, options_.deadline)
                         : engine_failed(ErrorCode::deadline_exceeded, operation, engine_->name(), failure),
         part);
    if (!hang_) hang_ = transfer.error;
    read_hangs_ |= transfer.operation == IoOperation::read;
    part.overdue =
        true;  // its index is not reused before it completes; its bytes no longer count as in flight
    ++overdue_count_;
    in_flight_ -= part.request_length();
    unmoved_ -= part.length;
    part_has_ended(part.transfer);
  }
  return failed_now || overdue_count_ > before;
}

/// Submits waiting parts until none is left, in_flight_max is reached, or the engine's queue is full. Each batch is one
/// call of IoEngine::submit().
void BlockFile::submit_parts() noexcept {
  std::array<IoRequest, 64> batch;
  while (true) {
    const std::size_t count = next_batch(batch);
    const std::size_t accepted = count == 0 ? 0 : engine_->submit(std::span(batch).first(count));
    const TimePoint now = running_.update();
    const TimePoint deadline = running_.end_of(options_.deadline);
    for (std::size_t i = 0; i < accepted; ++i) {
      const std::uint32_t batch_part = queues_->waiting.front();
      Part& part = parts_[batch_part];
      queues_->waiting.pop_front();
      part.in_flight = true;
      part.submitted = now;
      queues_->submissions.push_back({batch_part, now, deadline});
      in_flight_ += part.request_length();
      ++counters_.requests;
    }
    if (accepted == 0 && count > 0 && overdue_count_ > 0 && engine_->in_flight() == overdue_count_) {
      read_hangs_ = true;  // no slot is left for reads: waiting parts are refused
      continue;
    }
    if (accepted < batch.size()) return;
  }
}

/// Fills `batch` with requests of the first waiting parts, within in_flight_max. Returns their number.
std::size_t BlockFile::next_batch(std::span<IoRequest> batch) noexcept {
  std::size_t count = 0;
  ByteCount in_flight = in_flight_;
  // Iterates by index, because end_part() may append a flush to the queue and so invalidate iterators.
  for (std::size_t at = 0; at < queues_->waiting.size() && count < batch.size();) {
    const std::uint32_t index = queues_->waiting[at];
    const Part& part = parts_[index];
    const Transfer& transfer = transfers_[part.transfer];
    // No further requests for a failed transfer.
    if (transfer.error || refuses(transfer.operation)) {
      if (!transfer.error) {
        transfers_[part.transfer].error = refusal(transfer.operation, transfer.offset + part.begin);
      }
      queues_->waiting.erase(queues_->waiting.begin() + static_cast<std::ptrdiff_t>(at));
      end_part(index);
      continue;
    }
    const ByteCount length = part.request_length();
    if (!in_flight.is_zero() && in_flight + length > options_.in_flight_max) break;
    in_flight += length;
    batch[count++] = {.operation = transfer.operation,
                      .file = file_.handle(),
                      .offset = transfer.offset + part.begin,
                      .buffer = transfer.buffer.subspan(part.begin, length),
                      .tag = index};
    ++at;
  }
  return count;
}

void BlockFile::on_completion(const IoCompletion& completion, TimePoint now) noexcept {
  // An embedder's engine may break its contract. A request that it never reports ends at its deadline.
  if (completion.tag >= parts_.size() || !parts_[completion.tag].in_flight) return;
  const auto index = static_cast<std::uint32_t>(completion.tag);
  Part& part = parts_[index];
  part.in_flight = false;
  counters_.latency.record(now - part.submitted);
  if (part.overdue) {
    --overdue_count_;
    return free_parts_.push_back(index);
  }
  const ByteCount asked = part.request_length();
  in_flight_ -= asked;
  Transfer& transfer = transfers_[part.transfer];

  if (is_transient(completion.result) && part.retries < options_.retries_max) {
    ++part.retries;
    ++counters_.retries;
    return resume(index);
  }
  if (completion.result == -EIO && subdivide(part)) return resume(index);
  if (completion.result < 0) {
    Error error = request_error(operation_name(transfer.operation), engine_->name(),
                                static_cast<int>(-completion.result));
    if (transfer.operation == IoOperation::flush) {
      fail_flush(transfer, std::move(error), part);
    } else {
      fail(transfer, std::move(error), part);
    }
    return end_part(index);
  }
  if (transfer.operation == IoOperation::flush) return end_part(index);
  if (completion.result == 0) {
    // A read at the end of the file, or a write without progress. Repeating it could go on forever.
    fail(transfer, short_transfer(transfer.operation, operation_name(transfer.operation), ByteCount(0)),
         part);
    return end_part(index);
  }

  const ByteCount moved(static_cast<std::uint64_t>(completion.result));
  if (moved > asked) {
    fail(transfer, moved_too_much(operation_name(transfer.operation), moved), part);
    return end_part(index);
  }
  ByteCount& counter =
      transfer.operation == IoOperation::read ? counters_.bytes_read : counters_.bytes_written;
  if (moved == part.length) {
    counter += moved;
    return end_part(index);
  }
  if (moved < asked) ++counters_.short_transfers;
  // The remainder must stay aligned: bytes beyond the last whole block are moved again.
  const std::uint64_t block = properties().alignment.bytes();
  const ByteCount kept(moved.value() / block * block);
  if (kept.is_zero() && ++part.retries > options_.retries_max) {
    fail(transfer, short_transfer(transfer.operation, operation_name(transfer.operation), moved), part);
    return end_part(index);
  }
  counter += kept;
  part.begin += kept;
  part.length -= kept;
  unmoved_ -= kept;
  resume(index);
}

/// Halves the part's request length after EIO. False if it is one block already.
bool BlockFile::subdivide(Part& part) noexcept {
  const Alignment alignment = properties().alignment;
  const ByteCount asked = part.request_length();
  if (asked <= ByteCount(alignment.bytes())) return false;
  part.request_max = round_up(asked / 2, alignment);
  ++counters_.subdivided;
  return true;
}

void BlockFile::resume(std::uint32_t part) noexcept {
  queues_->waiting.push_front(part);
}

void BlockFile::fail(Transfer& transfer, Error error, const Part& part) noexcept {
  if (transfer.error) return;  // the caller gets the first error
  error = std::move(error).object(properties().name);
  if (transfer.operation != IoOperation::flush) {
    error = std::move(error).at(transfer.offset + part.begin).wanted(part.request_length());
  }
  transfer.error = std::move(error);
}

/// Refuses writes and flushes from now on: the kernel reports lost writes only once; therefore a later flush may
/// succeed although data is lost.
void BlockFile::fail_flush(Transfer& transfer, Error error, const Part& part) noexcept {
  fail(transfer,
       std::move(error)
           .reason("a flush failed: writes that no earlier flush has made durable may be lost")
           .advice("check the drive and the kernel log; nothing more is written to this swap file"),
       part);
  if (!flush_failure_) flush_failure_ = transfer.error;
}

/// Called when transfer `number` has ended or is a new flush: queues the flushes for which all earlier operations have
/// ended.
void BlockFile::release_flushes(std::uint64_t number) noexcept {
  for (const std::uint32_t slot : queues_->flushes) {
    if (transfers_[slot].number > number) --transfers_[slot].earlier;
  }
  // In order: a flush also waits for the flushes before it.
  while (!queues_->flushes.empty() && transfers_[queues_->flushes.front()].earlier == 0) {
    queue_part(queues_->flushes.front(), ByteCount(), ByteCount());
    queues_->flushes.pop_front();
  }
}

void BlockFile::end_part(std::uint32_t index) noexcept {
  free_parts_.push_back(index);
  unmoved_ -= parts_[index].length;
  part_has_ended(parts_[index].transfer);
}

void BlockFile::part_has_ended(std::uint32_t slot) noexcept {
  Transfer& transfer = transfers_[slot];
  if (--transfer.parts > 0) return;
  queues_->finished.push_back({.tag = transfer.tag,
                               .operation = transfer.operation,
                               .result = transfer.error ? Result<void>(*transfer.error) : ok()});
  const std::uint64_t number = transfer.number;
  transfer = {};
  --active_count_;
  free_transfers_.push_back(slot);
  release_flushes(number);
}

std::optional<BlockFile::Finished> BlockFile::take_finished() {
  if (queues_->finished.empty()) return std::nullopt;
  Finished first = std::move(queues_->finished.front());
  queues_->finished.pop_front();
  return first;
}

}  // namespace penstock::tiers
