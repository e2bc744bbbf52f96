#include "zero/comm/transport_communicator.hpp"

#include <algorithm>
#include <string>

namespace penstock::zero {

namespace {

/// Of flats that overlap, which would be reduced twice.
Result<void> check_apart(std::span<const DeviceTensor> flats) {
  std::vector<DeviceSpan> ranges;
  for (const DeviceTensor& flat : flats) {
    if (!flat.bytes.empty()) ranges.push_back(flat.bytes);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](DeviceSpan a, DeviceSpan b) { return a.address() < b.address(); });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const auto begin = static_cast<std::uintptr_t>(ranges[i - 1].address());
    if (begin + ranges[i - 1].size().value() <= static_cast<std::uintptr_t>(ranges[i].address())) continue;
    return Error::invalid_argument("Communicator::start").object("flats").reason("two of them overlap");
  }
  return ok();
}

}  // namespace

Result<void> TransportCommunicator::start_all_gather(tiers::Stream& stream, DeviceSpan flat,
                                                     const CollectiveSignature& signature) {
  return start({.kind = Transfer::Kind::all_gather,
                .signature = signature,
                .stream = &stream,
                .flats = {{flat, DType::bf16}}});
}

Result<void> TransportCommunicator::start_reduce_scatter(tiers::Stream& stream,
                                                         std::span<const DeviceTensor> flats,
                                                         Reduction reduction,
                                                         const CollectiveSignature& signature) {
  if (!supports(reduction)) {
    return Error::unsupported("Communicator::start_reduce_scatter")
        .reason("this transport supports only the exact reduction")
        .wanted("reduction exact")
        .got(std::string(to_string(reduction)));
  }
  if (flats.empty()) {
    return Error::invalid_argument("Communicator::start_reduce_scatter")
        .object("flats")
        .wanted("at least 1")
        .got(0u);
  }
  return start({.kind = kind_of(reduction),
                .signature = signature,
                .stream = &stream,
                .flats = {flats.begin(), flats.end()}});
}

Result<void> TransportCommunicator::start_exchange(ConstHostSpan mine, HostSpan all,
                                                   const CollectiveSignature& signature) {
  if (mine.size() > ByteCount(~std::uint64_t{0}) / size() || all.size() != mine.size() * size()) {
    return Error::invalid_argument("Communicator::start_exchange")
        .wanted(mine.size() * size())
        .got(all.size());
  }
  if (!mine.empty() && (mine.data() == nullptr || all.data() == nullptr)) {
    return Error::invalid_argument("Communicator::start_exchange")
        .object(mine.data() == nullptr ? "mine" : "all")
        .reason("its address is null");
  }
  return start({.kind = Transfer::Kind::exchange, .signature = signature, .mine = mine, .all = all});
}

Result<void> TransportCommunicator::check(const Transfer& transfer) const {
  for (const DeviceTensor& flat : transfer.flats) {
    if (flat.dtype > DType::fp16) {
      return Error::invalid_argument("Communicator::start")
          .object("dtype of the flat")
          .got(unsigned(flat.dtype));
    }
    if (flat.dtype != transfer.flats[0].dtype) {
      return Error::invalid_argument("Communicator::start")
          .object("dtype of a flat")
          .wanted(std::string(to_string(transfer.flats[0].dtype)) + ", that of the first one")
          .got(std::string(to_string(flat.dtype)));
    }
    if (!flat.bytes.empty() && flat.bytes.address() == DeviceAddress{}) {
      return Error::invalid_argument("Communicator::start").object("flat").reason("its address is null");
    }
    if (flat.bytes.size().value() % (size() * size_of(flat.dtype).value()) != 0) {
      return Error::invalid_argument("Communicator::start")
          .reason("the flat cannot be divided into equal slots, one per rank")
          .wanted("a multiple of " + to_string(size_of(flat.dtype) * size()))
          .got(flat.bytes.size());
    }
  }
  return check_apart(transfer.flats);
}

Result<void> TransportCommunicator::start(const Transfer& transfer) {
  PENSTOCK_TRY(check(transfer));
  PENSTOCK_TRY(transport_->start(transfer));
  current_ = transfer;
  return ok();
}

Result<bool> TransportCommunicator::poll() {
  PENSTOCK_TRY_ASSIGN(auto state, transport_->poll());
  if (state == TransferState::readable) {
    auto summed = average_slices();
    // Released even after an error, because the peers wait for it.
    auto released = transport_->release_slices();
    if (summed) summed = released;
    if (!summed) {
      transport_->abort(summed.error());
      return summed.error();
    }
    PENSTOCK_TRY_ASSIGN(state, transport_->poll());
  }
  return state == TransferState::complete;
}

/// Averages the slices of all ranks by the `exact` reduction.
Result<void> TransportCommunicator::average_slices() {
  if (size() == 1) return ok();
  for (std::size_t f = 0; f < current_.flats.size(); ++f) {
    const DeviceTensor& flat = current_.flats[f];
    slices_.clear();
    for (std::uint32_t r = 0; r < size(); ++r) slices_.push_back(transport_->slice(f, r));
    const ElementCount length = flat.count() / size();
    PENSTOCK_TRY(compute_.mean(current_.stream->handle(), slices_, flat.slice(length * rank(), length)));
  }
  return ok();
}

}  // namespace penstock::zero
