#include "zero/comm/process/peer_link.hpp"

#include "base/splitmix64.hpp"
#include "zero/comm/collective_errors.hpp"
#include "zero/comm/transfer_header.hpp"

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
  std::uint64_t offset = 0, size = 0;      ///< of the chunk, among the collective's `size` bytes
  std::uint64_t pieces = 0, contents = 0;  ///< their number, and a hash of them and their sizes

  /// Of one and the same collective.
  [[nodiscard]] bool is_of(const Header& other) const {
    return kind == other.kind && dtype == other.dtype && subject == other.subject && unit == other.unit &&
           group == other.group && micro_batch == other.micro_batch && step == other.step &&
           size == other.size && pieces == other.pieces && contents == other.contents;
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
          .size = size_,
          .pieces = operation_->pieces.size(),
          .contents = contents_};
}

void PeerLink::advance(Place& place, std::uint64_t count) const {
  place.offset += count;
  place.total += count;
  while (place.piece < operation_->pieces.size() && left_in_piece(place) == 0) {
    ++place.piece;
    place.offset = 0;
  }
}

std::uint64_t PeerLink::left_in_piece(const Place& place) const {
  const auto& pieces = operation_->pieces;
  return place.piece < pieces.size() ? pieces[place.piece].send.size().value() - place.offset : 0;
}

Result<void> PeerLink::begin(const LinkOperation& operation) {
  PENSTOCK_CHECK(is_done() && !is_interrupted());
  operation_ = operation;
  size_ = 0;
  contents_ = operation.signature.others;
  for (const LinkOperation::Piece& piece : operation.pieces) {
    PENSTOCK_CHECK(piece.send.size() == piece.receive.size());
    size_ += piece.send.size().value();
    contents_ = splitmix64_add(contents_, piece.send.size().value());
  }
  ++number_;
  for (Place* place : {&sent_, &received_}) advance(*place = {}, 0);
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
  if (sent_.total == size_ && received_.total == size_) operation_.reset();
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
  } else if (operation_ && !(has_sent_ && sent_.total == size_)) {
    const std::uint64_t bytes = std::min<std::uint64_t>(left_in_piece(sent_), chunk_bytes_max);
    header = header_of(sent_.total, bytes);
    if (bytes > 0) {
      const ConstHostSpan send = operation_->pieces[sent_.piece].send;
      chunk_out_ = send.subspan(ByteCount(sent_.offset), ByteCount(bytes));
    }
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
    if (operation_) advance(sent_, count);  // else it was interrupted
  }
  end_if_done();
}

HostSpan PeerLink::to_read() {
  switch (incoming_) {
    case Incoming::header: return HostSpan(std::span(header_in_).last(header_bytes - header_read_));
    case Incoming::wanted: {
      const LinkOperation::Piece& piece = operation_->pieces[received_.piece];
      const bool in_place = piece.send.data() == piece.receive.data();
      const std::uint64_t room = in_place ? sent_.total - received_.total : chunk_left_;
      return piece.receive.subspan(ByteCount(received_.offset), ByteCount(std::min(room, chunk_left_)));
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
  if (incoming_ == Incoming::wanted) advance(received_, count);
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
      header.dtype > DType::fp16 || header.subject > CollectiveSignature::Subject::checkpoint)
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
    const Header mine = header_of(received_.total, header.bytes);
    if (!header.is_of(mine)) return different_collectives(rank_, text_of(mine), peer_, text_of(header));
    if (header.offset != received_.total || header.bytes > left_in_piece(received_))
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
  return std::string(to_string(header.kind)) + " of " + flats_text(header.pieces, header.contents) +
         "slots of " + size + ", " +
         to_string(CollectiveSignature{.subject = header.subject,
                                       .unit = header.unit,
                                       .group = header.group,
                                       .micro_batch = header.micro_batch,
                                       .step = header.step});
}

}  // namespace penstock::zero
