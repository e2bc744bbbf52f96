#include "zero/comm/transport_communicator.hpp"

namespace penstock::zero {

Result<void> TransportCommunicator::start_all_gather(tiers::Stream& stream, DeviceSpan flat,
                                                     const CollectiveSignature& signature) {
  return start({.kind = Transfer::Kind::all_gather,
                .signature = signature,
                .stream = &stream,
                .flat = {flat, DType::bf16}});
}

Result<void> TransportCommunicator::start_reduce_scatter(tiers::Stream& stream, DeviceTensor flat,
                                                         Reduction reduction,
                                                         const CollectiveSignature& signature) {
  if (!supports(reduction)) {
    return Error::unsupported("Communicator::start_reduce_scatter")
        .reason("this transport supports only the exact reduction")
        .wanted("reduction exact")
        .got(std::string(to_string(reduction)));
  }
  return start({.kind = kind_of(reduction), .signature = signature, .stream = &stream, .flat = flat});
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

Result<void> TransportCommunicator::start(const Transfer& transfer) {
  const DeviceTensor& flat = transfer.flat;
  if (flat.dtype > DType::fp16) {
    return Error::invalid_argument("Communicator::start")
        .object("dtype of the flat")
        .got(unsigned(flat.dtype));
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
  slices_.clear();
  for (std::uint32_t r = 0; r < size(); ++r) slices_.push_back(transport_->slice(r));
  const ElementCount length = current_.flat.count() / size();
  return compute_.mean(current_.stream->handle(), slices_, current_.flat.slice(length * rank(), length));
}

}  // namespace penstock::zero
