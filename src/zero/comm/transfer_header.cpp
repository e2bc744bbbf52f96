#include "zero/comm/transfer_header.hpp"

#include "base/splitmix64.hpp"
#include "zero/comm/collective_errors.hpp"

#include <cstring>
#include <type_traits>

namespace penstock::zero {

static_assert(std::has_unique_object_representations_v<TransferHeader>);

TransferHeader TransferHeader::of(const Transfer& transfer) {
  const CollectiveSignature& signature = transfer.signature;
  ByteCount bytes = transfer.mine.size();
  std::uint64_t contents = signature.others;
  for (const DeviceTensor& flat : transfer.flats) {
    bytes += flat.bytes.size();
    contents = splitmix64_add(contents, flat.bytes.size().value());
  }
  return {.step = signature.step,
          .bytes = bytes.value(),
          .contents = contents,
          .unit = signature.unit,
          .group = signature.group,
          .micro_batch = signature.micro_batch,
          .flats = static_cast<std::uint32_t>(transfer.flats.size()),
          .kind = transfer.kind,
          .subject = signature.subject,
          .dtype = transfer.flats.empty() ? DType{} : transfer.flats[0].dtype};
}

TransferHeader TransferHeader::of(std::span<const std::byte> bytes) {
  TransferHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}

std::span<const std::byte> TransferHeader::as_bytes() const {
  return std::as_bytes(std::span(this, 1));
}

std::vector<std::byte> announcement_of(const Transfer& transfer) {
  const TransferHeader header = TransferHeader::of(transfer);
  const auto first = header.as_bytes();
  std::vector<std::byte> bytes(first.begin(), first.end());
  bytes.insert(bytes.end(), transfer.mine.data(), transfer.mine.data() + transfer.mine.size().value());
  return bytes;
}

Result<void> take_announcements(std::uint32_t rank, const Transfer& transfer,
                                const std::vector<std::vector<std::byte>>& all) {
  const TransferHeader mine = TransferHeader::of(transfer);
  for (std::uint32_t peer = 0; peer < all.size(); ++peer) {
    const bool is_whole = all[peer].size() >= sizeof(TransferHeader);
    const TransferHeader other = is_whole ? TransferHeader::of(all[peer]) : TransferHeader{};
    if (other != mine) return different_collectives(rank, to_string(mine), peer, to_string(other));
  }
  const std::size_t each = transfer.mine.size().value();
  for (std::uint32_t peer = 0; peer < all.size() && each > 0; ++peer)
    std::memcpy(transfer.all.data() + each * peer, all[peer].data() + sizeof(TransferHeader), each);
  return ok();
}

std::string flats_text(std::uint64_t flats, std::uint64_t contents) {
  if (flats <= 1) return {};
  return std::to_string(flats) + " flats (#" + std::to_string(contents % 10'000) + ") with ";
}

std::string to_string(const TransferHeader& header) {
  const bool typed = header.kind == Transfer::Kind::all_to_all || header.kind == Transfer::Kind::native_mean;
  std::string text = std::string(to_string(header.kind)) + " of " +
                     flats_text(header.flats, header.contents) + to_string(ByteCount(header.bytes));
  if (typed) text.append(" of ").append(to_string(header.dtype));
  return text + ", " +
         to_string(CollectiveSignature{.subject = header.subject,
                                       .unit = header.unit,
                                       .group = header.group,
                                       .micro_batch = header.micro_batch,
                                       .step = header.step});
}

}  // namespace penstock::zero
