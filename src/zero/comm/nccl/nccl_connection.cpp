#include "zero/comm/nccl/nccl_connection.hpp"

#include "base/cuda/calls.hpp"

#include <utility>

namespace penstock::zero {

namespace {

void* pointer(DeviceSpan span) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(span.address()));
}
cudaStream_t native(tiers::Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle().native());
}
ncclDataType_t native(DType dtype) {
  switch (dtype) {
    case DType::fp32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::fp16: return ncclFloat16;
  }
  return ncclNumTypes;
}

struct Failure {
  ErrorCode code;
  const char* advice;
};

Failure failure_of(ncclResult_t result) {
  constexpr const char* read_what_nccl_prints = "set NCCL_DEBUG=WARN, and read what NCCL prints";
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage: return {ErrorCode::invalid_argument, read_what_nccl_prints};
    case ncclSystemError:
      return {ErrorCode::io,
              "set NCCL_DEBUG=WARN, and read what NCCL prints; see whether the hosts reach each other on the "
              "interface that NCCL_SOCKET_IFNAME names, and /dev/shm has room"};
    case ncclRemoteError:
      return {ErrorCode::peer_failed, "look for the first error of the other ranks, and at the network"};
    default: return {ErrorCode::io, read_what_nccl_prints};
  }
}

}  // namespace

Result<ncclUniqueId> NcclConnection::make_id() const {
  ncclUniqueId id{};
  PENSTOCK_TRY(check("ncclGetUniqueId", nccl_.ncclGetUniqueId(&id)));
  return id;
}

Result<void> NcclConnection::connect(const ncclUniqueId& id) {
  PENSTOCK_TRY(use_device("ncclCommInitRankConfig", options_.device));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  connects_ = true;
  return check("ncclCommInitRankConfig",
               nccl_.ncclCommInitRankConfig(&communicator_, static_cast<int>(options_.ranks), id,
                                            static_cast<int>(options_.rank), &config));
}

Result<bool> NcclConnection::poll() const {
  ncclResult_t state = ncclSuccess;
  PENSTOCK_TRY(check("ncclCommGetAsyncError", nccl_.ncclCommGetAsyncError(communicator_, &state)));
  PENSTOCK_TRY(check(connects_ ? "ncclCommInitRankConfig" : "Communicator", state));
  return state != ncclInProgress;
}

Result<void> NcclConnection::register_arena(DeviceSpan arena) {
  connects_ = false;
  if (nccl_.ncclCommWindowRegister == nullptr) return ok();
  return check("ncclCommWindowRegister",
               nccl_.ncclCommWindowRegister(communicator_, pointer(arena), arena.size().value(), &window_,
                                            NCCL_WIN_COLL_SYMMETRIC));
}

Result<void> NcclConnection::all_gather(tiers::Stream& stream, DeviceSpan flat) {
  connects_ = false;
  if (flat.empty()) return ok();
  const ByteCount slot = flat.size() / options_.ranks;
  const DeviceSpan own = flat.subspan(slot * options_.rank, slot);
  return check("ncclAllGather", nccl_.ncclAllGather(pointer(own), pointer(flat), slot.value(), ncclUint8,
                                                    communicator_, native(stream)));
}

Result<void> NcclConnection::average(tiers::Stream& stream, std::span<const DeviceTensor> flats) {
  connects_ = false;
  return in_group([&]() -> Result<void> {
    for (const DeviceTensor& flat : flats) {
      if (!flat.bytes.empty()) PENSTOCK_TRY(average_one(stream, flat));
    }
    return ok();
  });
}

Result<void> NcclConnection::average_one(tiers::Stream& stream, const DeviceTensor& flat) {
  const std::uint64_t count = flat.count().value() / options_.ranks;
  const DeviceTensor own = flat.slice(ElementCount(count * options_.rank), ElementCount(count));
  return check("ncclReduceScatter",
               nccl_.ncclReduceScatter(pointer(flat.bytes), pointer(own.bytes), count, native(flat.dtype),
                                       ncclAvg, communicator_, native(stream)));
}

Result<void> NcclConnection::exchange_slots(tiers::Stream& stream, std::span<const DeviceTensor> flats,
                                            DeviceSpan scratch) {
  connects_ = false;
  if (options_.ranks == 1) return ok();
  return in_group([&]() -> Result<void> {
    for (std::uint32_t peer = 0; peer < options_.ranks; ++peer) {
      if (peer != options_.rank) PENSTOCK_TRY(exchange_with(peer, stream, flats, scratch));
    }
    return ok();
  });
}

Result<void> NcclConnection::exchange_with(std::uint32_t peer, tiers::Stream& stream,
                                           std::span<const DeviceTensor> flats, DeviceSpan scratch) {
  const auto number = static_cast<int>(peer);
  for (std::size_t f = 0; f < flats.size(); ++f) {
    if (flats[f].bytes.empty()) continue;
    const ByteCount slot = flats[f].bytes.size() / options_.ranks;
    const DeviceSpan from = flats[f].bytes.subspan(slot * peer, slot);
    const DeviceSpan to = peer_slot(scratch, flats, f, peer);
    PENSTOCK_TRY(check("ncclSend", nccl_.ncclSend(pointer(from), slot.value(), ncclUint8, number,
                                                  communicator_, native(stream))));
    PENSTOCK_TRY(check("ncclRecv", nccl_.ncclRecv(pointer(to), slot.value(), ncclUint8, number, communicator_,
                                                  native(stream))));
  }
  return ok();
}

Result<void> NcclConnection::in_group(const std::function<Result<void>()>& enqueue) {
  PENSTOCK_TRY(check("ncclGroupStart", nccl_.ncclGroupStart()));
  const auto called = enqueue();
  // After an error too: the thread must not stay in the group.
  const auto ended = check("ncclGroupEnd", nccl_.ncclGroupEnd());
  return called ? ended : called;
}

DeviceSpan NcclConnection::peer_slot(DeviceSpan scratch, std::span<const DeviceTensor> flats, std::size_t f,
                                     std::uint32_t peer) const {
  ByteCount before;
  for (std::size_t other = 0; other < f; ++other) before += flats[other].bytes.size() / options_.ranks;
  const ByteCount slot = flats[f].bytes.size() / options_.ranks;
  return scratch.subspan(before * (options_.ranks - 1) + slot * (peer < options_.rank ? peer : peer - 1),
                         slot);
}

Result<void> NcclConnection::finalize() {
  if (window_ != nullptr) {
    PENSTOCK_TRY(check("ncclCommWindowDeregister",
                       nccl_.ncclCommWindowDeregister(communicator_, std::exchange(window_, nullptr))));
  }
  return check("ncclCommFinalize", nccl_.ncclCommFinalize(communicator_));
}
void NcclConnection::destroy() noexcept {
  (void)nccl_.ncclCommDestroy(std::exchange(communicator_, nullptr));
}
void NcclConnection::abort() noexcept {
  if (is_open()) (void)nccl_.ncclCommAbort(std::exchange(communicator_, nullptr));
  window_ = nullptr;
}

Result<void> NcclConnection::check(const char* operation, ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return ok();
  std::string reason = std::string("NCCL: ") + nccl_.ncclGetErrorString(result);
  // Without a communicator it is the last error of any.
  const char* const details = nccl_.ncclGetLastError(communicator_);
  if (details != nullptr && *details != '\0') reason.append(": ").append(details);
  const Failure failure = failure_of(result);
  Error error = Error(failure.code, operation)
                    .reason(std::move(reason))
                    .object("rank " + std::to_string(options_.rank) + " on device " +
                            std::to_string(options_.device) + ", " + options_.device_name);
  const bool one_gpu_twice = connects_ && result == ncclInvalidUsage;
  return std::move(error).advice(
      one_gpu_twice
          ? "give each rank of a host a GPU of its own (LOCAL_RANK, CUDA_VISIBLE_DEVICES), or start no "
            "more ranks than it has GPUs"
          : failure.advice);
}

}  // namespace penstock::zero
