#include "zero/comm/process/peer_link.hpp"

#include "zero/comm/different_collectives.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace penstock::zero {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

/// Before each chunk; or a marker, which says that its sender has interrupted and knows of `epoch`.
struct PeerLink::Header {
  enum class Type : std::uint8_t { chunk, marker };
  static constexpr std::uint32_t right_magic = 0x4b4e4c50;  // "PLNK"

  std::uint32_t magic = right_magic;
  Type type{};
  Transfer::Kind kind{};
  DType dtype{};
  CollectiveSignature::Subject subject{};
  std::uint32_t unit = 0, group = 0, micro_batch = 0;
  std::uint32_t bytes = 0;  ///< of the chunk
  std::uint64_t step = 0, epoch = 0, number = 0;
  std::uint64_t offset = 0, size = 0;  ///< of the chunk, among the collective's `size` bytes

  /// Of one and the same collective.
  [[nodiscard]] bool is_of(const Header& other) const {
    return kind == other.kind && dtype == other.dtype && subject == other.subject && unit == other.unit &&
           group == other.group && micro_batch == other.micro_batch && step == other.step &&
           size == other.size;
  }
};

PeerLink::PeerLink(std::uint32_t rank, std::uint32_t peer) : rank_(rank), peer_(peer), unwanted_(64 * 1024) {
  static_assert(sizeof(Header) == header_bytes);
}

PeerLink::Header PeerLink::header_of(std::uint64_t offset, std::uint64_t bytes) const {
  const CollectiveSignature& signature = operation_->signature;
  return {.kind = operation_->kind,
          .dtype = operation_->dtype,
          .subject = signature.subject,
          .unit = signature.unit,
          .group = signature.group,
          .micro_batch = signature.micro_batch,
          .bytes = static_cast<std::uint32_t>(bytes),
          .step = signature.step,
          .epoch = epoch_,
          .number = number_ - 1,
          .offset = offset,
          .size = operation_->send.size().value()};
}

Result<void> PeerLink::begin(const LinkOperation& operation) {
  PENSTOCK_CHECK(is_done() && !is_interrupted() && operation.send.size() == operation.receive.size());
  operation_ = operation;
  ++number_;
  sent_ = received_ = 0;
  has_sent_ = has_received_ = false;
  return incoming_ == Incoming::early ? take_header() : ok();
}

void PeerLink::interrupt(std::uint64_t epoch) {
  epoch_ = epoch;
  number_ = 0;
  operation_.reset();
  if (incoming_ == Incoming::wanted) incoming_ = Incoming::unwanted;
  if (incoming_ == Incoming::early) (void)take_header();  // which compares nothing, because nothing has begun
}

void PeerLink::end_if_done() {
  if (!operation_ || !has_sent_ || !has_received_) return;
  const std::uint64_t size = operation_->send.size().value();
  if (sent_ == size && received_ == size) operation_.reset();
}

ConstHostSpan PeerLink::to_write() {
  if (header_left_ == 0 && chunk_out_.empty()) next_chunk();
  if (header_left_ > 0) return ConstHostSpan(std::span<const std::byte>(header_out_).last(header_left_));
  return chunk_out_;
}

void PeerLink::next_chunk() {
  Header header;
  if (sent_epoch_ != epoch_) {
    header = {.type = Header::Type::marker, .epoch = epoch_};
  } else if (operation_ && !(has_sent_ && sent_ == operation_->send.size().value())) {
    const std::uint64_t bytes =
        std::min<std::uint64_t>(operation_->send.size().value() - sent_, chunk_bytes_max);
    header = header_of(sent_, bytes);
    chunk_out_ = operation_->send.subspan(ByteCount(sent_), ByteCount(bytes));
  } else {
    return;
  }
  std::memcpy(header_out_.data(), &header, header_bytes);
  header_left_ = header_bytes;
}

void PeerLink::wrote(std::size_t count) {
  if (header_left_ > 0) {
    header_left_ -= count;
    if (header_left_ > 0) return;
    Header header;
    std::memcpy(&header, header_out_.data(), header_bytes);
    if (header.type == Header::Type::marker) {
      sent_epoch_ = header.epoch;
    } else {
      has_sent_ = true;
    }
  } else {
    chunk_out_ = chunk_out_.subspan(ByteCount(count), chunk_out_.size() - ByteCount(count));
    sent_ += count;
  }
  end_if_done();
}

HostSpan PeerLink::to_read() {
  switch (incoming_) {
    case Incoming::header: return HostSpan(std::span(header_in_).last(header_bytes - header_read_));
    case Incoming::wanted: {
      const bool in_place = operation_->send.data() == operation_->receive.data();
      const std::uint64_t room = in_place ? sent_ - received_ : chunk_left_;
      return operation_->receive.subspan(ByteCount(received_), ByteCount(std::min(room, chunk_left_)));
    }
    case Incoming::unwanted:
      return HostSpan(std::span(unwanted_).first(std::min<std::uint64_t>(unwanted_.size(), chunk_left_)));
    case Incoming::early: break;
  }
  return {};
}

Result<void> PeerLink::read(std::size_t count) {
  if (incoming_ == Incoming::header) {
    header_read_ += count;
    return header_read_ == header_bytes ? take_header() : ok();
  }
  if (incoming_ == Incoming::wanted) received_ += count;
  chunk_left_ -= count;
  if (chunk_left_ == 0) expect_header();
  end_if_done();
  return ok();
}

void PeerLink::expect_header() {
  incoming_ = Incoming::header;
  header_read_ = 0;
}

/// Decides what becomes of the header that was read last, and of the bytes after it.
Result<void> PeerLink::take_header() {
  Header header;
  std::memcpy(&header, header_in_.data(), header_bytes);
  const auto corrupted = [this](const char* what) {
    return Error(ErrorCode::corrupted, "Communicator")
        .reason("rank " + std::to_string(peer_) + " sends " + what);
  };
  if (header.magic != Header::right_magic || header.type > Header::Type::marker ||
      header.bytes > chunk_bytes_max || header.kind > Transfer::Kind::exchange ||
      header.dtype > DType::fp16 || header.subject > CollectiveSignature::Subject::digest)
    return corrupted("what is no chunk");
  incoming_ = Incoming::early;
  if (header.epoch > epoch_) return ok();
  if (header.type == Header::Type::marker) {
    received_epoch_ = header.epoch;
    expect_header();
    return ok();
  }
  if (header.epoch == epoch_) {
    if (header.number == number_) return ok();  // it is of the next collective
    if (!operation_ || header.number + 1 != number_) return corrupted("a chunk out of turn");
    const Header mine = header_of(received_, header.bytes);
    if (!header.is_of(mine)) return different_collectives(rank_, text_of(mine), peer_, text_of(header));
    if (header.offset != received_ || header.bytes > header.size - received_)
      return corrupted("a chunk out of turn");
    has_received_ = true;
  }
  incoming_ = header.epoch == epoch_ ? Incoming::wanted : Incoming::unwanted;
  chunk_left_ = header.bytes;
  if (chunk_left_ == 0) expect_header();
  end_if_done();
  return ok();
}

std::string PeerLink::text_of(const Header& header) {
  std::string size = to_string(ByteCount(header.size));
  if (header.kind == Transfer::Kind::all_to_all) size.append(" of ").append(to_string(header.dtype));
  return std::string(to_string(header.kind)) + " of slots of " + size + ", " +
         to_string(CollectiveSignature{.subject = header.subject,
                                       .unit = header.unit,
                                       .group = header.group,
                                       .micro_batch = header.micro_batch,
                                       .step = header.step});
}

}  // namespace penstock::zero
