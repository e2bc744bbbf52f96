#include "zero/comm/transfer_header.hpp"

#include "base/splitmix64.hpp"
#include "zero/comm/different_collectives.hpp"

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

Error different_transfers(std::uint32_t rank, const TransferHeader& mine, std::uint32_t peer,
                          const TransferHeader& other) {
  return different_collectives(rank, to_string(mine), peer, to_string(other));
}

}  // namespace penstock::zero
